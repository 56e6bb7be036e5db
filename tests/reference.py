"""`python -m tests.reference`: writes the pages that are made from the code.

docs/job-file.md and docs/job.schema.json come from the model of the job file,
docs/cli.md from the verbs' parsers. A test compares them with the code.
"""

import argparse
import json
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from clusterddp.cli import VERBS
from clusterddp.completion import parser_of
from clusterddp.config.schema import Best, Every, Job
from tests.runs import ROOT

DOCS = ROOT / "docs"
_HEAD = """# The job file

Made from the model by `python -m tests.reference`; do not edit it here.

Paths count from the job file's directory, `runs:` from the working directory. Later
wins: template, file, `key=value`, flags. Editors that know YAML schemas complete and
check a file whose first line is
`# yaml-language-server: $schema=PATH/docs/job.schema.json`.

A *duration* is written `90s`, `30m`, `2h`, `1h30m` or `1-12:00:00`. *-* means: not
given. Sections may be left out.
"""
_TAIL = """
## More about some keys

**experiment, script.** One of the two. With git the snapshot holds the tracked files as
they are at submit, without git the .py files and packages beside the job file; the
experiment's own file always; `code.include` adds untracked ones (patterns from the
checkout's root).

**slurm.template.** A preset of the sections `slurm` and `dist_params`: one that ships
(`cpu`, `gpu`, `preemptible`, `apptainer`, `pyxis`), one in a directory of
`$CLUSTERDDP_TEMPLATES` or in `~/.config/clusterddp/templates`, or a path ending in
`.yaml`. The file's own keys win.

**slurm.setup, slurm.setup_node.** `setup` stands in the batch script, before the
supervisor (`module load`). `setup_node` is run by bash in the first task of each node,
once per attempt, while the others wait: staging data to local disks. What it exports
does not reach the ranks; `slurm.env` does.

**slurm.python.** A word or a list, such as `[apptainer, exec, x.sif, python]`; each
word before it must exec the next, so that the ranks get Slurm's signals.

**slurm.extra.** By sbatch's long names: `{mail-type: END, exclusive: true}`. Options
that the supervisor's life depends on are refused, and so are line breaks.

**The shell's variables.** `SBATCH_*` whose option the script writes, `RANK` and the
like, and everything that belongs to a surrounding job are kept out of the job, and
named when that happens.
"""


def render_job_file() -> str:
    """Give docs/job-file.md; pure."""
    parts = [_HEAD, *(_section((), Job)), _TAIL]
    return "\n".join(parts)


def _section(where: tuple[str, ...], model: type[BaseModel]) -> Iterator[str]:
    title = f"`{'.'.join(where)}`" if where else "Top level"
    doc = (model.__doc__ or "").splitlines()[0]
    yield f"## {title}\n\n{doc}\n\n| key | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    defaults = _defaults(model)
    inner = []
    for name, field in model.model_fields.items():
        yield _row(name, field, defaults.get(name))
        section = _model_of(field.annotation)
        if section is not None:
            inner.append(((*where, name), section))
    yield ""
    for path, section in inner:
        yield from _section(path, section)


def _row(name: str, field: FieldInfo, default: object) -> str:
    section = _model_of(field.annotation)
    kind = "section" if section else _kind(field)
    shown = (
        "required"
        if field.is_required()
        else "see below"
        if section
        else _text(default)
    )
    if section is not None and default is None:
        shown = "-"
    meaning = (field.description or "").replace("|", "\\|")
    return f"| `{name}` | {kind} | {shown} | {meaning} |"


def _model_of(annotation: object) -> type[BaseModel] | None:
    for one in (annotation, *typing.get_args(annotation)):
        is_model = isinstance(one, type) and issubclass(one, BaseModel)
        if is_model and one not in (Every, Best):
            return typing.cast("type[BaseModel]", one)
    return None


def _defaults(model: type[BaseModel]) -> dict[str, object]:
    """Give the defaults as they would stand in a file."""
    needed = {
        name: "x" for name, field in model.model_fields.items() if field.is_required()
    }
    found = model.model_validate(needed).model_dump(mode="json")
    return {name: value for name, value in found.items() if name not in needed}


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, str) and value.endswith("s") and value[:-1].isdigit():
        return f"`{_brief(int(value[:-1]))}`"
    if isinstance(value, list) and len(value) == 1:
        return f"`{str(value[0]).replace('1 epochs', '1 epoch')}`"
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"


def _brief(seconds: int) -> str:
    for size, unit in ((3600, "h"), (60, "m")):
        if seconds >= 2 * size - size and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _kind(field: FieldInfo) -> str:
    holder = type("Holder", (BaseModel,), {"__annotations__": {"key": _whole(field)}})
    schema = holder.model_json_schema(mode="validation")  # type: ignore[attr-defined]
    names = [_name(one) for one in _options(schema["properties"]["key"])]
    if _is_duration(field):
        names = ["duration" if name == "text" else name for name in names]
    return " or ".join(dict.fromkeys(name for name in names if name != "null"))


def _whole(field: FieldInfo) -> object:
    annotation: object = field.annotation
    for one in field.metadata:
        annotation = typing.Annotated[annotation, one]
    return annotation


def _options(schema: Mapping[str, object]) -> list[dict[str, object]]:
    found = schema.get("anyOf", [schema])
    assert isinstance(found, list)
    return found


def _name(schema: dict[str, object]) -> str:
    if "enum" in schema:
        values = typing.cast("list[object]", schema["enum"])
        return ", ".join(f"`{value}`" for value in values)
    if "const" in schema:
        return f"`{schema['const']}`"
    kinds = {"string": "text", "array": "list of texts", "object": "keys and values"}
    kind = str(schema.get("type"))
    name = kinds.get(kind, kind)
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    sign = "≥" if "minimum" in schema else ">"
    return name if low is None else f"{name} {sign} {low:g}"


def _is_duration(field: FieldInfo) -> bool:
    text = f"{field.annotation} {field.metadata}"
    return "_duration" in text


def render_schema() -> str:
    """Give docs/job.schema.json; pure."""
    schema = Job.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "clusterddp job file"
    _set_defaults(schema, _defaults(Job))
    for name, definition in schema["$defs"].items():
        model = _models()[name]
        _set_defaults(definition, {} if model in (Every, Best) else _defaults(model))
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _set_defaults(schema: dict[str, typing.Any], defaults: dict[str, object]) -> None:
    """Defaults as they stand in a file: `1h`, not 3600.0; sections have none."""
    for name, value in schema.get("properties", {}).items():
        if "default" in value:
            del value["default"]
        if "$ref" not in value and defaults.get(name) is not None:
            value["default"] = defaults[name]


def _models() -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {"Every": Every, "Best": Best}
    todo: list[type[BaseModel]] = [Job]
    while todo:
        for field in todo.pop().model_fields.values():
            model = _model_of(field.annotation)
            if model is not None and model.__name__ not in found:
                found[model.__name__] = model
                todo.append(model)
    return found


def render_cli() -> str:
    """Give docs/cli.md from the parsers' own values, not from their layout."""
    parts = [
        "# The command line\n\nMade from the parsers by `python -m tests.reference`; "
        "do not edit it here.\n\n`clusterddp VERB` is `python -m clusterddp.VERB`. "
        "stdout "
        "is data, stderr is talk.\n",
    ]
    parts += [_verb(verb, text) for verb, text in VERBS.items()]
    return "\n".join(parts)


def _verb(verb: str, text: str) -> str:
    parser = parser_of(verb)
    lines = [f"## {verb}\n", f"{text[0].upper()}{text[1:]}.\n"]
    lines += [
        f"{_plain(parser.description)}\n",
        "| argument | meaning |",
        "| --- | --- |",
    ]
    lines += [
        _action(action)
        for action in parser._actions  # noqa: SLF001 - argparse has no other way
        if not isinstance(action, argparse._HelpAction)  # noqa: SLF001
    ]
    epilog = (parser.epilog or "").strip()
    lines.append(f"\n```text\n{epilog}\n```\n" if epilog else "")
    return "\n".join(lines)


def _plain(text: str | None) -> str:
    return " ".join((text or "").split()) or "-"


def _action(action: argparse.Action) -> str:
    value = action.metavar or action.dest
    if action.choices:
        value = "|".join(map(str, action.choices))
    shown = value if isinstance(value, str) else " ".join(value)
    names = ", ".join(action.option_strings)
    words = names if action.nargs == 0 else f"{names} {shown}".strip()
    if not action.option_strings:
        words = f"[{shown} ...]" if action.nargs == "*" else shown
    escaped = words.replace("|", "\\|")
    return f"| `{escaped}` | {_plain(action.help)} |"


def pages() -> dict[Path, str]:
    """Give every page that is made, by its path."""
    return {
        DOCS / "job-file.md": render_job_file(),
        DOCS / "job.schema.json": render_schema(),
        DOCS / "cli.md": render_cli(),
    }


if __name__ == "__main__":
    for _path, _page in pages().items():
        _path.write_text(_page)
        print(_path.relative_to(ROOT))  # noqa: T201
