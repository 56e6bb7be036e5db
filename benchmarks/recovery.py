"""`python -m benchmarks.recovery`: from a blow to the next finished step.

On the real cluster, ours beside submitit with the usual checkpoint(), Lightning's
auto-requeue and torchrun --max-restarts, all with the same net and pause: kill -9 of a
rank; preemption by a job of higher priority (until our last process is gone, and until
training goes on); the warning before the time limit; `scontrol requeue`. `never` means
that the job was over, or that nothing had come back after 60 s. Ours is struck three
times (once on a slow machine), the others once. Before it the reading of a state of
1 GiB.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.contenders import CONTENDERS, Job, begin, is_over
from benchmarks.harness import arguments, compare, measure, record
from benchmarks.result import Result, Target
from benchmarks.scene import LOOK_S, is_alive, real_cluster, strike
from benchmarks.states import State, clock
from clusterddp.dist import init_dist, shutdown
from tests.cluster import Cluster, ClusterError
from tests.slurm_drills import preempt

ASKED = "How long from a failure to the next finished step?"
PATIENCE_S = 60.0
ENOUGH_S = 240.0
OURS = "ours"
GONE = "preemption, until the last process is gone"
TARGETS = {"kill -9 of a rank": 8.0, GONE: 5.0}
Blow = Callable[[Cluster, Job], None]


class _NobodyListensError(Exception):
    """A contender has no answer to a blow; there is nothing to wait for."""


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="one contender, by a part of its name")
    given = arguments(parser)
    names = [name for name in CONTENDERS if (given.only or "") in name]
    with record("recovery", ASKED, given.results) as results:
        results.append(reading(96 if given.quick else 1024, 2 if given.quick else 9))
        with real_cluster() as cluster:
            blows(cluster, names, 1 if given.quick else 3, results)


def blows(
    cluster: Cluster, names: Sequence[str], blocks: int, results: list[Result]
) -> None:
    """Strike every contender with everything, ours again; a table for each blow.

    Raises:
        RuntimeError: a contender could not be measured; the others' tables are there.
    """
    found: dict[str, dict[str, list[float]]] = {}
    failures: list[str] = []
    once_more = [OURS] * (blocks - 1) if OURS in names else []
    enough = time.monotonic() + ENOUGH_S
    try:
        for turn, name in enumerate([*names, *once_more]):
            if turn >= len(names) and time.monotonic() > enough:
                break
            try:
                suffered = suffer(cluster, name)
            except (TimeoutError, ClusterError) as error:
                failures.append(f"{name}: {error}")
                continue
            for blow, seconds in suffered.items():
                found.setdefault(blow, {}).setdefault(name, []).append(seconds)
    finally:
        results.extend(tables(found))
    if failures:
        raise RuntimeError("; ".join(failures))


def tables(found: dict[str, dict[str, list[float]]]) -> list[Result]:
    """Give a table for each blow."""
    return [
        compare(
            f"{blow[0].upper()}{blow[1:]}",
            values,
            unit="s",
            targets=[Target(OURS, limit=TARGETS[blow])] if blow in TARGETS else [],
        )
        for blow, values in found.items()
    ]


def suffer(cluster: Cluster, name: str) -> dict[str, float]:
    """Strike one contender with everything; a new job where the last one is over."""
    job, found = begin(cluster, name), {}
    for blow, act in BLOWS.items():
        if is_over(cluster, job):
            job = begin(cluster, name)
        _settle(job)
        gone, back = _strike(cluster, job, act)
        found[f"{blow}, until the next step"] = back
        if blow == "preemption":
            found[GONE] = gone
    found["kill -9 of a rank"] = found.pop("kill -9 of a rank, until the next step")
    cluster.reset()
    return found


def _settle(job: Job) -> None:
    """Let the training save once more, so that the blow hits no fresh start."""
    first = job.pages.steps()[-1][1]
    end = time.monotonic() + 30
    while job.pages.steps()[-1][1] < first + 25 and time.monotonic() < end:
        time.sleep(0.1)


def _strike(cluster: Cluster, job: Job, act: Blow) -> tuple[float, float]:
    """Give the seconds until the ranks were gone, and until the next step."""
    old = job.pages.pids()
    earlier = [*old, *(pid for _, _, pid in job.pages.steps())]
    at = time.time()
    try:
        act(cluster, job)
    except _NobodyListensError:
        return math.inf, math.inf
    gone = math.inf
    while time.time() - at < PATIENCE_S:
        if gone == math.inf and not any(map(is_alive, old)):
            gone = time.time() - at
        back = job.pages.first_step(earlier)
        if back is not None:
            return gone, back - at
        if gone < math.inf and time.time() - at > gone + 10 and is_over(cluster, job):
            break
        time.sleep(LOOK_S)
    return gone, math.inf


def _kill(_cluster: Cluster, job: Job) -> None:
    strike(job.pages.pids(rank=1)[-1:])


def _preempt(cluster: Cluster, job: Job) -> None:
    preempt(cluster, job.pages.place, seconds=1)


def _warn(_cluster: Cluster, job: Job) -> None:
    if job.warn is None:
        raise _NobodyListensError
    job.warn()


def _requeue(cluster: Cluster, job: Job) -> None:
    words = ["scontrol", "requeue", job.id]
    cluster.run(words, user=cluster.user, check=False)


BLOWS: dict[str, Blow] = {
    "kill -9 of a rank": _kill,
    "warning before the time limit": _warn,
    "scontrol requeue": _requeue,
    "preemption": _preempt,
}


def reading(size: int, blocks: int) -> Result:
    """Read a state of so many MiB, from the page cache, into model and optimizer."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        state = State(size, init_dist("none"), Path(place))
        for save in (state.ours, state.plain, state.dcp):
            save()
            state.finish()
        try:
            return measure(
                f"Reading a state of {size} MiB",
                {
                    "torch.load, nothing verified": lambda: clock(state.load_plain),
                    "torch.load(mmap=True)": lambda: clock(
                        lambda: state.load_plain(mmap=True)
                    ),
                    "dcp.load": lambda: clock(state.load_dcp),
                    "ours, every byte verified": lambda: clock(state.load_ours),
                },
                unit="ms",
                blocks=blocks,
                seconds=60,
                baseline="torch.load, nothing verified",
                targets=[Target("ours, every byte verified", ratio=2.0)],
            )
        finally:
            shutdown()


if __name__ == "__main__":
    main()
