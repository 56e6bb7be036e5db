"""Submitting and watching whole runs on the real cluster, as the user."""

import subprocess
from pathlib import Path

from clusterddp.runs.directory import RunDirectory
from tests.cluster import Cluster
from tests.runs import Done, events, finish, step_of, wait_until

SLOW: dict[str, object] = {"sleep": 0.25}


def start(cluster: Cluster, home: Path, *words: str) -> subprocess.Popen[str]:
    """Start `python -m ...` as the user on the login node."""
    python = cluster.python_for_user()
    return cluster.popen([python, "-m", *words], user=cluster.user, cwd=home)


def verb(cluster: Cluster, home: Path, *words: str) -> Done:
    """Run `python -m clusterddp.VERB ...` as the user to its end."""
    return finish(start(cluster, home, f"clusterddp.{words[0]}", *words[1:]))


def submit(
    cluster: Cluster, home: Path, *words: str, step: int = 0
) -> tuple[str, RunDirectory]:
    """Submit over two nodes, wait for a finished step, give job id and run."""
    done = verb(cluster, home, "submit", "job.yaml", "--new", "--nodes", "2", *words)
    assert done.code == 0, done.err
    job_id, path = done.out.strip().split("\t")
    run = RunDirectory(Path(path))
    wait_until(lambda: step_of(run) >= step)
    return job_id, run


def preempt(cluster: Cluster, home: Path, seconds: int = 2) -> str:
    """Send a job of higher priority that takes all nodes; give its id."""
    shape = ("--partition=high", "--nodes=4", "--exclusive")
    wrap = f"--wrap=sleep {seconds}"
    return cluster.sbatch(*shape, wrap, user=cluster.user, cwd=home)


def causes(run: RunDirectory) -> list[object]:
    """Give the causes of the attempts' ends, as the ledger has them."""
    return [event.values["cause"] for event in events(run, "attempt_ended")]


def kinds(run: RunDirectory, *wanted: str) -> list[str]:
    """Give the kinds of some of the ledger's events, in order of time."""
    return [event.kind for kind in wanted for event in events(run, kind)]
