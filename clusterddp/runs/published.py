"""Published checkpoints of a run: which there are, and whether every byte is right.

    checkpoints/step-00001200/                  whole, durable
    checkpoints/step-00001200.tmp-3/            being written by attempt 3
    checkpoints/step-00001200.bad               did not verify; kept to look at
    checkpoints/step-00001200.stale             of an attempt that had been replaced
    checkpoints/step-00001200.del-3             being deleted

A manifest holds the size and CRC-32 of every file and of itself, and is written
last. torch.load alone notices neither flipped bits nor zeroed blocks
(pytorch#126952). Nothing here needs torch.
"""

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterddp.errors import CheckpointError
from clusterddp.files import read_json
from clusterddp.runs.checksums import sum_files

__all__ = [
    "FORMAT",
    "MANIFEST",
    "NewerFormatError",
    "checkpoint_name",
    "list_checkpoints",
    "manifest_sum",
    "step_of",
    "verify",
]

MANIFEST = "manifest.json"
FORMAT = 1
_WHOLE = re.compile(r"step-\d{8,}")
_PAGE = 4096


class NewerFormatError(CheckpointError):
    """A checkpoint that a newer version wrote: whole, but not for this one."""


def checkpoint_name(step: int) -> str:
    """Give the directory's name, which sorts by step."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Give the step that a checkpoint's directory is named after."""
    return int(path.name.split(".")[0].removeprefix("step-"))


def list_checkpoints(parent: Path) -> list[Path]:
    """Give the published checkpoints, the newest first; none if there is no parent."""
    try:
        names = [path.name for path in parent.iterdir()]
    except FileNotFoundError:
        return []
    whole = [parent / name for name in names if _WHOLE.fullmatch(name)]
    return sorted(whole, key=step_of, reverse=True)


def verify(path: Path) -> dict[str, Any]:
    """Read every byte of a checkpoint; give its manifest.

    Raises:
        NewerFormatError: it is whole, but a newer version's.
        CheckpointError: something is missing, cut or changed; the message says what.
    """
    manifest = _read_manifest(path)
    files: dict[str, Mapping[str, int]] = manifest["files"]
    found = sum_files([path / name for name in files])
    for name, expected in files.items():
        _check(path / name, found[path / name], expected)
    return manifest


def manifest_sum(manifest: Mapping[str, object]) -> int:
    """Give the CRC-32 that a manifest states of itself; pure."""
    rest = {key: value for key, value in manifest.items() if key != "crc32"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    manifest: dict[str, Any] | None = read_json(file)
    if manifest is None:
        raise CheckpointError(_say_what_is_there(path))
    if manifest.get("crc32") != manifest_sum(manifest):
        raise CheckpointError(
            f"{file}: its own checksum differs: it was changed, or clusterddp did not "
            "write it"
        )
    if manifest.get("format") != FORMAT:
        raise NewerFormatError(
            f"{file}: format {manifest.get('format')}, this version reads {FORMAT}; go "
            "on with the version of clusterddp that wrote it, or move it away to go on "
            "from the one before"
        )
    return manifest


def _say_what_is_there(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    if not names:
        return f"{path}: empty, expected {MANIFEST} and the files that it names"
    if MANIFEST in names:
        size = (path / MANIFEST).stat().st_size
        return f"{path / MANIFEST}: no JSON object in its {size} bytes"
    return (
        f"{path}: no {MANIFEST} beside {', '.join(names)}: half deleted, or not a "
        "checkpoint of clusterddp"
    )


def _check(
    path: Path, found: tuple[int, int] | OSError, expected: Mapping[str, int]
) -> None:
    if isinstance(found, FileNotFoundError):
        raise CheckpointError(
            f"{path}: missing, though the manifest names it: half deleted"
        ) from found
    if isinstance(found, OSError):
        raise CheckpointError(f"{path}: {found.strerror}") from found
    size, crc = found
    if size != expected["bytes"]:
        word = "truncated" if size < expected["bytes"] else "longer than written"
        raise CheckpointError(
            f"{path}: {word}: {size} bytes, expected {expected['bytes']}"
        )
    if crc != expected["crc32"]:
        raise CheckpointError(
            f"{path}: checksum {crc:08x}, expected {expected['crc32']:08x}: "
            f"{_describe_damage(path)}"
        )


def _describe_damage(path: Path) -> str:
    """Tell a lost write, which leaves pages of zeros, from changed bits."""
    offset, zeros = 0, bytes(_PAGE)
    with path.open("rb") as file:
        while page := file.read(_PAGE):
            if page == zeros:
                return f"zeros from byte {offset} on, as a lost write leaves them"
            offset += len(page)
    return "bits were changed"
