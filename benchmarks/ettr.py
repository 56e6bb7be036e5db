"""`python -m benchmarks.ettr`: how much of the time is training, when things fail.

The same net, steps and save interval under `submit --launcher pytorch` and under
`torchrun --max-restarts` with torch.save now and then, as it is and with the switch
that its restarts need, on this machine; all are hit at the same times by the same
failures: kill -9 of a rank, an exception, a rank that stands still (SIGSTOP). ETTR is
the time in steps that stayed, at the pace of a run that nothing hit, over all time
since the first step.
"""

import argparse
import math
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.harness import arguments, compare, record
from benchmarks.jobs import write_job
from benchmarks.result import Result
from benchmarks.scene import Pages, await_value, peer, program, strike

ASKED = "Which share of the time is training, under a schedule of failures?"
OURS, PEER = "ours", "torchrun --max-restarts + torch.save"
UNSHARED = "the same, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
DEADLINE_S = 120.0
PAUSE_S, EVERY = 0.05, 40
KINDS = ("kill -9", "exception", "standstill")
Words = Sequence[str | Path]


@dataclass(frozen=True)
class Schedule:
    """When one of them begins and is hit, in seconds."""

    delay_s: float
    gap_s: float
    wall_s: float
    over: threading.Event

    def sleep(self, seconds: float) -> None:
        """Sleep, unless all is over.

        Raises:
            RuntimeError: all is over.
        """
        if self.over.wait(max(0.0, seconds)):
            raise RuntimeError("ended early")


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = arguments(parser)
    gap_s, wall_s = (20.0, 60.0) if given.quick else (60.0, 600.0)
    with record("ettr", ASKED, given.results) as results:
        results.extend(rage(gap_s, wall_s))


def rage(gap_s: float, wall_s: float) -> list[Result]:
    """Hit all, each at the same times of its own; give ETTR, and what each cost.

    They train side by side, which mostly sleeping steps leave room for. Each begins
    a third of a gap after the one before, so that no restart meets another's.
    """
    over = threading.Event()
    with ThreadPoolExecutor() as pool:
        asked = {}
        for number, (name, way) in enumerate(WAYS.items()):
            schedule = Schedule(number * gap_s / len(WAYS), gap_s, wall_s, over)
            asked[name] = pool.submit(suffer, way, schedule)
        try:
            suffered = {name: future.result() for name, future in asked.items()}
        finally:
            over.set()
    ratios = {name: [ratio] for name, (ratio, _) in suffered.items()}
    title = f"ETTR, one failure per {gap_s:.0f} s for {wall_s:.0f} s"
    ettr = compare(title, ratios, unit="ratio", baseline=PEER)
    costs = {name: back for name, (_, back) in suffered.items()}
    hits = compare(
        f"Failures of {wall_s / gap_s:.0f} that found it training",
        {name: [float(sum(map(len, cost.values())))] for name, cost in costs.items()},
        unit="failures",
    )
    return [ettr, hits, *_side_by_side(costs)]


def suffer(way: "Way", schedule: Schedule) -> tuple[float, dict[str, list[float]]]:
    """Run one of them under the schedule; give its ETTR and its seconds by failure."""
    schedule.sleep(schedule.delay_s)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        with program(way.words_for(home), home, **way.environ):
            back = hit(Pages(home), schedule)
        return rate(Pages(home), schedule.wall_s), back


def _side_by_side(costs: Mapping[str, Mapping[str, list[float]]]) -> list[Result]:
    """Give one table for each kind of failure."""
    return [
        compare(
            f"From {kind} to the next finished step",
            {name: back[kind] for name, back in costs.items() if kind in back},
            unit="s",
        )
        for kind in KINDS
    ]


def by_torchrun(home: Path) -> Words:
    """Give torchrun's command line."""
    options = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1000")
    loop = (peer("plain.py"), home, "--pause", str(PAUSE_S), "--every", str(EVERY))
    return ("-m", "torch.distributed.run", *options, *loop)


def by_us(home: Path) -> Words:
    """Give our command line."""
    job = write_job(home, pause_s=PAUSE_S, launcher="pytorch", every=EVERY)
    return ("-m", "clusterddp.submit", job, "--runs", home / "runs")


def hit(pages: Pages, schedule: Schedule) -> dict[str, list[float]]:
    """Hit at the same times with the same failures, from the first step on.

    A failure that finds the ranks down, because the one before is not over, hits
    nothing: whoever needs long to come back is not hit the harder for it.

    Returns:
        By kind, the seconds until the training went on; infinite where it never did.
    """
    luck = random.Random(0)  # noqa: S311 - the same ranks for all
    begin = await_value(pages.first_step, DEADLINE_S, "the first step")
    end = begin + schedule.wall_s
    back: dict[str, list[float]] = {}
    for number in range(int(schedule.wall_s / schedule.gap_s)):
        kind, rank = KINDS[number % len(KINDS)], luck.randrange(2)
        due = begin + (number + 0.5) * schedule.gap_s
        if time.time() > due:
            continue
        schedule.sleep(due - time.time())
        old = pages.pids()  # before one of them is killed
        at = _strike(pages, kind, rank)
        found = _wait(pages, old, at, schedule, end)
        back.setdefault(kind, []).append(found - at)
    schedule.sleep(end - time.time())
    return back


def _strike(pages: Pages, kind: str, rank: int) -> float:
    acts: dict[str, Callable[[], None]] = {
        "kill -9": lambda: strike(pages.pids(rank)),
        "exception": (pages.place / "fault").touch,
        "standstill": lambda: strike(pages.pids(rank), signal.SIGSTOP),
    }
    at = time.time()
    acts[kind]()
    return at


def _wait(
    pages: Pages, old: Sequence[int], at: float, schedule: Schedule, end: float
) -> float:
    """Give when a rank 0 that was not there at a blow finished a step after it."""
    while time.time() < end:
        for when, _, pid in pages.steps():
            if when > at and pid not in old:
                return when
        schedule.sleep(0.1)
    return math.inf


def rate(pages: Pages, wall_s: float) -> float:
    """Give the time in steps that stayed, at the median pace, over all time."""
    steps = [one for one in pages.steps() if one[0] <= pages.steps()[0][0] + wall_s]
    paces = [b[0] - a[0] for a, b in pairwise(steps) if a[2] == b[2]]
    reached = max(step for _, step, _ in steps)
    return reached * statistics.median(paces) / wall_s


@dataclass(frozen=True)
class Way:
    """A command line and what it needs in its environment."""

    words_for: Callable[[Path], Words]
    environ: Mapping[str, str] = field(default_factory=dict)


# torchrun 2.13 keeps one store for all its restarts, so that new ranks find the
# addresses of dead ones in it (pytorch#135712); with the switch they do not.
WAYS = {
    PEER: Way(by_torchrun),
    UNSHARED: Way(by_torchrun, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
    OURS: Way(by_us),
}

if __name__ == "__main__":
    main()
