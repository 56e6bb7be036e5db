"""`clusterddp.drill` on the real cluster: what it says is what has happened."""

import json
from pathlib import Path

import pytest

from benchmarks.costs import lost_steps, steps_of_attempts
from clusterddp.launch.stacks import stacks_directory
from clusterddp.runs.directory import RunDirectory
from tests.cluster import Cluster
from tests.runs import events, write_job
from tests.slurm_drills import causes, submit, verb

pytestmark = pytest.mark.cluster


def drill(
    cluster: Cluster, home: Path, run: RunDirectory, *words: str
) -> dict[str, object]:
    """Run the verb; check what it tells against logs and ledger, and give it."""
    number = len(run.list_attempts()) - 1
    done = verb(cluster, home, "drill", str(run.path), *words, "--json")
    assert done.code == 0, done.err
    told: dict[str, object] = json.loads(done.out)
    struck, after = steps_of_attempts(run)[number : number + 2]
    assert told["step"] == struck[1]
    assert told["resumed_at"] == after[0]
    assert told["lost_steps"] == lost_steps([struck, after])
    (ended,) = (
        one for one in events(run, "attempt_ended") if one.values["attempt"] == number
    )
    assert told["cause"] == ended.values["cause"]
    assert 0 < float(str(told["stopped_s"])) < float(str(told["back_s"]))
    return told


def test_stall_by_the_verb(cluster: Cluster, home: Path) -> None:
    """SIGSTOP of a rank: found after the timeout, stacks kept, restarted."""
    write_job(
        home,
        params={"sleep": 0.4, "trace": True},
        checkpoint={"every": "4 steps"},
        retry={"stall_timeout": "5s"},
    )
    job_id, run = submit(cluster, home, step=2)
    told = drill(cluster, home, run, "--stall", "2")
    assert told["cause"] == "stalled"
    assert float(str(told["stopped_s"])) > 4.0
    assert (stacks_directory(run.attempt(0)) / "silent-0002.json").exists()
    assert cluster.show_job(job_id)["Restarts"] == "0"


@pytest.mark.long
def test_preempt_by_the_verb(cluster: Cluster, home: Path) -> None:
    """Saved, requeued, and back soon after: with Slurm's own hold of two minutes, too.

    `CLUSTERDDP_TEST_HOLD=0` runs it so; let go at once, the job would be FAILED.
    """
    write_job(home, params={"sleep": 0.4, "trace": True})
    job_id, run = submit(cluster, home, step=2)
    assert drill(cluster, home, run, "--preempt")["lost_steps"] == 0
    assert cluster.show_job(job_id)["Restarts"] == "1"
    cluster.wait_job(job_id, {"COMPLETED"}, 120)


@pytest.mark.long
def test_all_drills_in_a_row(cluster: Cluster, home: Path) -> None:
    """What asks the ranks to stop loses nothing; what kills, less than an interval."""
    write_job(
        home,
        train={"epochs": 8},
        params={"sleep": 0.4, "trace": True},
        checkpoint={"every": "4 steps"},
        retry={"stall_timeout": "8s"},
    )
    job_id, run = submit(cluster, home, step=2)
    assert drill(cluster, home, run, "--preempt")["lost_steps"] == 0
    assert drill(cluster, home, run, "--timeout")["lost_steps"] == 0
    killed = drill(cluster, home, run, "--kill-rank", "3")["lost_steps"]
    stalled = drill(cluster, home, run, "--stall", "1")["lost_steps"]
    assert all(isinstance(lost, int) and lost <= 8 for lost in (killed, stalled))
    cluster.wait_job(job_id, {"COMPLETED"}, 120)
    told = ["preempted", "time limit", "crash", "stalled", "completed"]
    assert causes(run) == told
