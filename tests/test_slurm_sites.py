"""Sites with other rules: how they preempt, who is told, what stands still."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.costs import lost_steps, steps_of_attempts
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.verdict import read_verdicts
from tests.cluster import Cluster
from tests.runs import digest, events, rank_pids, step_of, wait_until, write_job
from tests.slurm_drills import (
    SLOW,
    causes,
    preempt,
    site,
    start_daemons,
    stop_daemon,
    submit,
)

pytestmark = pytest.mark.cluster

RARE = {"every": "1000 steps"}
TRACED = {**SLOW, "trace": True}
GRACE_S = 20.0  # of the partitions main and cancel
SITES = [
    pytest.param("main", (), "SIGTERM", id="SIGTERM", marks=pytest.mark.long),
    pytest.param(
        "main",
        ("SlurmctldParameters=preempt_send_user_signal",),
        "SIGUSR2",
        id="user signal",
    ),
    pytest.param("cancel", (), "SIGTERM", id="CANCEL", marks=pytest.mark.long),
    pytest.param(
        "main", ("JobRequeue=0",), "SIGTERM", id="JobRequeue=0", marks=pytest.mark.long
    ),
]


@pytest.fixture(scope="module")
def undisturbed(_cluster: Cluster) -> str:
    """The digest of a run of 2 x 2 ranks that nothing disturbed."""
    _cluster.reset()
    home = _cluster.make_dir()
    write_job(home)
    job_id, run = submit(_cluster, home)
    _cluster.wait_job(job_id, {"COMPLETED"}, 120)
    return digest(run)


@pytest.mark.parametrize(("partition", "lines", "told"), SITES)
def test_preemption_with_grace_loses_nothing(
    cluster: Cluster,
    home: Path,
    undisturbed: str,
    partition: str,
    lines: tuple[str, ...],
    told: str,
) -> None:
    """Zero steps done again, requeued once, gone long before the grace is over."""
    write_job(home, params=TRACED, checkpoint=RARE)
    with site(cluster, *lines):
        job_id, run = submit(cluster, home, f"slurm.partition={partition}", step=4)
        asked = time.time()
        cluster.wait_job(preempt(cluster, home), {"COMPLETED"}, 90)
        cluster.wait_job(job_id, {"COMPLETED"}, 120)
        assert cluster.show_job(job_id)["Restarts"] == "1"
    assert causes(run) == ["preempted", "completed"]
    assert told in {verdict.signal for verdict in read_verdicts(run.attempt(0))}
    assert lost_steps(steps_of_attempts(run)) == 0
    (requeue,) = events(run, "requeue")
    assert requeue.time - asked < GRACE_S, "it did not wait for the grace to be over"
    assert digest(run) == undisturbed


def test_gang_suspension_by_a_job_of_higher_priority(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """Suspended for longer than the stall timeout, resumed by Slurm, not restarted."""
    write_job(home, params=SLOW, retry={"stall_timeout": "6s"})
    rest = f"OverSubscribe=FORCE:1 Nodes={cluster.parameters.node_expression}"
    low = f"PartitionName=low PriorityTier=1 PreemptMode=SUSPEND {rest}"
    top = f"PartitionName=top PriorityTier=10 PreemptMode=OFF {rest}"
    with site(cluster, "PreemptMode=SUSPEND,GANG", low, top):
        job_id, run = submit(cluster, home, "slurm.partition=low", step=3)
        shape = ("--partition=top", "--nodes=4", "--ntasks-per-node=4")
        thief = cluster.sbatch(*shape, "--wrap=sleep 9", user=cluster.user)
        cluster.wait_job(job_id, {"SUSPENDED"}, 60)
        step = step_of(run)
        cluster.wait_job(thief, {"COMPLETED"}, 60)
        cluster.wait_job(job_id, {"COMPLETED"}, 120)
        assert cluster.show_job(job_id)["Restarts"] == "0"
    assert step < 30
    assert causes(run) == ["completed"]
    assert digest(run) == undisturbed


def trains(run: RunDirectory) -> bool:
    """Say whether a few steps are done."""
    return step_of(run) >= 3


def starts(run: RunDirectory) -> bool:
    """Say whether ranks are there, which have not met yet."""
    return len(rank_pids(run)) > 4 and step_of(run) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("when", "words"),
    [
        (trains, ("retry.stall_timeout=10s", "dist_params.timeout=15s")),
        (starts, ("retry.stall_timeout=10s", "dist_params.rendezvous_timeout=15s")),
        (trains, ("slurm.spare_nodes=1", "slurm.supervisor_timeout=10s")),
    ],
    ids=["stall and collectives", "rendezvous", "signs of life"],
)
def test_no_timer_takes_a_suspension_for_silence(
    cluster: Cluster,
    home: Path,
    undisturbed: str,
    when: Callable[[RunDirectory], bool],
    words: tuple[str, ...],
) -> None:
    """Whatever ran out meanwhile is not held against the run: no requeue, no crash."""
    write_job(home, params=SLOW, retry={"crashes": 0})
    job_id, run = submit(cluster, home, *words)
    wait_until(lambda: when(run))
    cluster.run(["scontrol", "suspend", job_id])
    cluster.wait_job(job_id, {"SUSPENDED"}, 30)
    wait_longer_than(20.0)
    cluster.run(["scontrol", "resume", job_id])
    cluster.wait_job(job_id, {"COMPLETED"}, 120)
    assert cluster.show_job(job_id)["Restarts"] == "0"
    assert set(causes(run)[:-1]) <= {"suspended"}
    assert causes(run)[-1] == "completed"
    assert digest(run) == undisturbed


def wait_longer_than(seconds: float) -> None:
    """Let a job stand still for longer than its timers allow."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end)


@pytest.mark.long
def test_database_down_from_beginning_to_end(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """Without accounting a run is sent, preempted, requeued and finished as ever."""
    write_job(home, params=TRACED, checkpoint=RARE)
    stop_daemon(cluster, "slurmdbd")
    try:
        job_id, run = submit(cluster, home, "slurm.partition=quick", step=4)
        preempt(cluster, home)
        wait_until(lambda: events(run, "finished"))
    finally:
        start_daemons(cluster)
    cluster.wait_job(job_id, {"COMPLETED"}, 60)
    assert causes(run) == ["preempted", "completed"]
    assert lost_steps(steps_of_attempts(run)) == 0
    assert digest(run) == undisturbed


@pytest.mark.long
def test_srun_that_stands_still_does_not_hold_up_a_finished_run(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """SIGSTOP of srun: the ranks finish, and a minute later the run has, too."""
    write_job(home, params=SLOW)
    job_id, run = submit(cluster, home, step=3)
    (started,) = events(run, "ranks_started")
    cluster.run(["kill", "-STOP", str(started.values["pid"])])
    cluster.wait_job(job_id, {"COMPLETED"}, 240)
    assert causes(run) == ["completed"]
    assert "has not: ending it" in run.attempt(0).log.read_text()
    assert digest(run) == undisturbed
