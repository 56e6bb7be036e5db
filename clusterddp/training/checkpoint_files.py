"""Writing checkpoints: aside, every file synced, the manifest last, then renamed.

How one is named and verified is said in `clusterddp.runs.published`.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from clusterddp.files import fsync_directory
from clusterddp.runs.published import (
    FORMAT,
    MANIFEST,
    checkpoint_name,
    list_checkpoints,
    manifest_sum,
    verify,
)

__all__ = [
    "MANIFEST",
    "checkpoint_name",
    "discard",
    "list_checkpoints",
    "publish",
    "remove_leftovers",
    "set_aside",
    "verify",
    "write_files",
]

_LEFTOVER = re.compile(r"step-\d{8,}\.(?:tmp|del)-(\d+)")


def write_files(
    target: Path, contents: Mapping[str, object], fields: Mapping[str, object]
) -> int:
    """Fill a fresh directory with files and, last, its manifest; all durable.

    Args:
        target: the directory; it must not exist.
        contents: by file name; `.json` is written as JSON, the rest by torch.save.
        fields: what else the manifest says: step, attempt, world size, versions.

    Returns:
        The bytes written.

    Raises:
        OSError: the disk is full, read-only or failing.
    """
    target.mkdir(parents=True)
    sums: dict[str, dict[str, int]] = {}
    for name, value in contents.items():
        sums[name] = _write_file(target / name, _dumper(name, value))
    manifest: dict[str, object] = {"format": FORMAT, **fields, "files": sums}
    manifest["crc32"] = manifest_sum(manifest)
    own = _write_file(target / MANIFEST, _dumper(MANIFEST, manifest))
    fsync_directory(target)
    return own["bytes"] + sum(each["bytes"] for each in sums.values())


def publish(source: Path, target: Path, attempt: int) -> None:
    """Give a written directory its final name; durable when this returns.

    An older checkpoint of the same step makes room first. A crash between the two
    renames leaves the step before as the newest one: work is lost, not the run. A
    failure there gives the older one its name back.
    """
    old = target.with_name(f"{target.name}.del-{attempt}")
    had_older = target.exists()
    if had_older:
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    try:
        source.rename(target)
    except OSError:
        if had_older:
            old.rename(target)
        raise
    fsync_directory(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def set_aside(path: Path, reason: str) -> Path:
    """Rename a checkpoint so that nobody resumes from it, and keep it to look at."""
    target = path.with_name(f"{path.name}.{reason}")
    count = 1
    while target.exists():
        count += 1
        target = path.with_name(f"{path.name}.{reason}-{count}")
    path.rename(target)
    fsync_directory(path.parent)
    return target


def discard(path: Path, attempt: int) -> None:
    """Delete a checkpoint; half deleted it must not look whole, so rename first."""
    doomed = path.with_name(f"{path.name}.del-{attempt}")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    fsync_directory(path.parent)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(parent: Path, attempt: int) -> list[str]:
    """Remove what this and earlier attempts left half written or half deleted."""
    removed: list[str] = []
    with suppress(FileNotFoundError):
        for path in list(parent.iterdir()):
            match = _LEFTOVER.fullmatch(path.name)
            if match is not None and int(match[1]) <= attempt:
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name)
    return removed


class _SummingFile:
    """A binary file that knows the CRC-32 of what was meant to be written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.crc = 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.crc = zlib.crc32(data, self.crc)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error  # torch turns it into something else
            raise

    def flush(self) -> None:
        self._file.flush()


def _dumper(name: str, value: object) -> Callable[[Any], None]:
    if name.endswith(".json"):
        data = (json.dumps(value) + "\n").encode()
        return lambda file: file.write(data)
    return lambda file: torch.save(value, file)


def _write_file(path: Path, dump: Callable[[Any], None]) -> dict[str, int]:
    with path.open("xb") as file:
        summing = _SummingFile(file)
        try:
            dump(summing)
        except Exception:
            if summing.error is not None:
                raise summing.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
        return {"bytes": file.tell(), "crc32": summing.crc}
