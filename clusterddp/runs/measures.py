"""Measures: where the time of a run went, from its ledger and its log points; pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterddp.runs.facts import Facts, Point
from clusterddp.runs.ledger import Event
from clusterddp.runs.parts import Parts, Save, part_idle_time

__all__ = ["Span", "measure_ettr", "measure_spans"]

_TURNS = (
    *("submitted", "attempt_started", "attempt_ended", "restart", "requeue"),
    *("successor", "stopped", "finished", "needs_resubmit"),
)
"""What ends a phase of a run; signals, drills and wishes in between do not."""
_LAST_WORDS = ("finished", "stopped", "needs_resubmit")


@dataclass(frozen=True)
class Span:
    """One attempt, or the waiting before it; all times in seconds.

    Attributes:
        attempt: its number.
        queued: waited before it, since the submission, the requeue or the last end.
        started: when it started, since the epoch.
        ended: when it ended; now, while it goes on.
        cause: why it ended; None while it goes on, or when nobody could say.
        train: spent in steps that stayed.
        lost: spent in steps that had to be done again (estimated by their number).
        setup: until the first step: starting, meeting, loading.
        save: the steps waited for a save, or the last save for the disk.
        drain: from the first signal, or the last step after it, to the end.
        stall: no step was finished any more, until that was noticed.
        rest: evaluating, waiting for ranks, steps that no log point tells of.
        lost_steps: how many steps had to be done again.
    """

    attempt: int
    queued: float
    started: float
    ended: float
    cause: str | None
    train: float
    lost: float
    setup: float
    save: float
    drain: float
    stall: float
    rest: float
    lost_steps: int = 0

    @property
    def length(self) -> float:
        """From its start to its end."""
        return self.ended - self.started

    def inside(self) -> tuple[float, ...]:
        """Its parts, which together are its length, in the order of a report."""
        return (
            *(self.setup, self.train, self.save, self.rest),
            *(self.lost, self.drain, self.stall),
        )


def measure_ettr(facts: Facts, now: float) -> float | None:
    """Give the effective training time ratio: time in steps that stayed / all time.

    All time runs from the submission to the end of the run, waiting included (as in
    "Revisiting Reliability in Large-Scale Machine Learning Research Clusters",
    Kokolis et al. 2024). None before the first log point.
    """
    if facts.began is None or not facts.points:
        return None
    wall = (_end(facts.events) or now) - facts.began
    train = sum(seconds for _, seconds in _steps(facts))
    if not facts.is_whole:
        first, last = facts.points[0]["step"], facts.points[-1]["step"]
        train *= last / max(1, last - first)
    return min(1.0, train / wall) if wall > 0 and train > 0 else None


def _steps(facts: Facts) -> Iterator[tuple[Point, float]]:
    """Give the log points and the seconds spent in the steps that each stands for.

    A point's `samples_per_s` counts only the time inside steps, and lines of steps
    that are done again are cut off: so lost work, saving and evaluating are not in it.
    """
    batch, before = facts.shape.batch, 0.0 if facts.is_whole else None
    for point in facts.points:
        rate = point.get("samples_per_s") or 0
        if rate > 0 and batch and before is not None:
            yield point, (point["step"] - before) * batch / rate
        before = point["step"]


def measure_spans(
    facts: Facts,
    now: float,
    reached: Mapping[int, int],
    saves: Mapping[int, Sequence[Save]] | None = None,
) -> list[Span]:
    """Give where the time of every attempt went, oldest first.

    Args:
        facts: what the disk says, with all log points.
        now: the time, for a run that goes on.
        reached: the last finished step of each attempt, by its number.
        saves: what each attempt saved; None: not known.
    """
    starts = [event for event in facts.events if event.kind == "attempt_started"]
    over = _end(facts.events) or now
    return [_span(facts, start, over, reached, saves or {}) for start in starts]


def _span(
    facts: Facts,
    start: Event,
    over: float,
    reached: Mapping[int, int],
    saves: Mapping[int, Sequence[Save]],
) -> Span:
    number = int(str(start.values.get("attempt", 0)))
    end = _find_end(facts.events, number)
    ended = _broken_off(facts.events, start, over) if end is None else end.time
    timed = [pair for pair in _steps(facts) if start.time <= pair[0]["time"] <= ended]
    length = max(0.0, ended - start.time)
    train = min(length, sum(seconds for _, seconds in timed))
    lost_steps = _lost_steps(end, reached.get(number))
    lost = min(length - train, lost_steps * _pace(facts))
    setup, parts = _idle_parts(
        facts, start, end or ended, timed, length - train - lost, saves.get(number, ())
    )
    return Span(
        attempt=number,
        queued=_queued(facts.events, start),
        started=start.time,
        ended=ended,
        cause=None if end is None else str(end.values.get("cause")),
        train=train,
        lost=lost,
        setup=setup,
        **vars(parts),
        lost_steps=lost_steps,
    )


def _idle_parts(
    facts: Facts,
    start: Event,
    end: Event | float,
    timed: Sequence[tuple[Point, float]],
    idle: float,
    saves: Sequence[Save],
) -> tuple[float, Parts]:
    """Give an attempt's time before its first step, and what else was no step."""
    told = end if isinstance(end, Event) else None
    ended = end if not isinstance(end, Event) else end.time
    cause = None if told is None else str(told.values.get("cause"))
    quiet = _quiet(facts, start, [point["time"] for point, _ in timed], told)
    quiet = quiet if quiet is None or start.time <= quiet <= ended else None
    setup = _setup(start.time, timed, idle, quiet if cause == "stalled" else None)
    asked = _asked(facts.events, start.time, ended)
    parts = part_idle_time(
        idle - setup, ended, cause, quiet=quiet, asked=asked, saves=saves
    )
    return setup, parts


def _asked(events: Sequence[Event], started: float, ended: float) -> float | None:
    """Give when an attempt's ranks were first asked to stop."""
    asked = (
        event.time
        for event in events
        if event.kind in ("signal", "cancel_requested")
        and started <= event.time <= ended
    )
    return next(asked, None)


def _quiet(
    facts: Facts, start: Event, logged: Sequence[float], end: Event | None
) -> float | None:
    """Give the last sign of a step in an attempt: a log point, or rank 0's word."""
    told = None if end is None else end.values.get("progress")
    if told is None and start.values.get("attempt") == facts.attempt:
        told = (facts.progress or {}).get("time")
    signs = [*logged[-1:], *([float(told)] if isinstance(told, int | float) else [])]
    return max(signs, default=None)


def _setup(
    began: float,
    timed: Sequence[tuple[Point, float]],
    idle: float,
    quiet: float | None,
) -> float:
    """Give the time before the first step.

    When no step was logged that is all idle time, less what a stall took of it.
    """
    if not timed:
        return idle if quiet is None else min(idle, max(0.0, quiet - began))
    point, seconds = timed[0]
    return min(idle, max(0.0, point["time"] - seconds - began))


def _lost_steps(end: Event | None, reached: int | None) -> int:
    if end is None or reached is None:
        return 0
    saved = end.values.get("checkpoint")
    return max(0, reached - (saved if isinstance(saved, int) else 0))


def _pace(facts: Facts) -> float:
    """Give the seconds of one step, from the log points."""
    steps = facts.points[-1]["step"] if facts.points else 0
    return sum(seconds for _, seconds in _steps(facts)) / steps if steps else 0.0


def _find_end(events: Sequence[Event], number: int) -> Event | None:
    for event in events:
        if event.kind == "attempt_ended" and event.values.get("attempt") == number:
            return event
    return None


def _broken_off(events: Sequence[Event], start: Event, over: float) -> float:
    """Give when an attempt without an end was over at the latest."""
    later = (
        event.time
        for event in events
        if event.time > start.time and event.kind in _TURNS
    )
    return next(later, over)


def _queued(events: Sequence[Event], start: Event) -> float:
    """Give the wait before an attempt: since the submission, or the last decision."""
    before = [one for one in events if one.time < start.time and one.kind in _TURNS]
    if not before or before[-1].kind == "attempt_started":
        return 0.0
    return start.time - before[-1].time


def _end(events: Sequence[Event]) -> float | None:
    """Give when the run ended; None while it goes on.

    A supervisor stops, too, when somebody has requeued its job: that is no end.
    """
    ended: float | None = None
    for event in reversed(events):
        if event.kind in ("submitted", "attempt_started"):
            return ended
        if event.values.get("cause") == "requeued":
            return None
        if event.kind in _LAST_WORDS and ended is None:
            ended = event.time
    return ended
