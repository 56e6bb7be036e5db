"""What a site may deny or lack, for real: room for another job, and the accounting."""

import contextlib
import functools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterddp.runs.directory import RunDirectory
from tests.cluster import Cluster, daemons, processes
from tests.runs import events, finish, rank_pids, step_of, wait_until, write_job
from tests.slurm_drills import SLOW, causes, start, submit, verb

pytestmark = pytest.mark.cluster
LONG = pytest.mark.long


def restart(cluster: Cluster, name: str) -> None:
    """Ask one of the central daemons to end, and start it again.

    A slurmctld that is killed forgets what it has not saved yet, and a job that is over
    runs once more (seen: it then counted among the jobs that the user may have).
    """
    record = processes.load_record(cluster.parameters.slot)
    assert record is not None
    process = record.daemons[name]
    os.kill(process.pid, signal.SIGTERM)
    wait_until(lambda: not process.alive)
    daemons.ensure_running(record, daemons.central_daemons(cluster.parameters))


def end(cluster: Cluster, name: str) -> None:
    """Kill one of the central daemons."""
    record = processes.load_record(cluster.parameters.slot)
    assert record is not None
    process = record.daemons[name]
    process.kill()
    wait_until(lambda: not process.alive)


@contextlib.contextmanager
def enforced_limits(cluster: Cluster) -> Iterator[None]:
    """Let the controller hold the user to the limits of an account of its own."""
    conf = cluster.parameters.conf_dir / "slurm.conf"
    before = conf.read_text()
    manage(cluster, "add", "account", "lab")
    manage(cluster, "add", "user", cluster.user, "account=lab")
    conf.write_text(f"{before}AccountingStorageEnforce=limits\n")
    restart(cluster, "slurmctld")
    try:
        yield
    finally:
        cluster.reset()
        conf.write_text(before)
        restart(cluster, "slurmctld")
        manage(cluster, "delete", "user", cluster.user)
        manage(cluster, "delete", "account", "lab")
        cluster.reset()


def manage(cluster: Cluster, *words: str) -> None:
    """Ask sacctmgr; the controller hears of it within a second or so."""
    cluster.run(["sacctmgr", "--immediate", *words])


@LONG
def test_successor_waits_until_there_is_room_for_one_more_job(
    cluster: Cluster, home: Path
) -> None:
    """One job is allowed, and that is the one about to leave; then two are."""
    write_job(home, params=SLOW)
    with enforced_limits(cluster):
        job_id, run = submit(cluster, home, step=4)
        words = ["scontrol", "update", f"JobId={job_id}", "Requeue=0"]
        cluster.run(words, user=cluster.user)
        allow(cluster, 1)
        refused = verb(cluster, home, "submit", "job.yaml", "--new")
        assert refused.code == 4
        assert "sbatch refused: AssocMaxSubmitJobLimit; Batch job" in refused.err
        drill = start(cluster, home, "clusterddp.drill", str(run.path), "--preempt")
        wait_until(lambda: events(run, "refused"))
        allow(cluster, 2)
        wait_until(lambda: len(events(run, "submitted")) == 2)
        second = str(events(run, "submitted")[1].values["job"])
        cluster.wait_job(second, {"COMPLETED"}, 90)
        assert finish(drill).code == 0
    assert causes(run) == ["preempted", "completed"]


def allow(cluster: Cluster, jobs: int) -> None:
    """Set how many jobs the user may have submitted."""
    words = ("user", cluster.user, "set", f"maxsubmitjobs={jobs}")
    manage(cluster, "modify", *words)


@pytest.mark.parametrize("accounting", ["down", pytest.param("off", marks=LONG)])
def test_runs_live_and_come_back_without_accounting(
    cluster: Cluster, home: Path, accounting: str
) -> None:
    """Slurmdbd killed, or a site that has none: killed supervisor, resubmit, finish."""
    write_job(home, params={"sleep": 0.1})
    env = without_accounting(cluster, home, accounting)
    asked = cluster.run(["sacct"], user=cluster.user, check=False, env=env)
    assert asked.returncode != 0, asked.stdout
    ask = functools.partial(ask_as_user, cluster, home, env)
    job_id, path = ask("submit", "job.yaml", "--nodes", "2").split()
    run = RunDirectory(Path(path))
    wait_until(lambda: step_of(run) >= 5)
    assert json.loads(ask("status", "--json"))[0]["state"] == "running"
    owner = json.loads(run.attempt(0).owner.read_text())
    cluster.run(["kill", "-9", str(owner["pid"])])
    wait_until(lambda: cluster.show_job(job_id)["JobState"] == "FAILED")
    wait_until(lambda: rank_pids(run) == [])
    assert f"job {job_id} ended as FAILED" in ask("why", "toy")
    assert "resubmitted" in ask("resubmit", "--all")
    assert "left-alone" in ask("resubmit", "--all")
    wait_until(lambda: events(run, "finished"))
    assert causes(run) == ["completed"]


def ask_as_user(cluster: Cluster, home: Path, env: dict[str, str], *words: str) -> str:
    """Run a verb to its end; give what it printed, on one line."""
    argv = [str(cluster.python_for_user()), "-m", f"clusterddp.{words[0]}", *words[1:]]
    done = cluster.run(argv, user=cluster.user, cwd=home, env=env)
    return " ".join(done.stdout.split())


def without_accounting(cluster: Cluster, home: Path, how: str) -> dict[str, str]:
    """End slurmdbd, or give the variables of a site that keeps no accounts."""
    if how == "down":
        end(cluster, "slurmdbd")
        return {}
    conf = home / "slurm.conf"
    text = (cluster.parameters.conf_dir / "slurm.conf").read_text()
    kept = [line for line in text.splitlines() if not line.startswith("AccountingSto")]
    conf.write_text("\n".join(kept) + "\n")
    shutil.copy(cluster.parameters.conf_dir / "gres.conf", home)
    shutil.copy(cluster.parameters.conf_dir / "cgroup.conf", home)
    return {"SLURM_CONF": str(conf)}


@LONG
def test_requeued_job_is_asked_earlier_than_its_own_signal(
    cluster: Cluster, home: Path
) -> None:
    """The signal is 90 s before the limit for good; saves took 130 s: nothing is lost.

    The long save is a line of ours. Slurm would ask after 90 s at the earliest.
    """
    write_job(home, params={"sleep": 3}, slurm={"time": "1h"})
    job_id, run = submit(cluster, home, step=6)
    with run.attempt(0).saves.open("a") as file:
        file.write('{"event": "saved", "step": 5, "time": 1, "write_s": 130}\n')
    words = ["scontrol", "update", f"JobId={job_id}", "TimeLimit=4"]
    cluster.run(words, user=cluster.user)
    wait_until(lambda: events(run, "early_signal"))
    wait_until(lambda: events(run, "requeue"))
    cluster.run(["scontrol", "update", f"JobId={job_id}", "TimeLimit=60"])
    cluster.wait_job(job_id, {"COMPLETED"}, 180)
    asked = events(run, "early_signal")[0].values
    assert float(str(asked["seconds"])) >= 220.0
    assert asked["job_s"] == 90.0
    assert causes(run) == ["time limit", "completed"]
    ended = events(run, "attempt_ended")[0].values
    assert ended["checkpoint"] == ended["step"]
