"""Each cause that ends an attempt, for real, and what becomes of the run."""

import json
import os
import signal
from pathlib import Path

import pytest

from clusterddp.launch.stacks import stacks_directory
from tests.cluster import Cluster, daemons, processes
from tests.runs import digest, events, losses, step_of, wait_until, write_job
from tests.slurm_drills import SLOW, causes, preempt, submit, verb

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def undisturbed(_cluster: Cluster) -> str:
    """The digest of a run of 2 x 2 ranks that nothing disturbed."""
    _cluster.reset()
    home = _cluster.make_dir()
    write_job(home)
    job_id, run = submit(_cluster, home)
    _cluster.wait_job(job_id, {"COMPLETED"}, 90)
    return digest(run)


def test_stalled_rank_is_found_described_and_the_run_goes_on(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """SIGSTOP of a rank: the others' stacks, /proc of the silent one, a restart."""
    write_job(
        home,
        params={"fault": "SIGSTOP", "rank": 3, "at": 7},
        retry={"stall_timeout": "4s"},
    )
    job_id, run = submit(cluster, home)
    cluster.wait_job(job_id, {"COMPLETED"}, 120)
    assert causes(run) == ["stalled", "completed"]
    assert cluster.show_job(job_id)["Restarts"] == "0"
    stacks = stacks_directory(run.attempt(0))
    for rank in range(3):
        assert "File " in (stacks / f"rank-{rank:04d}.txt").read_text()
    silent = json.loads((stacks / "silent-0003.json").read_text())
    assert silent["host"] == cluster.nodes[1]
    assert "stopped" in silent["threads"][str(silent["pid"])]["state"]
    log = run.attempt(0).log.read_text()
    assert f"rank 3 on {cluster.nodes[1]} did not answer" in log
    assert digest(run) == undisturbed


def test_lost_node_is_excluded_and_the_run_goes_on(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """Slurm requeues the job by itself; the supervisor has the node excluded."""
    write_job(home, params=SLOW)
    job_id, run = submit(cluster, home, step=7)
    lost = cluster.nodes[1]
    cluster.node_down(lost)
    wait_until(lambda: len(run.list_attempts()) == 2)
    assert cluster.show_job(job_id)["ExcNodeList"] == lost
    cluster.node_up(lost)
    cluster.wait_job(job_id, {"COMPLETED"}, 90)
    assert causes(run) == ["node failure", "completed"]
    assert digest(run) == undisturbed


@pytest.mark.long
def test_supervisors_own_node_lost(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """Slurm requeues the job elsewhere; whoever comes later goes on with the run."""
    write_job(home, params=SLOW)
    job_id, run = submit(cluster, home, step=7)
    cluster.node_down(cluster.nodes[0])
    wait_until(lambda: len(run.list_attempts()) == 2)
    cluster.wait_job(job_id, {"COMPLETED"}, 90)
    assert causes(run)[-1] == "completed"
    assert digest(run) == undisturbed


@pytest.mark.parametrize(
    "partition", ["nograce", pytest.param("cancel", marks=pytest.mark.long)]
)
def test_preemption_with_other_rules(
    cluster: Cluster, home: Path, undisturbed: str, partition: str
) -> None:
    """No grace: at most one interval is lost. CANCEL: requeued all the same."""
    write_job(home, params=SLOW)
    job_id, run = submit(cluster, home, f"slurm.partition={partition}", step=7)
    cluster.wait_job(preempt(cluster, home), {"COMPLETED"}, 60)
    cluster.wait_job(job_id, {"COMPLETED"}, 90)
    assert cluster.show_job(job_id)["Restarts"] == "1"
    assert len(run.list_attempts()) == 2
    assert digest(run) == undisturbed


def test_job_that_may_not_be_requeued_gets_a_successor(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """Requeue=0: another job goes on in the same run directory."""
    write_job(home, params=SLOW, checkpoint={"every": "1000 steps"})
    job_id, run = submit(cluster, home, "slurm.partition=quick", step=4)
    words = ["scontrol", "update", f"JobId={job_id}", "Requeue=0"]
    cluster.run(words, user=cluster.user)
    cluster.wait_job(preempt(cluster, home), {"COMPLETED"}, 60)
    wait_until(lambda: len(events(run, "submitted")) == 2)
    second = str(events(run, "submitted")[1].values["job"])
    cluster.wait_job(second, {"COMPLETED"}, 90)
    assert cluster.job_state(job_id) != "COMPLETED", "the exit code tells the truth"
    assert causes(run) == ["preempted", "completed"]
    assert digest(run) == undisturbed


def test_scancel_during_a_preemption_wins(cluster: Cluster, home: Path) -> None:
    """The ranks cannot save in time, nor the supervisor wait: the word stands."""
    write_job(home, params={"sleep": 6}, checkpoint={"every": "1000 steps"})
    job_id, run = submit(cluster, home, "slurm.partition=main", step=1)
    preempt(cluster, home)
    wait_until(lambda: cluster.show_job(job_id).get("PreemptTime") != "None")
    cluster.run(["scancel", job_id], user=cluster.user)
    cluster.wait_job(job_id, {"CANCELLED"}, 60)
    assert events(run, "cancel_requested")
    assert not events(run, "requeue")
    assert not events(run, "needs_resubmit")


@pytest.mark.long
def test_suspended_job_goes_on_and_no_timer_misfires(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """Stopped for longer than the stall timeout: no stall, one attempt."""
    write_job(home, params=SLOW, retry={"stall_timeout": "6s"})
    job_id, run = submit(cluster, home, step=3)
    cluster.run(["scontrol", "suspend", job_id])
    step = step_of(run)
    wait_until(lambda: cluster.job_state(job_id) == "SUSPENDED")
    wait_longer_than_the_timeout()
    cluster.run(["scontrol", "resume", job_id])
    cluster.wait_job(job_id, {"COMPLETED"}, 90)
    assert causes(run) == ["completed"]
    assert step < losses(run)[-1][0]
    assert digest(run) == undisturbed


def wait_longer_than_the_timeout() -> None:
    """Let 9 s pass by a clock, as a suspended job lets them pass."""
    import time

    end = time.monotonic() + 9
    wait_until(lambda: time.monotonic() > end)


@pytest.mark.long
def test_controller_restarted_in_the_middle(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """A rank dies while slurmctld is away: asked patiently, started again, finished.

    22.05 may go on to count the CPUs of a step that ended meanwhile, and then starts
    no other in this job (seen): after slurm.step_timeout the job is requeued.
    """
    write_job(home, params={"sleep": 0.2, "fault": "SIGKILL", "rank": 3, "at": 12})
    _, run = submit(cluster, home, "slurm.step_timeout=25s", step=3)
    record = processes.load_record(cluster.parameters.slot)
    assert record is not None
    os.kill(record.daemons["slurmctld"].pid, signal.SIGTERM)
    wait_until((run.path / "fault-done").exists)
    wait_longer_than_the_timeout()
    daemons.ensure_running(record, daemons.central_daemons(cluster.parameters))
    wait_until(lambda: events(run, "finished"), 240)
    assert causes(run)[0] == "crash"
    assert causes(run)[-1] == "completed"
    assert digest(run) == undisturbed


@pytest.mark.long
def test_spare_node_takes_over_in_the_same_job(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """A node with ranks is lost: no requeue, the ranks start again on what is left."""
    write_job(home, params=SLOW)
    job_id, run = submit(cluster, home, "slurm.spare_nodes=1", step=7)
    assert cluster.show_job(job_id)["NumNodes"] == "3"
    lost = cluster.nodes[1]
    cluster.node_down(lost)
    cluster.wait_job(job_id, {"COMPLETED"}, 150)
    cluster.node_up(lost)
    assert causes(run) == ["node failure", "completed"]
    assert cluster.show_job(job_id)["Restarts"] == "0"
    assert not events(run, "requeue")
    assert digest(run) == undisturbed


def test_job_with_spare_nodes_does_not_stay_without_supervisor(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """The supervisor's own node is lost: the ranks left requeue the job, once."""
    write_job(home, params=SLOW)
    words = ("slurm.spare_nodes=1", "slurm.supervisor_timeout=8s")
    job_id, run = submit(cluster, home, *words, step=7)
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
    assert digest(run) == undisturbed


def test_out_of_memory_before_the_first_step_stops_with_advice(
    cluster: Cluster, home: Path
) -> None:
    """Nothing is tried again, no budget is burnt."""
    write_job(home, params={"fault": "memory", "at": 1, "always": True})
    done = verb(cluster, home, "submit", "job.yaml", "--nodes", "2", "--wait")
    assert done.code == 1, done.err
    run_dir = Path(done.out.strip().split("\t")[1])
    logs = (run_dir / "attempts" / "0000" / "supervisor.log").read_text()
    assert "out of memory before the first step" in logs
    assert len(list((run_dir / "attempts").iterdir())) == 1
