"""Whole runs on this machine: real processes, killed and stopped for real."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import (
    ROOT,
    clean_environ,
    digest,
    events,
    finish,
    kill,
    latest,
    losses,
    rank_pids,
    run_python,
    start,
    step_of,
    wait_until,
    write_job,
)

SUBMIT = ("clusterddp.submit", "job.yaml", "--launcher", "pytorch")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a run that nothing disturbed."""
    directory = tmp_path_factory.mktemp("undisturbed")
    write_job(directory)
    done = run_python(SUBMIT, directory)
    assert done.code == 0, done.err
    return digest(latest(directory))


def test_run_completes_and_says_where_things_lie(tmp_path: Path) -> None:
    """Stdout is the run directory alone; stderr has the story and the way on."""
    write_job(tmp_path)
    done = run_python(SUBMIT, tmp_path)
    run = latest(tmp_path)
    assert done.code == 0, done.err
    assert done.out == f"{run.path}\n"
    assert "evaluation: accuracy" in done.err
    assert f"tensorboard --logdir {run.tensorboard}" in done.err
    assert [step for step, _ in losses(run)] == [5, 10, 15, 20, 25, 30]
    assert rank_pids(run) == []
    finished = run_python(("clusterddp.supervise", str(run.path)), tmp_path)
    assert finished.code == 0
    assert len(run.list_attempts()) == 1, "a finished run starts nothing"


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank_is_restarted(
    tmp_path: Path, undisturbed: str, victim: int
) -> None:
    """Kill -9 of a rank: started again at once, and the same bits at the end."""
    write_job(tmp_path, params={"fault": "SIGKILL", "rank": victim, "at": 14})
    done = run_python(SUBMIT, tmp_path)
    run = latest(tmp_path)
    assert done.code == 0, done.err
    assert [event.values["cause"] for event in events(run, "attempt_ended")] == [
        "crash",
        "completed",
    ]
    assert digest(run) == undisturbed


def test_killed_supervisor_leaves_nothing_behind(
    tmp_path: Path, undisturbed: str
) -> None:
    """Kill -9 of the supervisor: its ranks save and go, and a new one goes on."""
    write_job(tmp_path, params={"sleep": 0.1})
    process = start(SUBMIT, tmp_path)
    wait_until((tmp_path / "runs/toy/latest").exists)
    run = latest(tmp_path)
    wait_until(lambda: step_of(run) >= 7)
    kill(process.pid)
    finish(process)
    wait_until(lambda: rank_pids(run) == [], 30)
    done = run_python(("clusterddp.supervise", str(run.path)), tmp_path)
    assert done.code == 0, done.err
    assert digest(run) == undisturbed


def test_interrupt_saves_and_the_run_goes_on_later(
    tmp_path: Path, undisturbed: str
) -> None:
    """Ctrl-C: one save, exit code 75; started again: the same bits."""
    write_job(tmp_path, params={"sleep": 0.1}, checkpoint={"every": "1000 steps"})
    process = start(SUBMIT, tmp_path)
    wait_until((tmp_path / "runs/toy/latest").exists)
    run = latest(tmp_path)
    wait_until(lambda: step_of(run) >= 7)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 75, done.err
    assert "asked to stop" in done.err
    assert f"python -m clusterddp.supervise {run.path}" in done.err
    assert rank_pids(run) == []
    assert len(list(run.checkpoints.glob("step-????????"))) == 1, "one save"
    again = run_python(("clusterddp.supervise", str(run.path)), tmp_path)
    assert again.code == 0, again.err
    assert digest(run) == undisturbed


def test_crash_for_ever_stops_with_the_first_cause(tmp_path: Path) -> None:
    """A rank that always raises uses up retry.crashes; its own words are shown."""
    params = {"fault": "exception", "rank": 1, "always": True}
    write_job(tmp_path, params=params, retry={"crashes": 1})
    done = run_python(SUBMIT, tmp_path)
    run = latest(tmp_path)
    assert done.code == 1, done.err
    assert "rank 1 on" in done.err
    assert "ValueError: the toy broke" in done.err
    assert "toy.py:" in done.err
    assert "retry.crashes allows 1" in done.err
    assert len(run.list_attempts()) == 2


def test_wrong_job_stops_at_once(tmp_path: Path) -> None:
    """An import that fails on every rank is not tried again; exit code 2."""
    write_job(tmp_path, params={"build": "ImportError"})
    done = run_python(SUBMIT, tmp_path)
    run = latest(tmp_path)
    assert done.code == 2, done.err
    assert "a_module_that_is_not_there" in done.err
    assert len(run.list_attempts()) == 1


def test_second_supervisor_is_refused(tmp_path: Path) -> None:
    """A run has one supervisor; a second is told who holds it."""
    write_job(tmp_path, params={"sleep": 0.2})
    process = start(SUBMIT, tmp_path)
    wait_until((tmp_path / "runs/toy/latest").exists)
    run = latest(tmp_path)
    wait_until(lambda: step_of(run) >= 1)
    second = run_python(("clusterddp.supervise", str(run.path)), tmp_path)
    process.send_signal(signal.SIGINT)
    finish(process)
    assert second.code == 3, second.err
    assert f"supervised by process {process.pid}" in second.err


def test_own_script_gets_the_same_launch(tmp_path: Path) -> None:
    """`script:` with args runs as main under the agent and calls init_dist itself."""
    write_job(
        tmp_path,
        experiment=None,
        script=f"{ROOT}/tests/toy_script.py",
        args=["--flag", "a b"],
    )
    done = run_python(SUBMIT, tmp_path)
    run = latest(tmp_path)
    assert done.code == 0, done.err
    seen = json.loads((run.path / "seen.json").read_text())
    assert seen == {
        "sum": 1.0,
        "world": 2,
        "launcher": "pytorch",
        "args": ["--flag", "a b"],
        "name": "__main__",
    }


def test_failing_script_keeps_its_exit_code_in_the_verdict(tmp_path: Path) -> None:
    """A script that leaves with 7 is a crash, told as such."""
    write_job(
        tmp_path,
        experiment=None,
        script=f"{ROOT}/tests/toy_script.py",
        args=["fail"],
        retry={"crashes": 0},
    )
    done = run_python(SUBMIT, tmp_path)
    run = latest(tmp_path)
    assert done.code == 1, done.err
    verdict = json.loads(run.attempt(0).verdict(0).read_text())
    assert verdict["code"] == 7


def test_launcher_none_is_one_process_in_the_foreground(tmp_path: Path) -> None:
    """`--launcher none`: no agent, the rank writes to this terminal."""
    write_job(tmp_path)
    words = ("clusterddp.submit", "job.yaml", "--launcher", "none")
    done = run_python(words, tmp_path)
    assert done.code == 0, done.err
    assert "evaluation: accuracy" in done.out + done.err
    assert not list(latest(tmp_path).attempt(0).path.glob("rank-*.log"))


@pytest.mark.parametrize("way", ["torchrun", "module", "dist_train", "with PORT"])
def test_started_by_hand(tmp_path: Path, undisturbed: str, way: str) -> None:
    """The classic ways to start ranks give the same run, and the same bits."""
    job = str(write_job(tmp_path))
    python = sys.executable
    script = str(ROOT / "slurm_templates" / "dist_train.sh")
    arguments = ["-m", "clusterddp.train", job, "--launcher", "pytorch"]
    two = ["--standalone", "--nproc-per-node", "2"]
    command = {
        "torchrun": [str(Path(python).with_name("torchrun")), *two, *arguments],
        "module": [python, "-m", "torch.distributed.run", *two, *arguments],
        "dist_train": ["bash", script, job, "2"],
        "with PORT": ["bash", script, job, "2", "log.every=5"],
    }[way]
    extra = {"PYTHON": python}
    if way == "with PORT":
        extra["PORT"] = str(free_port())
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=clean_environ(extra),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert digest(latest(tmp_path)) == undisturbed


def free_port() -> int:
    """Give a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
