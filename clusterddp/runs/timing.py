"""How long runs have needed for what they do again and again, from what they left."""

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.facts import Facts, read_facts
from clusterddp.runs.measures import measure_spans
from clusterddp.runs.saves import read_experience

__all__ = ["Timing", "read_room", "read_timing"]

_RECENT = 5


@dataclass(frozen=True)
class Timing:
    """Seconds; None where nothing was measured.

    Attributes:
        start_s: from an attempt's start to its first step, median.
        step_s: a step of the slowest log point.
        save_s: the longest save, from the wait for it until it was durable.
    """

    start_s: float | None = None
    step_s: float | None = None
    save_s: float | None = None


def read_timing(runs: Iterable[RunDirectory]) -> Timing:
    """Give what runs have needed; damaged and missing files are passed over."""
    starts: list[float] = []
    steps: list[float] = []
    saves: list[float] = []
    for run in runs:
        facts = read_facts(run)
        starts += _starts(facts)
        steps += _steps(facts)
        for attempt in run.list_attempts():
            saves += _saves(attempt)
    middle = statistics.median(starts) if starts else None
    return Timing(middle, max(steps, default=None), max(saves, default=None))


def read_room(runs: Sequence[RunDirectory]) -> tuple[float | None, float | None]:
    """Give what the newest of some runs tell about the room in a time limit.

    Returns:
        The seconds until the first step, and those between two saves; None: unknown.
    """
    recent = runs[-_RECENT:]
    experience = read_experience(recent)
    return read_timing(recent).start_s, experience.interval_s if experience else None


def _starts(facts: Facts) -> Iterator[float]:
    """Give the time before the first step of each attempt that logged one."""
    for span in measure_spans(facts, 0.0, {}):
        if span.train > 0:
            yield span.setup


def _steps(facts: Facts) -> Iterator[float]:
    for point in facts.points:
        rate = point.get("samples_per_s") or 0.0
        if rate > 0 and facts.shape.batch:
            yield facts.shape.batch / rate


def _saves(attempt: AttemptDirectory) -> Iterator[float]:
    with suppress(OSError):
        for line in attempt.saves.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # a full disk cut it
                save = json.loads(line)
                if save["event"] == "saved":
                    yield float(save.get("stall_s", 0.0)) + float(save["write_s"])
