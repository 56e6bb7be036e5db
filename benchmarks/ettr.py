"""`python -m benchmarks.ettr`: how much of the time is training, when things fail.

The same net, steps and save interval under `submit --launcher pytorch` and under
`torchrun --max-restarts` with torch.save now and then, on this machine; both are hit
at the same times by the same failures: kill -9 of a rank, an exception, a rank that
stands still (SIGSTOP). ETTR is the time in steps that stayed, at the pace of a run
that nothing hit, over all time since the first step. `--full` is a failure a minute
for ten minutes.
"""

import argparse
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.harness import arguments, compare, record
from benchmarks.jobs import write_job
from benchmarks.result import Result
from benchmarks.scene import Pages, await_value, peer, program, strike

ASKED = "Which share of the time is training, under a schedule of failures?"
OURS, PEER = "ours", "torchrun --max-restarts + torch.save"
DEADLINE_S = 120.0
PAUSE_S, EVERY = 0.05, 40
KINDS = ("kill -9", "exception", "standstill")
Words = Sequence[str | Path]


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="one a minute, 10 minutes")
    given = arguments(parser)
    gap_s, wall_s = (60.0, 600.0) if given.full else (20.0, 120.0)
    if given.quick:
        gap_s, wall_s = 20.0, 45.0
    with record("ettr", ASKED, given.results) as results:
        results.extend(rage(gap_s, wall_s))


def rage(gap_s: float, wall_s: float) -> list[Result]:
    """Hit both in turn; give ETTR, and what each failure has cost."""
    ways = {PEER: by_torchrun, OURS: by_us}
    ratios: dict[str, list[float]] = {}
    costs: dict[str, list[Result]] = {}
    for name, words_for in ways.items():
        with tempfile.TemporaryDirectory() as place:
            home = Path(place)
            with program(words_for(home), home):
                back = hit(Pages(home), gap_s, wall_s)
            ratios[name] = [rate(Pages(home), wall_s)]
        for kind, seconds in back.items():
            costs.setdefault(name, []).append(
                compare(f"{kind}, {name}", {kind: seconds}, unit="s")
            )
    schedule = f"one failure per {gap_s:.0f} s for {wall_s:.0f} s"
    ettr = compare(
        f"ETTR, {schedule}",
        ratios,
        unit="ratio",
        baseline=PEER,
    )
    return [ettr, *_side_by_side(costs)]


def _side_by_side(costs: dict[str, list[Result]]) -> list[Result]:
    """Give one table for each kind of failure."""
    kinds = dict.fromkeys(row.rows[0].name for rows in costs.values() for row in rows)
    tables = []
    for kind in kinds:
        blocks = {
            name: row.blocks[kind]
            for name, rows in costs.items()
            for row in rows
            if kind in row.blocks
        }
        title = f"From {kind} to the next finished step"
        tables.append(compare(title, blocks, unit="s"))
    return tables


def by_torchrun(home: Path) -> Words:
    """Give torchrun's command line."""
    options = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1000")
    loop = (peer("plain.py"), home, "--pause", str(PAUSE_S), "--every", str(EVERY))
    return ("-m", "torch.distributed.run", *options, *loop)


def by_us(home: Path) -> Words:
    """Give our command line."""
    job = write_job(home, pause_s=PAUSE_S, launcher="pytorch", every=EVERY)
    return ("-m", "clusterddp.submit", job, "--runs", home / "runs")


def hit(pages: Pages, gap_s: float, wall_s: float) -> dict[str, list[float]]:
    """Hit at the same times with the same failures, from the first step on.

    A failure that comes while the one before is not over waits until it is.
    """
    luck = random.Random(0)  # noqa: S311 - the same ranks for both
    begin = await_value(pages.first_step, DEADLINE_S, "the first step")
    back: dict[str, list[float]] = {}
    for number in range(1, int(wall_s / gap_s) + 1):
        kind = KINDS[(number - 1) % len(KINDS)]
        _sleep_until(begin + number * gap_s - gap_s / 2)
        left = begin + wall_s - time.time()
        if left <= 0 or (strike_at := _strike(pages, kind, luck.randrange(2))) is None:
            continue
        old = pages.pids()
        seconds = _wait(pages, old, begin + wall_s)
        if seconds is not None:
            back.setdefault(kind, []).append(seconds - strike_at)
    _sleep_until(begin + wall_s)
    return back


def _strike(pages: Pages, kind: str, rank: int) -> float | None:
    acts: dict[str, Callable[[], None]] = {
        "kill -9": lambda: strike(pages.pids(rank)),
        "exception": (pages.place / "fault").touch,
        "standstill": lambda: strike(pages.pids(rank), signal.SIGSTOP),
    }
    if not pages.pids(rank):
        return None
    at = time.time()
    acts[kind]()
    return at


def _wait(pages: Pages, old: Sequence[int], until: float) -> float | None:
    while time.time() < until:
        at = pages.first_step([*old, *_earlier(pages, old)])
        if at is not None:
            return at
        time.sleep(0.1)
    return None


def _earlier(pages: Pages, old: Sequence[int]) -> set[int]:
    """Give rank 0's pids up to those that live now: only a newer one counts."""
    found = [pid for _, _, pid in pages.steps()]
    last = max((i for i, pid in enumerate(found) if pid in old), default=-1)
    return set(found[: last + 1])


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))


def rate(pages: Pages, wall_s: float) -> float:
    """Give the time in steps that stayed, at the median pace, over all time."""
    steps = [one for one in pages.steps() if one[0] <= pages.steps()[0][0] + wall_s]
    paces = [b[0] - a[0] for a, b in pairwise(steps) if a[2] == b[2]]
    reached = max(step for _, step, _ in steps)
    return reached * statistics.median(paces) / wall_s


if __name__ == "__main__":
    main()
