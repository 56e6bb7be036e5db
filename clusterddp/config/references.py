"""What a job file names: an experiment or a script, found before anything is sent."""

import ast
import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from clusterddp.config.schema import Job
from clusterddp.config.yaml import KeyPath

__all__ = ["Reference", "parse_reference", "resolve_references"]

Finding = tuple[KeyPath, str]


@dataclass(frozen=True)
class Reference:
    """A Python object by name.

    Attributes:
        target: a file's path, or a dotted module name.
        attribute: the function in it; empty for a script.
        is_file: whether `target` is a path.
    """

    target: str
    attribute: str
    is_file: bool


def parse_reference(text: str) -> Reference:
    """Split `path/to/file.py:function`, `package.module:function`, or a script.

    Raises:
        ValueError: a function is named but empty, or the target is.
    """
    target, colon, attribute = text.partition(":")
    if not target or (colon and not attribute):
        message = (
            f"found {text!r}, expected package.module:function or "
            "path/to/file.py:function"
        )
        raise ValueError(message)
    return Reference(target, attribute, target.endswith(".py"))


def resolve_references(job: Job, beside: Path) -> tuple[Job, list[Finding]]:
    """Make the paths of a job absolute and look whether they lead anywhere.

    Args:
        job: the job as read.
        beside: the directory of the job file.

    Returns:
        The job with absolute paths, and what was found wrong.
    """
    if (job.experiment is None) == (job.script is None):
        found = "both" if job.experiment else "neither"
        text = (
            f"found {found} of experiment and script, expected one of the two: name "
            "your function, as in experiment: train.py:build, or your script: train.py"
        )
        return job, [(("experiment",), text)]
    key = "experiment" if job.experiment is not None else "script"
    text = job.experiment or job.script or ""
    try:
        reference = parse_reference(text)
    except ValueError as error:
        return job, [((key,), str(error))]
    if key == "experiment" and not reference.attribute:
        message = f"found {text!r}, expected a function behind it, as in {text}:build"
        return job, [((key,), message)]
    if key == "script" and reference.attribute:
        message = f"found {text!r}, expected a file or a module without a function"
        return job, [((key,), message)]
    if not reference.is_file:
        return job, []
    path = Path(os.path.normpath(beside / reference.target))
    absolute = f"{path}:{reference.attribute}" if reference.attribute else str(path)
    wrong = _look_into(path, reference.attribute)
    return job.model_copy(update={key: absolute}), [((key,), text) for text in wrong]


def _look_into(path: Path, attribute: str) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except OSError as error:
        return [f"{path}: {error.strerror}; paths count from the job file's directory"]
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        return [f"{path}:{line}: not Python: {error.args[0]}; mend it first"]
    names = set(_top_level_names(tree))
    if not attribute or attribute in names or "*" in names:
        return []
    near = difflib.get_close_matches(attribute, names, n=1)
    known = ", ".join(sorted(names)) or "nothing"
    hint = f"did you mean {near[0]}?" if near else f"it defines {known}"
    return [f"{path} defines no {attribute}; {hint}"]


def _top_level_names(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.alias):
            names.append((node.asname or node.name).partition(".")[0])
    return names
