"""status, logs, why and the finer points of submit, on a real Slurm."""

import json
import signal
from pathlib import Path

import pytest

from clusterddp.runs.directory import RunDirectory
from tests.cluster import Cluster
from tests.runs import Done, events, finish, step_of, wait_until, write_job
from tests.test_slurm_runs import start, submit

pytestmark = pytest.mark.cluster

SLOW = {"sleep": 0.25}


def ask(cluster: Cluster, home: Path, *words: str) -> Done:
    """Run a verb as the user, in the user's directory."""
    return finish(start(cluster, home, *words))


def send(cluster: Cluster, home: Path, *words: str) -> tuple[str, RunDirectory]:
    """Submit; give the job's id and the run."""
    done = submit(cluster, home, *words)
    assert done.code == 0, done.err
    job_id, path = done.out.rstrip("\n").split("\t")
    return job_id, RunDirectory(Path(path))


def test_life_of_a_run_as_its_user_sees_it(cluster: Cluster, home: Path) -> None:
    """Running, followed across a requeue, refused as a twin, waited for, finished."""
    write_job(home, params=SLOW)
    job_id, run = send(cluster, home)
    follower = start(cluster, home, "clusterddp.logs", "toy", "--follow")
    wait_until(lambda: step_of(run) >= 7)
    shown = json.loads(ask(cluster, home, "clusterddp.status", "--json").out)
    assert [(one["state"], one["job_id"]) for one in shown] == [("running", job_id)]
    twin = submit(cluster, home)
    assert twin.code == 2
    assert f"is running already (job {job_id})" in twin.err
    waiting, _ = send(cluster, home, "--after", str(run.path), "train.seed=1")
    assert cluster.show_job(waiting)["Dependency"].startswith(f"afterok:{job_id}")
    cluster.run(["scontrol", "requeue", job_id], user=cluster.user)
    wait_until(lambda: events(run, "finished"))
    told = finish(follower)
    assert told.code == 0, told.err
    assert [line for line in told.out.splitlines() if line.startswith("== ")] == [
        f"== attempt {n} · job {job_id} · {cluster.nodes[0]}" for n in (0, 1)
    ]
    assert told.out.count("step 30/30 · loss") == 1
    cluster.wait_job(waiting, {"COMPLETED"}, 90)
    why = ask(cluster, home, "clusterddp.why", str(run.path))
    assert "has finished: step 30 is done and saved, in attempt 1" in why.out
    report = ask(cluster, home, "clusterddp.report", str(run.path), "--text")
    assert report.out.splitlines()[-1].startswith("1  ")


def test_ctrl_c_of_a_follower_leaves_the_run_alone(
    cluster: Cluster, home: Path
) -> None:
    """130, no traceback; the job goes on."""
    write_job(home, params=SLOW)
    job_id, run = send(cluster, home)
    follower = start(cluster, home, "clusterddp.logs", "toy", "-f", "--rank", "0")
    wait_until(lambda: step_of(run) >= 7)
    follower.send_signal(signal.SIGINT)
    done = finish(follower)
    assert done.code == 130
    assert "Traceback" not in done.err
    assert done.out.startswith(("epoch 1/3", "[W"))
    cluster.wait_job(job_id, {"COMPLETED"}, 60)


@pytest.mark.parametrize(
    "launcher", ["slurm", pytest.param("pytorch", marks=pytest.mark.long)]
)
def test_setup_node_runs_once_per_node_and_attempt(
    cluster: Cluster, home: Path, launcher: str
) -> None:
    """2 nodes, a restart after a crash: two lines a node, before the ranks began."""
    write_job(home, params={"fault": "SIGKILL", "rank": 3, "at": 5})
    line = f"echo $SLURM_NODEID $CLUSTERDDP_ATTEMPT >> {home}/staged"
    words = ("--nodes", "2", "--launcher", launcher, "--cluster", "slurm")
    setup = f"slurm.setup_node=[sleep 1, {line}]"
    done = submit(cluster, home, "--wait", *words, setup)
    assert done.code == 0, done.err
    staged = sorted((home / "staged").read_text().splitlines())
    assert staged == ["0 0000", "0 0001", "1 0000", "1 0001"]


def test_setup_node_that_fails_is_named(cluster: Cluster, home: Path) -> None:
    """Why says which lines failed, and where."""
    write_job(home, retry={"crashes": 0})
    words = ("--nodes", "2", "slurm.setup_node=[echo no disk here, exit 9]")
    done = submit(cluster, home, "--wait", *words)
    assert done.code not in (0, 75), done.err
    why = ask(cluster, home, "clusterddp.why", "toy").out
    assert "slurm.setup_node: the lines left with 9 on" in " ".join(why.split())
    logs = ask(cluster, home, "clusterddp.logs", "toy").out
    assert "no disk here" in logs


def test_odd_names_and_an_interpreter_of_the_ranks(
    cluster: Cluster, home: Path
) -> None:
    """Quotes, commas, dollars, blanks in the path; `slurm.python` of several words."""
    odd = home / """it's "odd", $HOME & co"""
    odd.mkdir()
    cluster.run(["chown", cluster.user, str(odd)])
    write_job(home)
    python = f"[env, MARK=here, {cluster.python_for_user()}]"
    words = ("--wait", "--runs", str(odd / "runs"), f"slurm.python={python}")
    done = submit(cluster, home, *words)
    assert done.code == 0, done.err
    assert done.out.split("\t")[1].startswith(str(odd))
