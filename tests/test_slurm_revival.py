"""Bringing runs back, and ending them for good, on the real cluster as the user."""

import json
from pathlib import Path

import pytest

from clusterddp.runs.directory import RunDirectory
from tests.cluster import Cluster
from tests.runs import digest, events, finish, rank_pids, step_of, wait_until, write_job
from tests.slurm_drills import SLOW, causes, preempt, start, submit, verb

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def undisturbed(_cluster: Cluster) -> str:
    """The digest of a run of 2 x 2 ranks that nothing disturbed."""
    _cluster.reset()
    home = _cluster.make_dir()
    write_job(home)
    job_id, run = submit(_cluster, home)
    _cluster.wait_job(job_id, {"COMPLETED"}, 120)
    return digest(run)


def rows(text: str) -> dict[str, dict[str, str]]:
    """Give the rows that `resubmit --json` printed, by the run's path."""
    return {row["path"]: row for row in json.loads(text)}


def test_killed_supervisor_is_brought_back_once(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """Two resubmits at the same time send one job; a third leaves it alone.

    A change of the job's shape is kept, and the bits stay the same: 4 ranks.
    """
    write_job(home, params=SLOW)
    job_id, run = submit(cluster, home, step=7)
    owner = json.loads(run.attempt(0).owner.read_text())
    cluster.run(["kill", "-9", str(owner["pid"])])
    cluster.wait_job(job_id, {"FAILED"}, 60)
    wait_until(lambda: rank_pids(run) == [], 60)
    shape = ("--nodes", "1", "--tasks-per-node", "4")
    words = ("clusterddp.resubmit", "--all", "--json", *shape)
    both = [start(cluster, home, *words) for _ in range(2)]
    done = [finish(process) for process in both]
    actions = [rows(one.out)[str(run.path)]["action"] for one in done]
    assert actions.count("resubmitted") == 1, (actions, done)
    third = verb(cluster, home, "resubmit", "toy")
    assert "left-alone" in third.out
    sent = [str(event.values["job"]) for event in events(run, "submitted")]
    assert len(sent) == 2
    cluster.wait_job(sent[1], {"COMPLETED"}, 120)
    assert cluster.sacct(sent[1])[0]["NodeList"] in cluster.nodes, "one node now"
    assert digest(run) == undisturbed
    last = verb(cluster, home, "resubmit", "toy", "--force")
    assert "its last step is done" in last.out


def test_job_that_a_node_could_not_start_is_released(
    cluster: Cluster, home: Path
) -> None:
    """Slurm holds it for good; `why` says so, and `resubmit` lets it go, as the user.

    On every node a file lies where slurmd wants to make the job's directory, as if the
    disk were full; then the disks are sound again.
    """
    write_job(home)
    earlier = cluster.sbatch("--hold", "--wrap", "true", user=cluster.user, cwd=home)
    cluster.run(["scancel", earlier])
    spool = Path(cluster.parameters.root) / "spool"
    obstacles = [spool / node / f"job{int(earlier) + 1:05}" for node in cluster.nodes]
    try:
        for obstacle in obstacles:
            obstacle.touch()
        done = verb(cluster, home, "submit", "job.yaml", "--new", "--nodes", "2")
        job_id, path = done.out.strip().split("\t")
        wait_until(lambda: "launch_failed" in cluster.show_job(job_id)["Reason"], 60)
    finally:
        for obstacle in obstacles:
            obstacle.unlink()
    assert "holds the job until somebody releases it" in one_line(
        verb(cluster, home, "why", path).out
    )
    shown = rows(verb(cluster, home, "resubmit", "--all", "--json").out)[path]
    assert (shown["action"], shown["job"]) == ("released", job_id)
    cluster.wait_job(job_id, {"COMPLETED"}, 120)
    assert events(RunDirectory(Path(path)), "finished")


def one_line(text: str) -> str:
    """Give a text without its line breaks."""
    return " ".join(text.split())


def test_preempted_for_good_is_brought_back_and_a_cancelled_run_is_not(
    cluster: Cluster, home: Path
) -> None:
    """`--all` where the site cancels what it preempts, before the ranks can save."""
    write_job(home, params={"sleep": 3}, checkpoint={"every": "1 epoch"})
    _, cancelled = submit(cluster, home)
    assert verb(cluster, home, "cancel", str(cancelled.path)).code == 0
    job_id, run = submit(cluster, home, "slurm.partition=cancel", step=1)
    cluster.run(["scontrol", "update", "PartitionName=cancel", "GraceTime=0"])
    try:
        cluster.wait_job(preempt(cluster, home), {"COMPLETED"}, 90)
    finally:
        cluster.run(["scontrol", "update", "PartitionName=cancel", "GraceTime=20"])
    cluster.wait_job(job_id, {"PREEMPTED"}, 60)
    shown = rows(verb(cluster, home, "resubmit", "--all", "--dry-run", "--json").out)
    assert shown[str(run.path)]["action"] == "would send"
    assert shown[str(run.path)]["state"] == "preempted"
    assert shown[str(cancelled.path)]["state"] == "cancelled"
    done = verb(cluster, home, "resubmit", str(run.path), "slurm.partition=main")
    assert done.code == 0, done.err
    second = str(events(run, "submitted")[1].values["job"])
    assert cluster.show_job(second)["Partition"] == "main"
    assert verb(cluster, home, "cancel", str(run.path), "--now").code == 0
    cluster.wait_job(second, {"CANCELLED"}, 60)


def test_cancel_lets_the_ranks_save_and_nothing_brings_the_run_back(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """Saved at a step, not requeued; `resubmit` needs --force, then the same bits."""
    write_job(home, params=SLOW, checkpoint={"every": "1000 steps"})
    job_id, run = submit(cluster, home, step=4)
    done = verb(cluster, home, "cancel", "toy")
    assert done.code == 0, done.err
    assert "saved at step" in done.out
    assert cluster.job_state(job_id) != "COMPLETED"
    wait_until(lambda: causes(run) == ["cancelled"], 30)
    left = verb(cluster, home, "resubmit", "toy")
    assert "somebody cancelled it; see --force" in left.out
    assert len(events(run, "submitted")) == 1
    back = verb(cluster, home, "resubmit", "toy", "--force")
    assert "resubmitted" in back.out
    second = str(events(run, "submitted")[1].values["job"])
    cluster.wait_job(second, {"COMPLETED"}, 120)
    assert digest(run) == undisturbed


@pytest.mark.long
def test_cancel_during_a_preemption_and_of_a_waiting_job(
    cluster: Cluster, home: Path
) -> None:
    """The requeue is not made, or undone: the job does not come back."""
    write_job(home, params=SLOW)
    job_id, run = submit(cluster, home, "slurm.partition=quick", step=3)
    preempt(cluster, home, seconds=60)
    wait_until(lambda: events(run, "requeue") or cluster.squeue().get(job_id) is None)
    done = verb(cluster, home, "cancel", "toy")
    assert done.code == 0, done.err
    cluster.wait_job(job_id, {"CANCELLED"}, 60)
    assert len(run.list_attempts()) == 1
    cluster.reset()
    waiting, _ = submit(cluster, home, "slurm.extra.begin=now+1hour")
    assert cluster.job_state(waiting) == "PENDING"
    assert "was PENDING and is cancelled" in verb(cluster, home, "cancel", "toy").out
    assert cluster.job_state(waiting) == "CANCELLED"


@pytest.mark.long
def test_watch_looks_after_runs(cluster: Cluster, home: Path, undisturbed: str) -> None:
    """`--watch` brings a killed supervisor's run back; says only what is new."""
    write_job(home, params=SLOW)
    job_id, run = submit(cluster, home, step=7)
    watch = start(cluster, home, "clusterddp.resubmit", "--all", "--watch", "1")
    owner = json.loads(run.attempt(0).owner.read_text())
    cluster.run(["kill", "-9", str(owner["pid"])])
    wait_until(lambda: len(events(run, "submitted")) == 2)
    second = str(events(run, "submitted")[1].values["job"])
    cluster.wait_job(second, {"COMPLETED"}, 120)
    watch.terminate()
    out, _ = watch.communicate(timeout=30)
    assert out.count("resubmitted") == 1
    assert step_of(run) == 30
    assert digest(run) == undisturbed
    assert job_id in out


@pytest.mark.long
def test_elements_of_an_array_are_apart(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """A drilled preemption requeues one element; a scancel ends the other for good."""
    write_job(home, params=SLOW)
    never = "slurm.extra.begin=now+1hour"
    runs = [submit(cluster, home, never)[1] for _ in range(2)]
    cluster.reset()
    paths = "\n".join(str(run.path) for run in runs)
    (home / "runs.txt").write_text(f"{paths}\n")
    which = "$(sed -n $((SLURM_ARRAY_TASK_ID + 1))p runs.txt)"
    command = f"exec {cluster.python_for_user()} -m clusterddp.supervise {which}"
    shape = ("--array=0-1", "--nodes=2", "--ntasks-per-node=2", "--requeue")
    array = cluster.sbatch(*shape, f"--wrap={command}", user=cluster.user, cwd=home)
    wait_until(lambda: all(step_of(run) >= 3 for run in runs))
    cluster.run(["scancel", f"{array}_1"], user=cluster.user)
    done = verb(cluster, home, "drill", str(runs[0].path), "--preempt", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["lost_steps"] == 0
    cluster.wait_job(f"{array}_0", {"COMPLETED"}, 120)
    assert causes(runs[0]) == ["preempted", "completed"]
    assert events(runs[1], "cancel_requested")
    assert not events(runs[1], "requeue")
    assert cluster.job_state(f"{array}_1") == "CANCELLED"
    assert digest(runs[0]) == undisturbed


@pytest.mark.long
def test_drills_on_the_cluster(cluster: Cluster, home: Path, undisturbed: str) -> None:
    """A time limit, then a killed rank on the second node: told, and equal bits."""
    write_job(home, params={"sleep": 0.4})
    _, run = submit(cluster, home, step=2)
    done = verb(cluster, home, "drill", "toy", "--timeout", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["cause"], told["lost_steps"]) == ("time limit", 0)
    done = verb(cluster, home, "drill", "toy", "--kill-rank", "3", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["cause"] == "crash"
    wait_until(lambda: events(run, "finished"))
    assert causes(run) == ["time limit", "crash", "completed"]
    assert digest(run) == undisturbed
