"""Whole runs on a real Slurm, as an unprivileged user: submitted, hit, finished."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from clusterddp.config import read_job
from clusterddp.runs.directory import RunDirectory
from tests.cluster import Cluster
from tests.runs import (
    ROOT,
    Done,
    digest,
    events,
    finish,
    latest,
    losses,
    rank_pids,
    step_of,
    wait_until,
    write_job,
)

pytestmark = pytest.mark.cluster

SLOW = {"sleep": 0.25}


def submit(cluster: Cluster, home: Path, *words: str) -> Done:
    """Run `clusterddp.submit job.yaml ...` as the user, in the user's directory."""
    return finish(start(cluster, home, "clusterddp.submit", "job.yaml", *words))


def start(cluster: Cluster, home: Path, *words: str) -> subprocess.Popen[str]:
    """Start `python -m ...` as the user on the login node."""
    python = cluster.python_for_user()
    return cluster.popen([python, "-m", *words], user=cluster.user, cwd=home)


def submit_and_wait(cluster: Cluster, home: Path, *words: str) -> RunDirectory:
    """Submit, wait for the end of a run that must succeed, and give it."""
    done = submit(cluster, home, "--wait", *words)
    assert done.code == 0, done.err
    return RunDirectory(Path(done.out.strip().split("\t")[1]))


def submit_slow(cluster: Cluster, home: Path, *words: str) -> tuple[str, RunDirectory]:
    """Submit a run that takes its time, wait for its 4th step, give id and run."""
    done = submit(cluster, home, "--nodes", "2", *words)
    assert done.code == 0, done.err
    job_id, path = done.out.strip().split("\t")
    run = RunDirectory(Path(path))
    wait_until(lambda: step_of(run) >= 4)
    return job_id, run


def causes(run: RunDirectory) -> list[object]:
    """Give the causes of the attempts' ends, as the ledger has them."""
    return [event.values["cause"] for event in events(run, "attempt_ended")]


@pytest.fixture(scope="module")
def undisturbed(_cluster: Cluster) -> str:
    """The digest of a run of 2 x 2 ranks that nothing disturbed."""
    _cluster.reset()
    home = _cluster.make_dir()
    write_job(home)
    return digest(submit_and_wait(_cluster, home, "--nodes", "2"))


def test_submit_prints_job_and_run_and_the_script_is_as_shown(
    cluster: Cluster, home: Path
) -> None:
    """One line `JOB_ID<tab>RUN_DIR`; the dry run touched nothing and told the truth."""
    write_job(home)
    shown = submit(cluster, home, "--nodes", "2", "--dry-run")
    assert shown.code == 0, shown.err
    assert sorted(path.name for path in home.iterdir()) == ["job.yaml"]
    done = submit(cluster, home, "--nodes", "2")
    assert done.code == 0, done.err
    job_id, path = done.out.rstrip("\n").split("\t")
    run = RunDirectory(Path(path))
    cluster.wait_job(job_id, {"COMPLETED"}, 60)
    sent = (run.submitit / f"{job_id}_submission.sh").read_text()
    script, _, job = shown.out.partition("\n# /")
    dreamt = job.partition("/job.yaml\n")[0].rpartition("/")[2]
    assert script.strip().replace(dreamt, run.id) == sent.strip()
    assert job.partition("\n")[2].strip() == run.job_file.read_text().strip()
    assert read_job(run.job_file).slurm.nodes == 2
    assert [event.values["job"] for event in events(run, "submitted")] == [job_id]
    assert [step for step, _ in losses(run)] == [5, 10, 15, 20, 25, 30]


def test_same_bits_whatever_starts_the_ranks(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """4 ranks: slurm on 1, 2 and 4 nodes, agents on 2 nodes, agent on this machine."""
    write_job(home)
    ways = {
        "slurm 1 x 4": ("--nodes", "1", "--tasks-per-node", "4"),
        "slurm 4 x 1": ("--nodes", "4", "--tasks-per-node", "1"),
        "agents 2 x 2": (
            *("--nodes", "2", "--launcher", "pytorch"),
            *("--cluster", "slurm"),
        ),
    }
    found = {
        way: digest(submit_and_wait(cluster, home, *words))
        for way, words in ways.items()
    }
    local = submit(cluster, home, "--launcher", "pytorch", "--nodes", "2")
    assert local.code == 0, local.err
    found["agent, local"] = digest(latest(home))
    assert found == dict.fromkeys(found, undisturbed)


def test_preempted_job_is_requeued_once_and_goes_on(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """A job of higher priority takes the nodes; nothing is lost, the bits are equal."""
    write_job(home, params=SLOW, checkpoint={"every": "1000 steps"})
    job_id, run = submit_slow(cluster, home, "slurm.partition=quick")
    thief = cluster.sbatch(
        *("--partition=high", "--nodes=4", "--exclusive", "--wrap=sleep 2"),
        user=cluster.user,
    )
    cluster.wait_job(thief, {"COMPLETED"}, 60)
    cluster.wait_job(job_id, {"COMPLETED"}, 90)
    assert causes(run) == ["preempted", "completed"]
    assert cluster.show_job(job_id)["Restarts"] == "1"
    assert digest(run) == undisturbed


def test_time_limit_requeues_in_time(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """The signal before the limit saves and requeues; the job finishes afterwards.

    Slurm looks at limits every 30 s, so the first attempt takes its time.
    """
    slow = {"first_sleep": 2.5}
    write_job(home, params=slow, checkpoint={"every": "1000 steps"})
    job_id, run = submit_slow(cluster, home, "slurm.time=1m", "slurm.signal_delay=50s")
    wait_until(lambda: len(run.list_attempts()) >= 2)
    cluster.wait_job(job_id, {"COMPLETED"}, 90)
    assert causes(run)[0] == "time limit"
    assert causes(run)[-1] == "completed"
    assert digest(run) == undisturbed


def test_cancelled_job_stays_cancelled_and_can_be_started_again(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """scancel: saved, never requeued; a new allocation goes on in the directory."""
    write_job(home, params=SLOW, checkpoint={"every": "1000 steps"})
    job_id, run = submit_slow(cluster, home)
    cluster.run(["scancel", job_id], user=cluster.user)
    cluster.wait_job(job_id, {"CANCELLED"}, 60)
    wait_until(lambda: causes(run) == ["cancelled"], 30)
    assert cluster.show_job(job_id)["Restarts"] == "0"
    again = supervise_in_new_job(cluster, home, run)
    cluster.wait_job(again, {"COMPLETED"}, 90)
    assert causes(run) == ["cancelled", "completed"]
    assert digest(run) == undisturbed


def supervise_in_new_job(cluster: Cluster, home: Path, run: RunDirectory) -> str:
    """Start a run again in an allocation of the user's own making."""
    command = f"exec {cluster.python_for_user()} -m clusterddp.supervise {run.path}"
    shape = ("--nodes=2", "--ntasks-per-node=2", f"--wrap={command}")
    return cluster.sbatch(*shape, user=cluster.user, cwd=home)


def test_requeue_by_hand_goes_on(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """`scontrol requeue` by the user: the same job starts again where it was."""
    write_job(home, params=SLOW)
    job_id, run = submit_slow(cluster, home)
    cluster.run(["scontrol", "requeue", job_id], user=cluster.user)
    wait_until(lambda: len(run.list_attempts()) == 2)
    cluster.wait_job(job_id, {"COMPLETED"}, 90)
    assert causes(run)[-1] == "completed"
    assert digest(run) == undisturbed


@pytest.mark.parametrize("launcher", ["slurm", "pytorch"])
def test_killed_rank_is_restarted_inside_the_allocation(
    cluster: Cluster, home: Path, undisturbed: str, launcher: str
) -> None:
    """Kill -9 of a rank on the second node: the job goes on, on the same nodes."""
    write_job(home, params={"fault": "SIGKILL", "rank": 3, "at": 14})
    words = ("--nodes", "2", "--launcher", launcher, "--cluster", "slurm")
    done = submit(cluster, home, "--wait", *words)
    assert done.code == 0, done.err
    job_id, path = done.out.strip().split("\t")
    run = RunDirectory(Path(path))
    assert causes(run) == ["crash", "completed"]
    assert cluster.show_job(job_id)["Restarts"] == "0"
    log = run.attempt(0).log.read_text()
    assert f"rank 3 on {cluster.nodes[1]}" in log
    assert digest(run) == undisturbed


@pytest.mark.long
def test_killed_supervisor_can_be_started_again(
    cluster: Cluster, home: Path, undisturbed: str
) -> None:
    """Kill -9 of the batch task: the job fails, a new allocation goes on."""
    write_job(home, params=SLOW)
    job_id, run = submit_slow(cluster, home)
    owner = json.loads(run.attempt(0).owner.read_text())
    cluster.run(["kill", "-9", str(owner["pid"])])
    cluster.wait_job(job_id, {"FAILED"}, 60)
    wait_until(lambda: rank_pids(run) == [], 30)
    again = supervise_in_new_job(cluster, home, run)
    cluster.wait_job(again, {"COMPLETED"}, 90)
    assert digest(run) == undisturbed


def test_wait_exits_with_the_code_of_the_run(cluster: Cluster, home: Path) -> None:
    """A run that cannot work: --wait says why and exits with its code, 2."""
    write_job(home, params={"build": "ImportError"})
    done = submit(cluster, home, "--wait", "--nodes", "2")
    assert done.code == 2, done.err
    assert "a_module_that_is_not_there" in done.err


def test_interrupted_wait_leaves_the_job_alone(cluster: Cluster, home: Path) -> None:
    """Ctrl-C of --wait detaches, says how to cancel, and the run finishes."""
    write_job(home, params=SLOW)
    words = ("clusterddp.submit", "job.yaml", "--wait", "--nodes", "2")
    process = start(cluster, home, *words)
    wait_until((home / "runs/toy/latest").exists)
    run = latest(home)
    wait_until(lambda: step_of(run) >= 2)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    job_id = done.out.partition("\t")[0]
    assert done.code == 130, done.err
    assert f"job {job_id} goes on; cancel it with scancel {job_id}" in done.err
    cluster.wait_job(job_id, {"COMPLETED"}, 60)


def test_refused_submission_leaves_nothing(cluster: Cluster, home: Path) -> None:
    """Sbatch's own words, exit code 4, and no run directory that nobody started."""
    write_job(home)
    done = submit(cluster, home, "slurm.partition=nowhere")
    assert done.code == 4
    assert "invalid partition" in done.err.lower()
    assert not list((home / "runs").glob("toy/[!.]*"))


@pytest.mark.long
def test_finished_run_is_not_trained_again(cluster: Cluster, home: Path) -> None:
    """A finished run that is started again exits 0 at once."""
    write_job(home)
    run = submit_and_wait(cluster, home, "--nodes", "2")
    before = digest(run)
    again = supervise_in_new_job(cluster, home, run)
    cluster.wait_job(again, {"COMPLETED"}, 30)
    assert len(run.list_attempts()) == 1
    assert digest(run) == before


@pytest.mark.parametrize("launcher", ["slurm", "pytorch"])
def test_own_script_gets_the_same_launch(
    cluster: Cluster, home: Path, launcher: str
) -> None:
    """`script:` under srun or agents: init_dist() alone knows the launcher."""
    script = home / "script.py"
    script.write_text((ROOT / "tests" / "toy_script.py").read_text())
    write_job(home, experiment=None, script="script.py", args=["--flag"])
    words = ("--nodes", "2", "--launcher", launcher, "--cluster", "slurm")
    run = submit_and_wait(cluster, home, *words)
    seen = json.loads((run.path / "seen.json").read_text())
    assert (seen["sum"], seen["world"], seen["launcher"]) == (6.0, 4, launcher)
    assert seen["args"] == ["--flag"]


@pytest.mark.parametrize("template", ["slurm.sbatch", "pytorch.sbatch"])
def test_templates_by_hand(
    cluster: Cluster, home: Path, undisturbed: str, template: str
) -> None:
    """The scripts of slurm_templates/ run a job file without submitit."""
    write_job(home)
    script = home / template
    script.write_text((ROOT / "slurm_templates" / template).read_text())
    job_id = cluster.sbatch(
        *(script, "job.yaml"),
        user=cluster.user,
        cwd=home,
        env={"PYTHON": str(cluster.python_for_user()), "RANKS_PER_NODE": "2"},
    )
    cluster.wait_job(job_id, {"COMPLETED"}, 90)
    assert digest(latest(home)) == undisturbed
