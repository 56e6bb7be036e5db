"""What saves have cost in earlier runs, and how often to save for it.

The interval that loses least is the square root of 2 x cost of a save x mean time
between failures (Young 1974; Daly 2006 refines it where the cost is not small).
"""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from clusterddp.config.schema import Every
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.ledger import read_events
from clusterddp.runs.parts import Save

__all__ = [
    "Experience",
    "advise",
    "read_experience",
    "read_saves",
    "suggest_interval",
]

_LOSING = {"crash", "node failure", "stalled", "out of memory", "suspended"}
_WORTH_A_WORD = 3.0  # between a half and the double the loss hardly changes


@dataclass(frozen=True)
class Experience:
    """What runs went through.

    Attributes:
        stall_s: what a save cost the step, median.
        write_s: until it was durable, median.
        interval_s: between two saves, median; None if no attempt made two.
        failures: ends of attempts that lost work.
        trained_s: how long the ranks were there, all attempts together.
    """

    stall_s: float
    write_s: float
    interval_s: float | None
    failures: int
    trained_s: float


def read_experience(runs: Iterable[RunDirectory]) -> Experience | None:
    """Give what runs have been through; None if none has saved anything."""
    stalls, writes, gaps = [], [], []
    failures, trained = 0, 0.0
    for run in runs:
        for attempt in run.list_attempts():
            saves = list(_read_saves(attempt))
            writes += [save["write_s"] for save in saves]
            stalls += [save["stall_s"] for save in saves]
            times = [save["time"] for save in saves]
            gaps += [after - before for before, after in pairwise(times)]
        lost, seconds = _count_failures(run)
        failures, trained = failures + lost, trained + seconds
    if not writes:
        return None
    interval = statistics.median(gaps) if gaps else None
    middle = statistics.median
    return Experience(middle(stalls), middle(writes), interval, failures, trained)


def suggest_interval(stall_s: float, between_failures_s: float) -> float:
    """Give the seconds between two saves that lose least; pure."""
    return math.sqrt(2 * stall_s * between_failures_s)


def advise(every: Every, seen: Experience) -> str | None:
    """Give what to say about `checkpoint.every`; None if nothing; pure."""
    if seen.failures == 0 or seen.trained_s <= 0:
        return None
    between = seen.trained_s / seen.failures
    best = max(suggest_interval(seen.stall_s, between), 2 * seen.write_s, 1.0)
    now = seen.interval_s if every.seconds is None else every.seconds
    if now is not None and best / _WORTH_A_WORD <= now <= best * _WORTH_A_WORD:
        return None
    found = "fewer than two saves an attempt" if now is None else f"one in {now:.0f}s"
    return (
        f"found {found}, expected about one in {best:.0f}s: earlier runs of this name "
        f"failed {seen.failures} x in {seen.trained_s / 3600:.1f} h, and a save "
        f"stalled them {seen.stall_s:.2g} s (Young/Daly); write every: {best:.0f}s"
    )


def _read_saves(attempt: AttemptDirectory) -> Iterator[Mapping[str, float]]:
    with suppress(OSError):
        for line in attempt.saves.read_bytes().splitlines():
            # A full disk has cut a line, or another version wrote other ones.
            with suppress(ValueError, KeyError, TypeError):
                save = json.loads(line)
                if save["event"] == "saved":
                    numbers = {"stall_s": save["write_s"], **save}
                    names = ("time", "write_s", "stall_s")
                    yield {name: float(numbers[name]) for name in names}


def read_saves(run: RunDirectory) -> dict[int, list[Save]]:
    """Give what each attempt of a run saved, by its number."""
    return {
        attempt.number: [
            Save(save["time"], save["stall_s"], save["write_s"])
            for save in _read_saves(attempt)
        ]
        for attempt in run.list_attempts()
    }


def _count_failures(run: RunDirectory) -> tuple[int, float]:
    failures, seconds, started = 0, 0.0, None
    for event in read_events(run):
        if event.kind == "ranks_started":
            started = event.time
        elif event.kind == "attempt_ended":
            failures += event.values.get("cause") in _LOSING
            seconds += event.time - started if started is not None else 0.0
            started = None
    return failures, seconds
