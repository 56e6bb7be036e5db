"""Checkpoints on disk: written aside, verified by a manifest, published by a rename.

    checkpoints/step-00001200/                  whole, durable
    checkpoints/step-00001200.tmp-3/            being written by attempt 3
    checkpoints/step-00001200.bad               did not verify; kept to look at
    checkpoints/step-00001200.stale             of an attempt that had been replaced
    checkpoints/step-00001200.del-3             being deleted

A manifest holds the size and CRC-32 of every file and of itself, and is written
last. torch.load alone notices neither flipped bits nor zeroed blocks
(pytorch#126952).
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

from clusterddp.errors import CheckpointError
from clusterddp.files import fsync_directory, read_json

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

MANIFEST = "manifest.json"
_FORMAT = 1
_WHOLE = re.compile(r"step-\d{8,}")
_LEFTOVER = re.compile(r"step-\d{8,}\.(?:tmp|del)-(\d+)")
_BLOCK = 1 << 22


def checkpoint_name(step: int) -> str:
    """Give the directory's name, which sorts by step."""
    return f"step-{step:08d}"


def list_checkpoints(parent: Path) -> list[Path]:
    """Give the published checkpoints, the newest first; none if there is no parent."""
    try:
        names = [path.name for path in parent.iterdir()]
    except FileNotFoundError:
        return []
    whole = [name for name in names if _WHOLE.fullmatch(name)]
    return [parent / n for n in sorted(whole, key=lambda n: int(n[5:]), reverse=True)]


def write_files(
    target: Path, contents: Mapping[str, object], fields: Mapping[str, object]
) -> None:
    """Fill a fresh directory with files and, last, its manifest; all durable.

    Args:
        target: the directory; it must not exist.
        contents: by file name; `.json` is written as JSON, the rest by torch.save.
        fields: what else the manifest says: step, attempt, world size, versions.

    Raises:
        OSError: the disk is full, read-only or failing.
    """
    target.mkdir(parents=True)
    sums: dict[str, object] = {}
    for name, value in contents.items():
        sums[name] = _write_file(target / name, _dumper(name, value))
    manifest: dict[str, object] = {"format": _FORMAT, **fields, "files": sums}
    manifest["crc32"] = _own_sum(manifest)
    _write_file(target / MANIFEST, _dumper(MANIFEST, manifest))
    fsync_directory(target)


def publish(source: Path, target: Path, attempt: int) -> None:
    """Give a written directory its final name; durable when this returns.

    An older checkpoint of the same step makes room first. A crash between the two
    renames leaves the step before as the newest one: work is lost, not the run.
    """
    old = target.with_name(f"{target.name}.del-{attempt}")
    if target.exists():
        target.rename(old)
    source.rename(target)
    fsync_directory(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def verify(path: Path) -> dict[str, Any]:
    """Read every byte of a checkpoint; give its manifest.

    Raises:
        CheckpointError: something is missing, cut or changed; the message says what.
    """
    manifest: dict[str, Any] | None = read_json(path / MANIFEST)
    if manifest is None:
        raise CheckpointError(f"{path}: no readable {MANIFEST}")
    if manifest.get("crc32") != _own_sum(manifest):
        raise CheckpointError(f"{path / MANIFEST}: its own checksum differs")
    if manifest.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path / MANIFEST}: format {manifest.get('format')}, this version reads "
            f"{_FORMAT}"
        )
    for name, expected in manifest["files"].items():
        _verify_file(path / name, expected)
    return manifest


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


def _verify_file(path: Path, expected: Mapping[str, int]) -> None:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            crc = 0
            while block := file.read(_BLOCK):
                crc = zlib.crc32(block, crc)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    if size != expected["bytes"]:
        raise CheckpointError(f"{path}: {size} bytes, expected {expected['bytes']}")
    if crc != expected["crc32"]:
        raise CheckpointError(
            f"{path}: checksum {crc:08x}, expected {expected['crc32']:08x}"
        )


def _own_sum(manifest: Mapping[str, object]) -> int:
    rest = {key: value for key, value in manifest.items() if key != "crc32"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())
