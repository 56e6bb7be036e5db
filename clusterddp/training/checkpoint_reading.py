"""Reading a checkpoint on every rank, when rank 0 has chosen and verified it."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clusterddp.errors import CheckpointError
from clusterddp.files import read_json
from clusterddp.runs.published import MANIFEST

__all__ = ["RANKS", "SHARED", "Loaded", "read_checkpoint"]

RANKS = "ranks.json"
SHARED = "state.json"
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Loaded:
    """A verified checkpoint, read.

    Attributes:
        path: the directory.
        step: finished steps.
        world_size: number of ranks that wrote it.
        states: as in the snapshot, tensors on the CPU.
        shared: as in the snapshot.
        ranks: what each rank added, in the order of ranks.
    """

    path: Path
    step: int
    world_size: int
    states: Mapping[str, Mapping[str, Any]]
    shared: Mapping[str, Any]
    ranks: Sequence[Mapping[str, Any]] = field(repr=False)


def read_checkpoint(path: Path, crc: int) -> tuple[Loaded | None, str | None]:
    """Give a checkpoint that rank 0 has verified, or why this rank cannot read it.

    Args:
        path: the directory.
        crc: what its manifest says of itself on rank 0.
    """
    try:
        manifest = _wait_for_manifest(path)
        if manifest["crc32"] != crc:
            return None, f"{path}: manifest {manifest['crc32']}, rank 0 has {crc}"
        states = {
            name: torch.load(path / name, map_location="cpu", weights_only=True)
            for name in manifest["files"]
            if not name.endswith(".json")
        }
        shared: Any = read_json(path / SHARED)
        ranks = _read_ranks(path / RANKS)
    except Exception as error:  # noqa: BLE001 - told to all ranks, which raise
        return None, f"{type(error).__name__}: {error}"
    step, world_size = manifest["step"], manifest["world_size"]
    return Loaded(path, step, world_size, states, shared, ranks), None


def _read_ranks(path: Path) -> list[dict[str, Any]]:
    ranks: list[dict[str, Any]] = json.loads(path.read_bytes())
    return ranks


def _wait_for_manifest(path: Path) -> dict[str, Any]:
    # NFS clients may see a fresh directory late (nfs(5), attribute caching).
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        manifest: dict[str, Any] | None = read_json(path / MANIFEST)
        if manifest is not None:
            return manifest
        if time.monotonic() > deadline:
            raise CheckpointError(f"{path / MANIFEST}: not visible here")
        time.sleep(0.2)
