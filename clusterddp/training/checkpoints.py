"""Checkpoints: all ranks save one state together, and resume from one together."""

import functools
import hashlib
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from clusterddp.config.schema import Checkpoint
from clusterddp.dist import World, broadcast_json, gather_json
from clusterddp.errors import CheckpointError, SaveError
from clusterddp.runs.directory import RunDirectory
from clusterddp.training.checkpoint_choice import choose
from clusterddp.training.checkpoint_reading import (
    RANKS,
    SHARED,
    Loaded,
    read_checkpoint,
)
from clusterddp.training.checkpoint_writer import CheckpointWriter, Result, Task, say
from clusterddp.training.host_copy import HostCopy, count_bytes, on_host

__all__ = ["Checkpoints", "Loaded", "Saved", "Snapshot"]

_PATIENCE_S = 60.0  # as a site's KillWait leaves it, and some


@dataclass(frozen=True)
class Snapshot:
    """What one checkpoint holds, apart from what each rank adds.

    Attributes:
        step: finished steps.
        states: state dicts by file name (`model.pt`, ...); references, not copies.
        shared: JSON that is equal on all ranks: where the training stands.
        metrics: what an evaluation of these very weights gave; empty without one.
    """

    step: int
    states: Mapping[str, Mapping[str, Any]]
    shared: Mapping[str, object]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """Rank 0's word on a save, equal on all ranks.

    Attributes:
        error: why it is not durable; None when it is.
        stop: whether rank 0 knew of a stop request: all leave here.
    """

    error: str | None
    stop: bool


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
        rules: Checkpoint | None = None,
        report: Callable[[str], None] = say,
    ) -> None:
        """Look at nothing yet.

        Args:
            run: the run whose `checkpoints/` these are.
            world: this rank among the others.
            attempt: the number of this start of the ranks.
            rules: what is kept, and when failures are too many; defaults when None.
            report: told on rank 0 what was set aside and what went wrong.
        """
        self._run = run
        self._world = world
        self._attempt = attempt
        self._report = report
        self._host = HostCopy()
        self._done: Callable[[Result], None] = lambda _result: None
        self._writer = CheckpointWriter(
            run,
            attempt,
            rules or Checkpoint(),
            report=report,
            done=self._pass_on,
        )

    @property
    def longest_save_s(self) -> float:
        """On rank 0: how long a save may take, by those so far; 0 without any."""
        return self._writer.longest_s

    def call_when_done(self, function: Callable[[Result], None]) -> None:
        """Have a function told of each result, on rank 0, by the writing thread."""
        self._done = function

    def _pass_on(self, result: Result) -> None:
        self._done(result)

    def start(
        self,
        snapshot: Snapshot,
        local: Mapping[str, object],
        *,
        stop: Callable[[], bool] = lambda: False,
        before: Callable[[], object] = lambda: None,
        met: Callable[[], object] = lambda: None,
    ) -> Saved:
        """Copy a state and have it written meanwhile; all ranks must call it.

        One is in flight at most: the one before is waited for. Until `finish` has
        returned nothing is sure to be durable.

        Args:
            snapshot: the state; only rank 0's is written.
            local: JSON that this rank adds (random streams, sums).
            stop: asked on rank 0; its answer goes to all.
            before: called on rank 0 by the writing thread: what must be durable first.
            met: called on rank 0 once all ranks have come; what follows may take long.

        Returns:
            The same on all ranks; the error is that of the save before.

        Raises:
            CheckpointError: on all ranks: the save before ended as `finish` says.
        """
        begun = time.perf_counter()
        saved, ranks = self._settle(stop, local, met)
        if ranks is not None:
            waited = time.perf_counter()
            states = self._host.take(snapshot.states)
            copied = time.perf_counter()
            notes = {
                "stall_s": round(copied - begun, 4),
                "copy_s": round(copied - waited, 4),
            }
            task = self._task(snapshot, states, ranks)
            before_it = (self._host.wait, before)
            size = self._host.bytes
            task = replace(task, before=before_it, bytes=size, notes=notes)
            self._writer.start(task)
        return saved

    def finish(
        self,
        *,
        stop: Callable[[], bool] = lambda: False,
        met: Callable[[], object] = lambda: None,
    ) -> Saved:
        """Wait until the last save is durable; all ranks must call it.

        Args:
            stop: asked on rank 0 after the write; its answer goes to all.
            met: called on rank 0 before it waits.

        Returns:
            The same on all ranks. A full disk is reported there, not raised: the
            older checkpoints are intact, and training may go on.

        Raises:
            CheckpointError: on all ranks: this attempt has been replaced by a newer
                one, the state cannot be written or not be read again, or too many
                saves in a row have failed.
        """
        return self._settle(stop, None, met)[0]

    def save(
        self,
        snapshot: Snapshot,
        local: Mapping[str, object],
        *,
        stop: Callable[[], bool] = lambda: False,
        before: Callable[[], object] = lambda: None,
        met: Callable[[], object] = lambda: None,
    ) -> Saved:
        """Write a checkpoint; all ranks must call it, and leave when it is durable.

        Args and returned value are those of `start` and `finish`.

        Raises:
            CheckpointError: as `finish` does.
        """
        ranks = gather_json(dict(local))
        if ranks is not None:
            met()
            previous = self._writer.wait()
            if previous is None or not previous.fatal:
                states = on_host(snapshot.states)
                task = self._task(snapshot, states, ranks)
                size = count_bytes(states)
                self._writer.write(replace(task, before=(before,), bytes=size))
        return self.finish(stop=stop)

    def close(self, timeout_s: float = _PATIENCE_S) -> None:
        """Wait for a save in flight, on whatever way out; sends nothing."""
        self._writer.wait(timeout_s)

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
        loaded, error = read_checkpoint(path, choice["crc32"])
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

    def _settle(
        self,
        stop: Callable[[], bool],
        local: Mapping[str, object] | None,
        met: Callable[[], object],
    ) -> tuple[Saved, Sequence[object] | None]:
        """Agree on the save before and on a stop; gather what the ranks add."""
        ranks = None if local is None else gather_json(dict(local))
        word: dict[str, object] | None = None
        if self._world.rank == 0:
            met()
            last = self._writer.wait()
            error = None if last is None else last.error
            fatal = last is not None and last.fatal
            word = {"error": error, "fatal": fatal, "stop": stop()}
        told: Any = broadcast_json(word)
        if told["fatal"]:
            raise SaveError(told["error"])
        return Saved(error=told["error"], stop=told["stop"]), ranks

    def _task(
        self,
        snapshot: Snapshot,
        states: Mapping[str, Any],
        ranks: Sequence[object],
    ) -> Task:
        contents = {**states, SHARED: dict(snapshot.shared), RANKS: ranks}
        fields = {
            "step": snapshot.step,
            "attempt": self._attempt,
            "world_size": self._world.world_size,
            "clusterddp": _version(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "config": self._config,
            "metrics": _finite(snapshot.metrics),
            "time": round(time.time(), 3),
        }
        return Task(snapshot.step, contents, fields)

    @functools.cached_property
    def _config(self) -> str | None:
        """The SHA-256 of the job file, which stays as it is; None without one."""
        return _digest(self._run.job_file)

    def _choose(self) -> dict[str, object]:
        try:
            chosen = choose(self._run, self._attempt, self._tell_set_aside)
        except OSError as error:
            return {"error": f"{self._run.checkpoints}: {error.strerror or error}"}
        except CheckpointError as error:
            return {"error": str(error)}
        if chosen is None:
            return {"error": None, "name": None}
        return {"error": None, "name": chosen[0], "crc32": chosen[1]["crc32"]}

    def _tell_set_aside(self, path: Path, aside: Path, reason: str) -> None:
        self._writer.note("set aside", name=path.name, to=aside.name, reason=reason)
        self._report(f"{reason}; set aside as {aside.name}, trying the one before")


@functools.cache  # it reads a file
def _version() -> str:
    try:
        return metadata.version("clusterddp")
    except metadata.PackageNotFoundError:  # run from a checkout, not installed
        return "unknown"


def _digest(path: Path) -> str | None:
    """Give the SHA-256 of the job file; None where there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: v for name, v in metrics.items() if math.isfinite(v)}
