"""What hits have cost a run of the tests' toy: steps, time, ETTR; from its files.

Lost is a step that an attempt has finished and a later one had to do again. With
`params.trace` rank 0 marks each finished step in the attempt's directory, which nothing
that ends the ranks can undo or delay; `resume.json` has the step from which the attempt
went on. The steps that stayed, and their times, are those of the log points.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from clusterddp.files import read_json
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.facts import Facts, read_facts
from clusterddp.runs.ledger import read_events

__all__ = [
    "Cost",
    "Hit",
    "Window",
    "lost_steps",
    "measure_back",
    "measure_windows",
    "render_costs",
    "steps_of_attempts",
]

_UNDISTURBED = "before the first hit"


@dataclass(frozen=True)
class Hit:
    """One hit, and how the run came back from it; times in s since the epoch.

    Attributes:
        cause: what was done.
        began: when.
        lost: how many steps had to be done again.
        back_s: until the next step was finished; None: the run was just over.
    """

    cause: str
    began: float
    lost: int
    back_s: float | None


@dataclass(frozen=True)
class Window:
    """A time of a run after one hit and before the next, and what was got out of it."""

    cause: str
    train_s: float
    wall_s: float


@dataclass(frozen=True)
class Cost:
    """One line of the report."""

    cause: str
    hits: int
    lost: int
    most: int
    middle_s: float | None
    longest_s: float | None
    ettr: float | None


def steps_of_attempts(run: RunDirectory) -> list[tuple[int, int]]:
    """Give, for each attempt that began to train, where it began and how far it got."""
    found = []
    for attempt in run.list_attempts():
        resumed = (read_json(attempt.path / "resume.json") or {}).get("step")
        if isinstance(resumed, int):
            marks = attempt.path / "steps"
            done = marks.stat().st_size if marks.exists() else 0
            found.append((resumed, resumed + done))
    return found


def lost_steps(attempts: Sequence[tuple[int, int]]) -> int:
    """Give how many steps were finished and had to be done again; pure.

    Args:
        attempts: where each began and how far it got, oldest first.
    """
    pairs = pairwise(attempts)
    return sum(max(0, got - resumed) for (_, got), (resumed, _) in pairs)


def measure_back(run: RunDirectory, began: float, over: float) -> float | None:
    """Give the seconds from a hit to the next step; None when there was none.

    Args:
        run: the run.
        began: when the hit began.
        over: when it was done, for a run whose ranks have lived through it.
    """
    starts = [one.time for one in read_events(run) if one.kind == "ranks_started"]
    since = starts[-1] if starts and starts[-1] > began else over
    later = [p["time"] for p in read_facts(run, whole=True).points if p["time"] > since]
    return later[0] - began if later else None


def measure_windows(facts: Facts, hits: Sequence[Hit]) -> list[Window]:
    """Give what became of the time after each hit, until the next or the run's end."""
    end = facts.last("finished")
    if end is None or facts.began is None:
        return []
    begins = [(_UNDISTURBED, facts.began), *((hit.cause, hit.began) for hit in hits)]
    ends = [*(hit.began for hit in hits), end.time]
    steps = list(_timed_steps(facts))
    return [
        Window(
            cause,
            sum(seconds for time, seconds in steps if begin < time <= until),
            until - begin,
        )
        for (cause, begin), until in zip(begins, ends, strict=True)
    ]


def _timed_steps(facts: Facts) -> Iterator[tuple[float, float]]:
    """Give when each step that stayed was finished, and the seconds inside it."""
    batch, before = facts.shape.batch or 0, 0.0
    for point in facts.points:
        rate = point.get("samples_per_s") or 0
        if rate > 0:
            yield point["time"], (point["step"] - before) * batch / rate
        before = point["step"]


def render_costs(
    hits: Sequence[Hit], windows: Iterable[Window]
) -> tuple[str, dict[str, object]]:
    """Give the report as a table, and the same as data."""
    windows = list(windows)
    by_cause = _group(hits)
    costs = [_cost(cause, mine, windows) for cause, mine in sorted(by_cause.items())]
    total = _cost("all hits", hits, [w for w in windows if w.cause != _UNDISTURBED])
    lines = [
        f"{'cause':30} hits  lost steps (most)  next step after, s (median, max)  ETTR"
    ]
    lines += [_line(cost) for cost in (*costs, total)]
    whole = _ettr(windows)
    lines.append(f"{'whole runs, first start included':72} {_number(whole, 3):>10}")
    values = [vars(cost) for cost in (*costs, total)]
    return "\n".join(lines), {"costs": values, "ettr": whole}


def _group(hits: Sequence[Hit]) -> Mapping[str, list[Hit]]:
    found: dict[str, list[Hit]] = {}
    for hit in hits:
        found.setdefault(hit.cause, []).append(hit)
    return found


def _cost(cause: str, hits: Sequence[Hit], windows: Sequence[Window]) -> Cost:
    lost = [hit.lost for hit in hits]
    back = [hit.back_s for hit in hits if hit.back_s is not None]
    mine = [w for w in windows if w.cause in {hit.cause for hit in hits}]
    return Cost(
        cause,
        len(hits),
        sum(lost),
        max(lost, default=0),
        statistics.median(back) if back else None,
        max(back, default=None),
        _ettr(mine),
    )


def _ettr(windows: Sequence[Window]) -> float | None:
    wall = sum(window.wall_s for window in windows)
    return sum(window.train_s for window in windows) / wall if wall > 0 else None


def _line(cost: Cost) -> str:
    lost = f"{cost.lost} ({cost.most})"
    back = f"{_number(cost.middle_s, 1)}, {_number(cost.longest_s, 1)}"
    ettr = _number(cost.ettr, 3)
    return f"{cost.cause:30} {cost.hits:4}  {lost:>17}  {back:>31}  {ettr:>5}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
