"""From a job file to a checked value: read, override, validate, resolve."""

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from clusterddp.config.checks import check_job
from clusterddp.config.references import resolve_references
from clusterddp.config.schema import Job
from clusterddp.config.templates import find_template, template_sections
from clusterddp.config.yaml import KeyPath, Source, parse_value, read_source
from clusterddp.errors import JobFileError, UsageError

__all__ = [
    "Override",
    "change_job",
    "load_job",
    "parse_override",
    "read_job",
    "render_job",
    "runs_root",
]


@dataclass(frozen=True)
class Override:
    """One value that the command line puts into the job file.

    Attributes:
        key: where it goes.
        value: what goes there.
        said: what the user typed, for messages.
    """

    key: KeyPath
    value: object
    said: str


def parse_override(text: str) -> Override:
    """Read `train.epochs=3`.

    Raises:
        UsageError: there is no `=`, no key, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not all(key.strip().split(".")):
        message = f"{text!r}: expected key=value, as in train.epochs=3"
        raise UsageError(message)
    try:
        parsed = parse_value(value)
    except ValueError as error:
        message = f"{text!r}: {error}; quote it for YAML, as in {key}='\"...\"'"
        raise UsageError(message) from error
    return Override(tuple(key.strip().split(".")), parsed, text)


def load_job(path: Path, overrides: Sequence[Override] = ()) -> Job:
    """Give the job that a file describes, with absolute paths.

    The order, last wins: the template, the file, the overrides as they stand.

    Raises:
        JobFileError: anything is wrong with it; every finding has its line.
    """
    source = read_source(path)
    values = _copy(source.values)
    for override in overrides:
        _put(values, override)
    _lay_template_below(values, source, path.parent)
    typed = {override.key: override.said for override in overrides}
    try:
        job = Job.model_validate(values)
    except ValidationError as error:
        raise JobFileError(_explain(error.errors(), source, typed)) from error
    resolved, findings = resolve_references(job, path.resolve().parent)
    findings = [*findings, *check_job(resolved)]
    if findings:
        raise JobFileError(
            "\n".join(_line(key, text, source, typed) for key, text in findings)
        )
    return resolved


def read_job(path: Path) -> Job:
    """Read the resolved job file of a run directory.

    Raises:
        JobFileError: it is not there or not one that this version understands.
    """
    source = read_source(path)
    try:
        return Job.model_validate(source.values)
    except ValidationError as error:
        raise JobFileError(_explain(error.errors(), source, {})) from error


def change_job(job: Job, overrides: Sequence[Override]) -> Job:
    """Give a job with some of its values replaced; pure.

    Raises:
        UsageError: a key or a value cannot be, or does not go with the others.
    """
    values = job.model_dump(mode="json", exclude_none=True)
    for override in overrides:
        _put(values, override)
    typed = {override.key: override.said for override in overrides}
    nowhere = Source("job.yaml", values, {})
    try:
        changed = Job.model_validate(values)
    except ValidationError as error:
        raise UsageError(_explain(error.errors(), nowhere, typed)) from error
    findings = check_job(changed)
    if findings:
        lines = (_line(key, text, nowhere, typed) for key, text in findings)
        raise UsageError("\n".join(lines))
    return changed


def render_job(job: Job) -> str:
    """Give the text of a resolved job file; `read_job` reads it back; pure."""
    values = job.model_dump(mode="json", exclude_none=True)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    return f"# Written at submit; never changed after it.\n{text}"


def _copy(values: Mapping[str, object]) -> dict[str, object]:
    return {
        key: _copy(value) if isinstance(value, dict) else value
        for key, value in values.items()
    }


def _put(values: dict[str, object], override: Override) -> None:
    *parents, last = (str(part) for part in override.key)
    for parent in parents:
        inner = values.setdefault(parent, {})
        if not isinstance(inner, dict):
            message = (
                f"{override.said!r}: {parent} holds {inner!r}, not keys; "
                f"override {parent} itself"
            )
            raise UsageError(message)
        values = inner
    values[last] = override.value


def _lay_template_below(
    values: dict[str, object], source: Source, beside: Path
) -> None:
    section = values.get("slurm")
    chosen = section.get("template") if isinstance(section, dict) else None
    if not isinstance(chosen, str):
        return
    try:
        preset = find_template(chosen, beside)
    except JobFileError as error:
        message = f"{source.at(('slurm', 'template'))}: {error}"
        raise JobFileError(message) from error
    for name, where, preset_values in template_sections(preset):
        fields = _fields_at((name,))
        for key in preset_values:
            if key not in fields:
                message = f"{preset.at((*where, key))}: {_unknown(key, fields)}"
                raise JobFileError(message)
        own = values.get(name, {})
        if isinstance(own, dict):
            values[name] = {**preset_values, **own}
    section = values["slurm"]
    values["slurm"] = {**section, "template": None} if isinstance(section, dict) else {}


def _explain(
    errors: Iterable[ErrorDetails], source: Source, typed: Mapping[KeyPath, str]
) -> str:
    return "\n".join(
        _line(tuple(error["loc"]), _finding(error), source, typed) for error in errors
    )


def _line(
    key: KeyPath, finding: str, source: Source, typed: Mapping[KeyPath, str]
) -> str:
    said = next(
        (typed[key[:n]] for n in range(len(key), 0, -1) if key[:n] in typed), None
    )
    where = source.at(key) if said is None else f"command line, {said}"
    return f"{where}: {'.'.join(map(str, key)) or 'job file'}: {finding}"


def _finding(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind == "extra_forbidden":
        return _unknown(str(error["loc"][-1]), _fields_at(error["loc"][:-1]))
    if kind == "missing":
        return "missing; add it"
    message = error["msg"]
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        message = "letters, digits, dots, dashes and underscores, no other characters"
    expected = message.removeprefix("Input should be ").removeprefix("Input should ")
    return f"found {error['input']!r}, expected {expected}"


def _fields_at(key: Iterable[str | int]) -> list[str]:
    model: object = Job
    for part in key:
        fields = getattr(model, "model_fields", {})
        model = fields[part].annotation if part in fields else None
    return list(getattr(model, "model_fields", {}))


def _unknown(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return f"unknown key; {hint}"


def runs_root(job: Job, given: str | None, environ: Mapping[str, str]) -> Path:
    """Give the directory of all runs: `--runs`, `$CLUSTERDDP_RUNS`, else the file's.

    Relative paths count from the working directory.
    """
    root = given or environ.get("CLUSTERDDP_RUNS") or job.runs
    return Path(os.path.abspath(Path(root).expanduser()))  # noqa: PTH100 - keeps links
