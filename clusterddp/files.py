"""Durable file operations: what returns from here survives a power cut.

The order is the one that POSIX asks for: write a temporary file, fsync it,
rename it over the target, fsync the directory (see rename(2), fsync(2)).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = [
    "fsync_directory",
    "make_private_directory",
    "read_json",
    "write_atomic",
    "write_json",
]


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace a file whole: readers see the old content or the new, never a part.

    Raises:
        OSError: the disk is full, read-only or failing; the old file is intact.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def write_json(path: Path, value: Mapping[str, object], *, mode: int = 0o644) -> None:
    """Replace a JSON file whole and durably."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    write_atomic(path, (text + "\n").encode(), mode=mode)


def read_json(path: Path) -> dict[str, object] | None:
    """Give a JSON object from a file; None if it is absent or not (yet) an object."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def make_private_directory(path: Path) -> None:
    """Make a directory, parents included, that only this user may enter (0700)."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
