"""Reading YAML: safe, with the line of every key, and without YAML 1.1's surprises.

`1e-3` is a number (PyYAML alone gives a string), `1:30:00` is text (PyYAML alone
gives 5400), `no` and `on` are text, and a key that stands twice is an error.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from clusterddp.errors import JobFileError

__all__ = ["KeyPath", "Source", "parse_value", "read_source"]

KeyPath = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalar rules of YAML 1.2's core schema."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, form)
        for tag, form in resolvers
        if tag.rpartition(":")[2] not in ("int", "float", "bool", "timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?\d+"), [*"-+0123456789"]
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|[-+]?\.(?:inf|Inf|INF)"
        r"|\.(?:nan|NaN|NAN)"
    ),
    [*"-+.0123456789"],
)
for _resolvers in _Loader.yaml_implicit_resolvers.values():
    # fullmatch semantics: PyYAML calls match() and expects anchored forms.
    _resolvers[:] = [
        (tag, re.compile(rf"(?:{form.pattern})\Z", form.flags & ~re.UNICODE))
        for tag, form in _resolvers
    ]


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


@dataclass(frozen=True)
class Source:
    """A YAML file as read: its values, and the line of each key.

    Attributes:
        path: the file, as the user wrote it.
        values: what stands in it.
        lines: key path -> line, counted from 1.
    """

    path: str
    values: dict[str, object]
    lines: dict[KeyPath, int]

    def at(self, key: KeyPath) -> str:
        """Give `file:line` of a key, or of the nearest parent that stands there."""
        while key and key not in self.lines:
            key = key[:-1]
        return f"{self.path}:{self.lines.get(key, 1)}"


def read_source(path: Path) -> Source:
    """Read a YAML file whose top is a mapping.

    Raises:
        JobFileError: it is not there, not readable, not YAML, or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        message = f"{path}: cannot be read: {reason}; give the path of a job file"
        raise JobFileError(message) from error
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines: dict[KeyPath, int] = {}
        if node is not None:
            _note_lines(node, (), lines, str(path))
        values = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise JobFileError(_explain(path, error)) from error
    if not isinstance(values, dict):
        message = (
            f"{path}:1: found {'nothing' if values is None else type(values).__name__}"
            ", expected keys and values like `name: digits`"
        )
        raise JobFileError(message)
    return Source(str(path), values, lines)


def parse_value(text: str) -> object:
    """Read one YAML value, as it stands behind `key=` on a command line.

    Raises:
        ValueError: the text is not YAML.
    """
    try:
        value: object = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        message = f"{text!r} is not a YAML value"
        raise ValueError(message) from error
    return value


def _note_lines(
    node: yaml.Node, key: KeyPath, lines: dict[KeyPath, int], path: str
) -> None:
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            lines[(*key, index)] = child.start_mark.line + 1
            _note_lines(child, (*key, index), lines, path)
    if isinstance(node, yaml.MappingNode):
        for name, child in node.value:
            inner = (*key, str(name.value))
            line = name.start_mark.line + 1
            if inner in lines:
                message = (
                    f"{path}:{line}: {'.'.join(map(str, inner))}: stands here and in "
                    f"line {lines[inner]}; keep one of the two"
                )
                raise JobFileError(message)
            lines[inner] = line
            _note_lines(child, inner, lines, path)


def _explain(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    line = 1 if mark is None else mark.line + 1
    problem = getattr(error, "problem", None) or str(error)
    return f"{path}:{line}: not YAML: {problem}; check the indentation and quotes there"
