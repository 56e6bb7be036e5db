"""Asking how long something takes, so that another reader gets the same answer.

    with record("stall", "What does a save cost?", given.results) as results:
        results.append(measure("96 MiB", {"copy": ..., "save": ...}, unit="ms",
                               baseline="copy", blocks=9,
                               targets=[Target("save", ratio=1.3)]))

In each block every variant is asked once, in a new random order (seeded), so that
whatever the machine does hits all alike; differences are taken within blocks. The
baseline is asked twice: its difference from itself is what noise looks like here.
Who has measured in processes of their own gives the blocks to `compare`.
"""

import argparse
import json
import math
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.machine import describe_machine, load
from benchmarks.result import Result, Row, Target, table

RESULTS = Path(__file__).resolve().parent / "results"
RESAMPLES = 2000
FEWEST = 3
Variant = Callable[[], float | Sequence[float]]


def again(baseline: str) -> str:
    """Give the name under which the baseline is measured a second time."""
    return f"{baseline} (again)"


def measure(  # noqa: PLR0913 - keywords, which read as a sentence
    question: str,
    variants: Mapping[str, Variant],
    *,
    unit: str,
    blocks: int,
    baseline: str | None = None,
    seconds: float = math.inf,
    warm_up: int = 1,
    targets: Sequence[Target] = (),
) -> Result:
    """Ask all variants in interleaved blocks; a list's median is a block's number.

    After so many seconds no more are begun: a slow machine is asked less often.
    """
    asked = dict(variants)
    if baseline is not None:
        asked[again(baseline)] = variants[baseline]
    luck = random.Random(question)  # noqa: S311 - an order, not a secret
    found: dict[str, list[float]] = {name: [] for name in asked}
    for counts in turns(blocks, seconds, warm_up=warm_up):
        for name in luck.sample(list(asked), len(asked)):
            number = _number(asked[name]())
            if counts:
                found[name].append(number)
    return compare(question, found, unit=unit, baseline=baseline, targets=targets)


def turns(blocks: int, seconds: float, *, warm_up: int = 1) -> Iterator[bool]:
    """Give for each block whether it counts: `blocks`, or fewer where they take long.

    Args:
        blocks: how many count at most.
        seconds: after so many none is begun, once FEWEST count.
        warm_up: how many do not count, before.
    """
    end = time.monotonic() + seconds
    yield from [False] * warm_up
    for block in range(blocks):
        if block >= FEWEST and time.monotonic() > end:
            return
        yield True


def repeated(call: Callable[[], object], times: int) -> Variant:
    """Ask for the microseconds of a call that is too short to be timed alone."""

    def measured() -> float:
        begin = time.perf_counter()
        for _ in range(times):
            call()
        return 1e6 * (time.perf_counter() - begin) / times

    return measured


def _number(value: float | Sequence[float]) -> float:
    return value if isinstance(value, int | float) else statistics.median(value)


def compare(
    question: str,
    blocks: Mapping[str, Sequence[float]],
    *,
    unit: str,
    baseline: str | None = None,
    targets: Sequence[Target] = (),
) -> Result:
    """Make a table of paired blocks: `blocks[name][i]` was measured in block i.

    The control, where there is one, is the variant named `again(baseline)`.
    """
    base = None if baseline is None else blocks[baseline]
    limits = {target.variant: target for target in targets}
    rows = [
        _row(name, values, None if name == baseline else base, limits.get(name))
        for name, values in blocks.items()
    ]
    kept = {name: list(values) for name, values in blocks.items()}
    return Result(question, unit, baseline, rows, kept)


def _row(
    name: str,
    values: Sequence[float],
    base: Sequence[float] | None,
    target: Target | None,
) -> Row:
    middle, spread = statistics.median(values), bootstrap(values)
    if base is None:
        limit = None if target is None else target.limit
        return Row(name, middle, spread, limit=limit)
    gaps = [value - other for value, other in zip(values, base, strict=True)]
    gap, gap_spread = statistics.median(gaps), bootstrap(gaps)
    if target is None:
        return Row(name, middle, spread, gap, gap_spread)
    allowed = target.allowed(statistics.median(base))
    return Row(name, middle, spread, gap, gap_spread, target.limit, allowed)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Give the 95 % interval of the median by resampling (percentile, seeded)."""
    luck = random.Random(0)  # noqa: S311 - the same interval from the same numbers
    count = len(values)
    medians = sorted(
        statistics.median(luck.choices(values, k=count)) for _ in range(RESAMPLES)
    )
    return medians[int(RESAMPLES * 0.025)], medians[int(RESAMPLES * 0.975) - 1]


@contextmanager
def record(name: str, asked: str, directory: Path | None) -> Iterator[list[Result]]:
    """Collect a question's tables; print them and write `NAME.json`, whatever comes.

    A failure is written too, beside the tables that were ready, and goes on its way.
    With no directory nothing is written.
    """
    signal.signal(signal.SIGTERM, _leave)
    results: list[Result] = []
    page: dict[str, object] = {"name": name, "asked": asked, "failed": None}
    page |= {"machine": describe_machine(), "load before": load()}
    try:
        yield results
    except BaseException as error:
        page["failed"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        page |= {"load after": load(), "results": [asdict(r) for r in results]}
        print("\n\n".join(map(table, results)))
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f"{name}.json").write_text(json.dumps(page, indent=1) + "\n")


def _leave(_signum: int, _frame: object) -> None:
    raise SystemExit("ended from outside, probably by its time limit")


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse what all programs take: `--quick`, for trying, writes no results."""
    parser.add_argument("--quick", action="store_true", help="try it; write nothing")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.quick:
        given.results = None
    return given
