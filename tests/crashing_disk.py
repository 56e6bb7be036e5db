"""A disk that loses what was not synced: recorded calls, replayed and cut off.

A file keeps what it held at its last fsync; whether later writes arrive, in part, as
zeros or not at all, is up to chance. A directory keeps the names it had at its last
fsync, and any number of the changes since, in their order.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

from tests.traced import Call


@dataclass
class _File:
    data: bytes = b""
    synced: bytes = b""


@dataclass
class _Directory:
    entries: "dict[str, _File | _Directory]" = field(default_factory=dict)
    synced: "dict[str, _File | _Directory]" = field(default_factory=dict)
    states: "list[dict[str, _File | _Directory]]" = field(default_factory=list)

    def changed(self) -> None:
        self.states.append(dict(self.entries))


class CrashingDisk:
    """Replays calls below one directory, which is durable as it is found."""

    def __init__(self, root: Path) -> None:
        """Take in what is there."""
        self._root = root
        self._top = _read(root)

    def apply(self, call: Call) -> None:
        """Do what one call did."""
        action = getattr(self, f"_{call.name}", None)
        if action is not None:
            action(call)

    def crash(self, target: Path, source: random.Random | None) -> None:
        """Write down what is left; all that is not synced is lost without a source."""
        _write(self._top, target, source)

    def _find(self, path: str) -> tuple[_Directory, str]:
        *parents, name = Path(path).relative_to(self._root).parts
        directory = self._top
        for part in parents:
            found = directory.entries[part]
            assert isinstance(found, _Directory)
            directory = found
        return directory, name

    def _mkdir(self, call: Call) -> None:
        directory, name = self._find(call.path)
        directory.entries[name] = _Directory()
        directory.changed()

    def _openat(self, call: Call) -> None:
        if "O_CREAT" in call.flags:
            directory, name = self._find(call.path)
            assert name not in directory.entries, "a file is written over"
            directory.entries[name] = _File()
            directory.changed()

    def _write(self, call: Call) -> None:
        directory, name = self._find(call.path)
        file = directory.entries[name]
        assert isinstance(file, _File)
        file.data += call.data

    def _fsync(self, call: Call) -> None:
        if Path(call.path) == self._root:
            node: _File | _Directory = self._top
        else:
            directory, name = self._find(call.path)
            node = directory.entries[name]
        if isinstance(node, _File):
            node.synced = node.data
        else:
            node.synced, node.states = dict(node.entries), []

    def _rename(self, call: Call) -> None:
        old, old_name = self._find(call.path)
        new, new_name = self._find(call.data.decode())
        assert old is new, "a rename between directories is not modelled"
        new.entries[new_name] = old.entries.pop(old_name)
        new.changed()

    def _unlink(self, call: Call) -> None:
        directory, name = self._find(call.path)
        del directory.entries[name]
        directory.changed()

    _unlinkat = _rmdir = _unlink


def _read(path: Path) -> _Directory:
    directory = _Directory()
    for child in path.iterdir():
        data = b"" if child.is_dir() else child.read_bytes()
        node = _read(child) if child.is_dir() else _File(data, data)
        directory.entries[child.name] = node
    directory.synced = dict(directory.entries)
    return directory


def _write(node: _Directory, target: Path, source: random.Random | None) -> None:
    target.mkdir()
    states = [node.synced, *node.states]
    chosen = states[0] if source is None else source.choice(states)
    for name, child in chosen.items():
        if isinstance(child, _Directory):
            _write(child, target / name, source)
        else:
            (target / name).write_bytes(_left(child, source))


def _left(file: _File, source: random.Random | None) -> bytes:
    if source is None or file.data == file.synced:
        return file.synced
    cut = source.randrange(len(file.data) + 1)
    zeros = bytes(len(file.data))
    return source.choice([file.synced, file.data, file.data[:cut], zeros])
