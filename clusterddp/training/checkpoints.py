"""Checkpoints: all ranks save one state together, and resume from one together."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clusterddp.dist import World, broadcast_json, gather_json
from clusterddp.errors import CheckpointError
from clusterddp.files import read_json
from clusterddp.runs.directory import RunDirectory
from clusterddp.training import checkpoint_files as disk
from clusterddp.training.checkpoint_choice import check_fence, choose

__all__ = ["Checkpoints", "Loaded", "Saved", "Snapshot"]

_RANKS = "ranks.json"
_SHARED = "state.json"
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Snapshot:
    """What one checkpoint holds, apart from what each rank adds.

    Attributes:
        step: finished steps.
        states: state dicts by file name (`model.pt`, ...); references, not copies,
            so training must wait until they are written.
        shared: JSON that is equal on all ranks: where the training stands.
    """

    step: int
    states: Mapping[str, Mapping[str, Any]]
    shared: Mapping[str, object]


@dataclass(frozen=True)
class Saved:
    """Rank 0's word on a save, equal on all ranks.

    Attributes:
        error: why it is not durable; None when it is.
        stop: whether rank 0 knew of a stop request: all leave here.
    """

    error: str | None
    stop: bool


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


def _complain(message: str) -> None:
    print(message, file=sys.stderr, flush=True)  # noqa: T201


class Checkpoints:
    """The checkpoints of a run; rank 0 alone writes, all ranks read.

    Nothing is unpickled: tensors are read with `weights_only`, the rest is JSON.
    """

    def __init__(
        self,
        run: RunDirectory,
        world: World,
        *,
        attempt: int,
        keep: int = 3,
        report: Callable[[str], None] = _complain,
    ) -> None:
        """Look at nothing yet.

        Args:
            run: the run whose `checkpoints/` these are.
            world: this rank among the others.
            attempt: the number of this start of the ranks.
            keep: how many checkpoints stay.
            report: told on rank 0 what was set aside and what could not be deleted.
        """
        self._run = run
        self._world = world
        self._attempt = attempt
        self._keep = keep
        self._report = report
        self._tried = False

    def save(
        self,
        snapshot: Snapshot,
        local: Mapping[str, object],
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> Saved:
        """Write a checkpoint; all ranks must call it, and leave when it is durable.

        Args:
            snapshot: the state; only rank 0's is written.
            local: JSON that this rank adds (random streams, sums).
            stop: asked on rank 0 after the write; its answer goes to all.

        Returns:
            The same on all ranks. A full disk is reported there, not raised: the
            older checkpoints are intact, and training may go on.

        Raises:
            CheckpointError: on all ranks: this attempt has been replaced by a newer
                one, or the state can be written but not be read again.
        """
        ranks = gather_json(dict(local))
        word: dict[str, object] | None = None
        if ranks is not None:
            fatal, error = self._try_to_write(snapshot, ranks)
            word = {"error": error, "fatal": fatal, "stop": stop()}
        told: Any = broadcast_json(word)
        if told["fatal"]:
            raise CheckpointError(told["error"])
        return Saved(error=told["error"], stop=told["stop"])

    def load(self) -> Loaded | None:
        """Read the newest checkpoint that verifies; all ranks must call it.

        Rank 0 chooses; every rank reads and confirms the same one. Bad ones are
        set aside, and what dead attempts left half written is removed.

        Returns:
            None on all ranks if there is none.

        Raises:
            CheckpointError: on all ranks: one of them could not read it.
        """
        choice: Any = broadcast_json(self._choose() if self._world.rank == 0 else None)
        if choice["error"] is not None:
            raise CheckpointError(choice["error"])
        if choice["name"] is None:
            return None
        path = self._run.checkpoints / choice["name"]
        loaded, error = _read(path, choice["crc32"])
        answers: Any = gather_json(error)
        wrong: list[str] = broadcast_json(
            [f"rank {r}: {e}" for r, e in enumerate(answers or []) if e is not None]
        )
        if wrong or loaded is None:
            raise CheckpointError(
                f"{path}: not all ranks could read it: {'; '.join(wrong)}; all nodes "
                "must see the run directory"
            )
        return loaded

    def _try_to_write(
        self, snapshot: Snapshot, ranks: Sequence[object]
    ) -> tuple[bool, str | None]:
        name = disk.checkpoint_name(snapshot.step)
        target = self._run.checkpoints / name
        source = target.with_name(f"{name}.tmp-{self._attempt}")
        try:
            self._write(snapshot, ranks, source)
            check_fence(self._run, self._attempt)
            disk.publish(source, target, self._attempt)
        except CheckpointError as error:
            shutil.rmtree(source, ignore_errors=True)
            return True, str(error)
        except OSError as error:
            shutil.rmtree(source, ignore_errors=True)
            return False, f"{target}: not saved: {error.strerror or error}"
        self._prune()
        return False, None

    def _write(self, snapshot: Snapshot, ranks: Sequence[object], source: Path) -> None:
        check_fence(self._run, self._attempt)
        shutil.rmtree(source, ignore_errors=True)
        contents = {**snapshot.states, _SHARED: snapshot.shared, _RANKS: ranks}
        fields = {
            "step": snapshot.step,
            "attempt": self._attempt,
            "world_size": self._world.world_size,
            "torch": torch.__version__,
            "time": round(time.time(), 3),
        }
        disk.write_files(source, contents, fields)
        if not self._tried:
            _try_to_read(source, list(snapshot.states))
            self._tried = True

    def _prune(self) -> None:
        for path in disk.list_checkpoints(self._run.checkpoints)[self._keep :]:
            try:
                disk.discard(path, self._attempt)
            except OSError as error:
                self._report(f"{path}: not deleted: {error.strerror}")

    def _choose(self) -> dict[str, object]:
        try:
            chosen = choose(self._run, self._attempt, self._report)
        except OSError as error:
            return {"error": f"{self._run.checkpoints}: {error.strerror or error}"}
        if chosen is None:
            return {"error": None, "name": None}
        return {"error": None, "name": chosen[0], "crc32": chosen[1]["crc32"]}


def _try_to_read(path: Path, names: Sequence[str]) -> None:
    """Find out now, not after the stop, that a state holds more than tensors.

    Raises:
        CheckpointError: torch.load(weights_only=True) refuses a file.
    """
    for name in names:
        try:
            torch.load(path / name, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:
            raise CheckpointError(
                f"{path / name}: written, but cannot be read again: the state dict "
                f"holds something else than tensors and plain values ({error})"
            ) from error


def _read(path: Path, crc: int) -> tuple[Loaded | None, str | None]:
    try:
        manifest = _wait_for_manifest(path)
        if manifest["crc32"] != crc:
            return None, f"{path}: manifest {manifest['crc32']}, rank 0 has {crc}"
        states = {
            name: torch.load(path / name, map_location="cpu", weights_only=True)
            for name in manifest["files"]
            if not name.endswith(".json")
        }
        shared: Any = read_json(path / _SHARED)
        ranks = _read_ranks(path / _RANKS)
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
        manifest: dict[str, Any] | None = read_json(path / disk.MANIFEST)
        if manifest is not None:
            return manifest
        if time.monotonic() > deadline:
            raise CheckpointError(f"{path / disk.MANIFEST}: not visible here")
        time.sleep(0.2)
