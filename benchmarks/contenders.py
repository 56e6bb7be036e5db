"""Whole runs on the real cluster: ours, and how others come back there.

Each is two ranks on one node in the partition `main`, which is preempted with a
grace time of 20 s, and saves every 20 steps.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.jobs import write_job
from benchmarks.scene import Pages, await_first_step
from tests.cluster import Cluster
from tests.runs import ROOT

PAUSE_S = 0.1
_OVER = ("FAILED", "COMPLETED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


@dataclass
class Job:
    """A contender's job that trains.

    Attributes:
        id: Slurm's number.
        pages: its diary.
        warn: how Slurm would tell it that its time is nearly over; None where nobody
            listens.
    """

    id: str
    pages: Pages
    warn: Callable[[], None] | None


def begin(cluster: Cluster, name: str) -> Job:
    """Submit a contender, and wait for its tenth step."""
    cluster.reset()
    home = cluster.make_dir("bench-")
    job = Job(*CONTENDERS[name](cluster, home))
    await_first_step(cluster, job.id, job.pages)
    end = time.monotonic() + 60
    while job.pages.steps()[-1][1] < 10 and time.monotonic() < end:
        time.sleep(0.1)
    return job


def is_over(cluster: Cluster, job: Job) -> bool:
    """Say whether Slurm has the job among those that never run again."""
    return cluster.job_state(job.id).startswith(_OVER)


Submitted = tuple[str, Pages, Callable[[], None] | None]


def _ours(cluster: Cluster, home: Path) -> Submitted:
    write_job(home, pause_s=PAUSE_S, partition="main")
    words = (cluster.python_for_user(), "-m", "clusterddp.submit", "job.yaml", "--new")
    done = cluster.run(words, user=cluster.user, cwd=home)
    job, run = done.stdout.split()
    rehearse = (cluster.python_for_user(), "-m", "clusterddp.drill", run, "--timeout")

    def warn() -> None:
        # Slurm's own signal; the drill also tells the supervisor that it stands for
        # the time limit, which is otherwise known by the clock.
        cluster.popen(rehearse, user=cluster.user, cwd=home)

    return job, Pages(home), warn


def _torchrun(cluster: Cluster, home: Path) -> Submitted:
    python = cluster.python_for_user()
    # The switch: a restart must not find a dead rank's address (pytorch#135712).
    command = (
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; "
        f"exec srun --ntasks=1 --cpus-per-task=2 {python} -m torch.distributed.run"
        f" --standalone --nproc-per-node=2 --max-restarts=100 -m benchmarks.peers.plain"
        f" {home} --pause {PAUSE_S}"
    )
    return _batch(cluster, home, command, ("--ntasks=1", "--cpus-per-task=2"), None)


def _submitit(cluster: Cluster, home: Path) -> Submitted:
    module = ("-m", "benchmarks.peers.submitit_recipe", home, str(PAUSE_S))
    words = (cluster.python_for_user(), *module)
    environ = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = cluster.run(words, user=cluster.user, cwd=home, env=environ)
    job = done.stdout.strip().splitlines()[-1]
    return job, Pages(home), lambda: _signal(cluster, job, signal.SIGUSR2)


def _lightning(cluster: Cluster, home: Path) -> Submitted:
    python = cluster.python_for_user()
    module = "benchmarks.peers.lightning_auto"
    command = f"exec srun {python} -m {module} {home} {PAUSE_S}"
    options = ("--nodes=1", "--ntasks-per-node=2", "--signal=SIGUSR1@90")
    return _batch(cluster, home, command, options, signal.SIGUSR1)


def _batch(
    cluster: Cluster,
    home: Path,
    command: str,
    options: tuple[str, ...],
    told_by: signal.Signals | None,
) -> Submitted:
    script = home / "job.sh"
    setting = f"export PYTHONPATH={ROOT} OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1"
    script.write_text(f"#!/bin/bash\n{setting}\n{command}\n")
    shape = (
        *options,
        "--requeue",
        "--partition=main",
        "--time=30",
        "--open-mode=append",
    )
    job = cluster.sbatch(*shape, script, user=cluster.user, cwd=home)

    if told_by is None:
        return job, Pages(home), None
    return job, Pages(home), lambda: _signal(cluster, job, told_by)


def _signal(cluster: Cluster, job: str, signum: signal.Signals) -> None:
    """Signal the steps, as Slurm does for --signal=NAME@SECONDS."""
    name = signum.name.removeprefix("SIG")
    cluster.run(["scancel", f"--signal={name}", job], user=cluster.user)


CONTENDERS: dict[str, Callable[[Cluster, Path], Submitted]] = {
    "ours": _ours,
    "torchrun --max-restarts": _torchrun,
    "submitit, checkpoint()": _submitit,
    "Lightning, auto-requeue": _lightning,
}
