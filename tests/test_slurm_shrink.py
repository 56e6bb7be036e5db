"""`retry.shrink`: a job that has lost a node goes on with the ranks that are left."""

import json
from pathlib import Path

import pytest

from tests.cluster import Cluster, processes
from tests.runs import ROOT, events, step_of, wait_until, write_job
from tests.seen import read_epochs
from tests.slurm_drills import SLOW, causes, submit, verb

pytestmark = pytest.mark.cluster


def test_lost_node_leaves_a_smaller_world_that_grows_with_the_requeue(
    cluster: Cluster, home: Path
) -> None:
    """4 ranks, then 2 in the same job, then 4: every sample once in every epoch."""
    experiment = f"{ROOT}/tests/seen.py:build"
    write_job(home, experiment=experiment, params=SLOW, retry={"shrink": True})
    job_id, run = submit(cluster, home, step=7)
    lost = cluster.nodes[1]
    cluster.node_down(lost)
    wait_until(lambda: len(run.list_attempts()) == 2)
    assert cluster.show_job(job_id)["Restarts"] == "0"
    wait_until(lambda: "2 of 4 ranks" in verb(cluster, home, "status", "toy").out)
    told = verb(cluster, home, "why", "toy")
    assert told.code == 0, told.err
    why = " ".join(told.out.split())
    assert f"node failure of {lost}, time 1, going on with 1 of 2 nodes" in why
    cluster.node_up(lost)
    wait_until(lambda: step_of(run) >= 12)
    drilled = verb(cluster, home, "drill", "toy", "--preempt", "--json")
    assert json.loads(drilled.out)["lost_steps"] == 0, drilled.err
    cluster.wait_job(job_id, {"COMPLETED"}, 120)
    assert causes(run) == ["node failure", "preempted", "completed"]
    shrunk = [one.values.get("shrunk") for one in events(run, "attempt_started")]
    assert shrunk == [None, {"ranks": 2, "of": 4}, None]
    assert read_epochs(run) == [list(range(240))] * 3


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["slurm", "pytorch"])
def test_bad_node_is_left_out_of_the_same_job(
    cluster: Cluster, home: Path, launcher: str
) -> None:
    """The same crash twice on one node, which still answers: on without it."""
    fault = {"fault": "exit", "rank": 3, "at": 3, "always": True}
    write_job(home, params=fault, retry={"shrink": True})
    words = ("--launcher", launcher, "--cluster", "slurm")
    job_id, run = submit(cluster, home, *words)
    cluster.wait_job(job_id, {"COMPLETED"}, 150)
    assert causes(run) == ["crash", "crash", "completed"]
    assert cluster.show_job(job_id)["Restarts"] == "0"
    restarted = str(events(run, "restart")[-1].values["reason"])
    where = f"twice on {cluster.nodes[1]}: excluding the node, going on with 1 of 2"
    assert where in restarted


@pytest.mark.long
def test_job_that_may_shrink_does_not_stay_without_supervisor(
    cluster: Cluster, home: Path
) -> None:
    """The supervisor's own node is lost: the ranks left requeue the job, once."""
    write_job(home, params=SLOW, retry={"shrink": True})
    job_id, run = submit(cluster, home, "slurm.supervisor_timeout=8s", step=7)
    lost = cluster.nodes[0]
    cluster.node_down(lost)
    for process in processes.inside([cluster.parameters.namespace(lost)]):
        if process.name != "slurmd":
            process.kill()  # the file system would outlive the network here
    wait_until(lambda: len(run.list_attempts()) == 2)
    assert (run.attempt(0).path / "orphaned").exists()
    assert cluster.show_job(job_id)["Restarts"] == "1"
    cluster.node_up(lost)
    cluster.wait_job(job_id, {"COMPLETED"}, 120)
