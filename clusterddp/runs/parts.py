"""The parts of an attempt's time: disjoint, and together its whole length; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Parts", "Save", "part_idle_time"]

_ASKED = (
    *("preempted", "time limit", "signalled", "interrupted", "cancelled"),
    "requeued",
)


@dataclass(frozen=True)
class Save:
    """One save of an attempt, as `checkpoints.jsonl` tells it.

    Attributes:
        time: when it was durable, in seconds since the epoch.
        stall_s: how long the step waited for its copy.
        write_s: how long it then took to be durable.
    """

    time: float
    stall_s: float
    write_s: float


@dataclass(frozen=True)
class Parts:
    """What an attempt's time went into besides its start and its steps; seconds."""

    save: float = 0.0
    drain: float = 0.0
    stall: float = 0.0
    rest: float = 0.0


def part_idle_time(
    idle: float,
    ended: float,
    cause: str | None,
    *,
    quiet: float | None,
    asked: float | None,
    saves: Sequence[Save],
) -> Parts:
    """Give where the time between and after the steps of an attempt went.

    Args:
        idle: the seconds that are neither start nor steps.
        ended: when the attempt ended, in seconds since the epoch.
        cause: why it ended.
        quiet: the last sign of a step; None if nobody knows.
        asked: when the ranks were first asked to stop; None if nobody noted it.
        saves: what it saved.
    """
    stall = drain = 0.0
    turn = ended
    if cause == "stalled" and quiet is not None:
        stall = min(idle, ended - quiet)
        turn = quiet
    elif cause in _ASKED and (quiet, asked) != (None, None):
        turn = max(moment for moment in (quiet, asked) if moment is not None)
        drain = min(idle, max(0.0, ended - turn))
    left = idle - stall - drain
    save = min(left, sum(_blocked(one, quiet) for one in saves if one.time <= turn))
    return Parts(save, drain, stall, max(0.0, left - save))


def _blocked(save: Save, quiet: float | None) -> float:
    """Give how long nobody trained for a save: the last one is waited for."""
    is_last = quiet is not None and save.time > quiet
    return save.stall_s + (save.write_s if is_last else 0.0)
