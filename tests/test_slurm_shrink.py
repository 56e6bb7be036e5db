"""`retry.shrink`: a job that has lost a node goes on with the ranks that are left."""

import json
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.runs import ROOT, events, wait_until, write_job
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
    drilled = verb(cluster, home, "drill", "toy", "--preempt", "--json")
    assert json.loads(drilled.out)["lost_steps"] == 0, drilled.err
    cluster.wait_job(job_id, {"COMPLETED"}, 120)
    assert causes(run) == ["node failure", "preempted", "completed"]
    shrunk = [one.values.get("shrunk") for one in events(run, "attempt_started")]
    assert shrunk == [None, {"ranks": 2, "of": 4}, None]
    assert read_epochs(run) == [list(range(240))] * 3
