"""What a report shows: the attempts, where the time went, the curves; pure values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterddp.runs.facts import Facts
from clusterddp.runs.measures import Span, measure_ettr, measure_spans
from clusterddp.runs.parts import Save
from clusterddp.runs.status import Status

__all__ = ["PARTS", "Curve", "RunSummary", "summarize"]

PARTS = ("queued", "setup", "train", "save", "rest", "lost", "drain", "stall")
"""Where time goes: the names of `Span`'s parts, in the order in which they come."""

_MOST_CURVES = 6


@dataclass(frozen=True)
class Curve:
    """One metric over the steps.

    Attributes:
        name: as in metrics.jsonl.
        points: (step, value), by step.
    """

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class RunSummary:
    """All that a report shows.

    Attributes:
        status: where the run stands.
        began: when it was submitted, in seconds since the epoch.
        ended: when it ended, or when it was looked at.
        spans: the attempts, oldest first.
        ettr: time in steps that stayed / all time; None before the first log point.
        curves: loss, throughput, memory and what was evaluated.
    """

    status: Status
    began: float
    ended: float
    spans: tuple[Span, ...]
    ettr: float | None
    curves: tuple[Curve, ...]

    @property
    def wall(self) -> float:
        """All time, in seconds."""
        return max(0.0, self.ended - self.began)

    def totals(self) -> dict[str, float]:
        """Give the seconds of each part over all attempts; `other` is what is left."""
        sums = {
            part: sum(float(getattr(span, part)) for span in self.spans)
            for part in PARTS
        }
        waits = self.status.state == "pending"
        sums["queued"] += self._since_last() if waits else 0.0
        return {**sums, "other": max(0.0, self.wall - sum(sums.values()))}

    def _since_last(self) -> float:
        return self.ended - (self.spans[-1].ended if self.spans else self.began)

    def to_json(self) -> dict[str, object]:
        """Give it as a JSON object, without the curves (they are in metrics.jsonl)."""
        return {
            "run": self.status.to_json(),
            "wall_s": self.wall,
            "ettr": self.ettr,
            "totals_s": self.totals(),
            "attempts": [{**vars(span), "length": span.length} for span in self.spans],
        }


def summarize(
    facts: Facts,
    status: Status,
    reached: Mapping[int, int],
    saves: Mapping[int, Sequence[Save]],
    now: float,
) -> RunSummary:
    """Give a run's summary.

    Args:
        facts: what its directory says, with all log points.
        status: where it stands.
        reached: the last finished step of each attempt.
        saves: what each attempt saved.
        now: the time, for a run that goes on.
    """
    spans = measure_spans(facts, now, reached, saves)
    is_open = status.state in ("running", "pending", "unknown")
    last = facts.events[-1].time if facts.events else now
    return RunSummary(
        status,
        facts.began if facts.began is not None else now,
        now if is_open else max([last, *(span.ended for span in spans)]),
        tuple(spans),
        measure_ettr(facts, now),
        tuple(_curves(facts)),
    )


def _curves(facts: Facts) -> Sequence[Curve]:
    names = {name: None for point in facts.points for name in point}
    wanted = ["loss", "samples_per_s", *(n for n in names if n.startswith("mem/"))]
    wanted += [name for name in names if name.startswith("eval/")]
    found = (_curve(facts, name) for name in wanted[:_MOST_CURVES])
    return [curve for curve in found if curve.points]


def _curve(facts: Facts, name: str) -> Curve:
    pairs = ((point["step"], point.get(name)) for point in facts.points)
    return Curve(
        name,
        tuple((float(x), float(y)) for x, y in pairs if isinstance(y, int | float)),
    )
