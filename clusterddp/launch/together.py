"""What ranks settle among themselves around a training: which run, and its end."""

import contextlib
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from clusterddp.config import Job
from clusterddp.dist import World, broadcast_json, default_store
from clusterddp.errors import ClusterDDPError, UsageError
from clusterddp.launch.rank import Seat, choose_run
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.verdict import Summary, write_summary

__all__ = ["Ending", "agree_on_seat", "part"]

_PARTING = timedelta(seconds=20)


class Ending(Protocol):
    """How a training ended; an Outcome is one."""

    @property
    def step(self) -> int:
        """Finished steps."""

    @property
    def total_steps(self) -> int:
        """Of the whole training."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The values of the last evaluation."""


def agree_on_seat(job: Job, given: Path | None, world: World) -> Seat:
    """Give the seat that rank 0 picks for ranks started by hand; all must call it.

    Raises:
        UsageError: on all ranks: what `choose_run` raises on rank 0.
    """
    told: dict[str, str] = broadcast_json(
        _choose(job, given) if world.rank == 0 else None
    )
    if "error" in told:
        raise UsageError(told["error"])
    run = RunDirectory(Path(told["run"]))
    return Seat(run, run.attempt(int(told["attempt"])))


def _choose(job: Job, given: Path | None) -> dict[str, str]:
    try:
        seat = choose_run(job, given, os.environ)
    except ClusterDDPError as error:
        return {"error": str(error)}
    return {"run": str(seat.run.path), "attempt": str(seat.attempt.number)}


def part(ending: Ending, attempt: AttemptDirectory, world: World) -> None:
    """Let nobody leave before rank 0's summary is on the disk; all must call it.

    With srun's --kill-on-bad-exit the first rank that leaves with 75 gets the
    others terminated (measured).
    """
    store = default_store()
    if world.rank > 0:
        with contextlib.suppress(RuntimeError):  # rank 0 is gone: nothing to wait for
            store.wait(["summary"], _PARTING)
        return
    cause = "completed" if ending.finished else "stopped"
    summary = Summary(cause, ending.step, ending.total_steps, ending.metrics)
    write_summary(attempt, summary)
    store.set("summary", "written")
