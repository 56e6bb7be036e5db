"""Bringing a run on the real cluster into a situation in which something is tried."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clusterddp.files import read_json
from clusterddp.runs.directory import RunDirectory
from tests.cluster import Cluster
from tests.runs import events, finish, kill, rank_pids, step_of, wait_until, write_job
from tests.slurm_drills import SLOW, preempt, start, submit

RARE = {"every": "1000 steps"}


@dataclass(frozen=True)
class Situation:
    """A run, how `scancel` names its job, and what has to be let go afterwards."""

    run: RunDirectory
    job: str
    let_go: Callable[[], object] = lambda: None


def in_preemption(cluster: Cluster, home: Path) -> Situation:
    """A job of higher priority has come, and the ranks have not left yet."""
    write_job(home, params={"sleep": 3}, checkpoint=RARE)
    job, run = submit(cluster, home, "slurm.partition=main", step=1)
    preempt(cluster, home)
    wait_until(lambda: cluster.show_job(job).get("PreemptTime") != "None")
    return Situation(run, job)


def in_save(cluster: Cluster, home: Path) -> Situation:
    """Rank 0 takes its time over a checkpoint."""
    every = {"every": "4 steps", "background": False}
    write_job(home, params={**SLOW, "write_s": 4}, checkpoint=every)
    job, run = submit(cluster, home, step=1)
    wait_until(lambda: (read_json(run.progress) or {}).get("phase") == "save")
    return Situation(run, job)


def between_attempts(cluster: Cluster, home: Path) -> Situation:
    """All ranks are dead, and the supervisor has not decided yet: it stands still."""
    write_job(home, params=SLOW)
    job, run = submit(cluster, home, step=7)
    owner = int(json.loads(run.attempt(0).owner.read_text())["pid"])
    os.kill(owner, signal.SIGSTOP)
    for pid in rank_pids(run):
        kill(pid)
    return Situation(run, job, lambda: kill(owner, signal.SIGCONT))


def at_start(cluster: Cluster, home: Path) -> Situation:
    """The attempt has begun, its ranks have not: the node is being prepared."""
    write_job(home, params=SLOW)
    job, run = submit(cluster, home, "slurm.setup_node=[echo here, sleep 60]")
    wait_until(lambda: events(run, "ranks_started"))
    return Situation(run, job)


def while_pending(cluster: Cluster, home: Path) -> Situation:
    """The job has never started."""
    write_job(home, params=SLOW)
    job, run = submit(cluster, home, "slurm.extra.begin=now+1hour")
    return Situation(run, job)


def while_held(cluster: Cluster, home: Path) -> Situation:
    """The job was preempted, is requeued, and waits."""
    write_job(home, params=SLOW)
    job, run = submit(cluster, home, "slurm.partition=quick", step=3)
    preempt(cluster, home, seconds=60)
    wait_until(lambda: events(run, "requeue"))
    wait_until(lambda: cluster.job_state(job) == "PENDING")
    return Situation(run, job)


def as_element(cluster: Cluster, home: Path) -> Situation:
    """The run is one of two elements of an array; the other goes on beside it."""
    write_job(home, params=SLOW, sweep={"grid": {"train.seed": [0, 1]}})
    words = ("clusterddp.submit", "job.yaml", "--new", "--nodes", "2")
    done = finish(start(cluster, home, *words))
    assert done.code == 0, done.err
    array, sweep = done.out.strip().split("\t")
    first, run = (
        RunDirectory((home / "runs" / f"{sweep}-{number:04d}").resolve())
        for number in range(2)
    )
    wait_until(lambda: min(step_of(first), step_of(run)) >= 3)

    def wait_for_the_other() -> None:
        cluster.wait_job(f"{array}_0", {"COMPLETED"}, 120)

    return Situation(run, f"{array}_1", wait_for_the_other)


SITUATIONS: dict[str, Callable[[Cluster, Path], Situation]] = {
    "preemption": in_preemption,
    "save": in_save,
    "between attempts": between_attempts,
    "start": at_start,
    "pending": while_pending,
    "held": while_held,
    "array": as_element,
}
