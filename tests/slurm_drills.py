"""Submitting and watching whole runs on the real cluster, as the user."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from clusterddp.runs.directory import RunDirectory
from tests.cluster import Cluster, daemons, processes
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


@contextlib.contextmanager
def site(cluster: Cluster, *lines: str) -> Iterator[None]:
    """Let the cluster run with other lines in slurm.conf, then as before.

    A line with a key that is there already (`JobRequeue=0`) replaces that line. The
    controller reads it again; only it takes a restart to forget gang scheduling.
    """
    path = cluster.parameters.conf_dir / "slurm.conf"
    before = path.read_text()
    names = tuple(f"{line.partition('=')[0]}=" for line in lines)
    partitions = [one for one in before.splitlines() if one.startswith("Partition")]
    kept = [one for one in before.splitlines() if not one.startswith(names)]
    text = dict.fromkeys([*kept, *partitions, *lines])
    path.write_text("".join(f"{line}\n" for line in text))
    try:
        cluster.run(["scontrol", "reconfigure"])
        yield
    finally:
        cluster.reset()
        path.write_text(before)
        if any("GANG" in line for line in lines):
            stop_daemon(cluster, "slurmctld")
            start_daemons(cluster)
            wait_until(lambda: set(cluster.node_states().values()) == {"idle"})
        else:
            cluster.run(["scontrol", "reconfigure"])


def stop_daemon(cluster: Cluster, name: str) -> None:
    """End one of the central daemons, and wait until it is gone."""
    daemon = _record(cluster).daemons[name]
    os.kill(daemon.pid, signal.SIGTERM)
    wait_until(lambda: not daemon.alive)


def start_daemons(cluster: Cluster) -> None:
    """Start those of the central daemons that do not run."""
    central = daemons.central_daemons(cluster.parameters)
    daemons.ensure_running(_record(cluster), central)


def _record(cluster: Cluster) -> processes.Record:
    record = processes.load_record(cluster.parameters.slot)
    assert record is not None
    return record
