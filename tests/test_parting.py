"""What holds the ranks is ended when it has not noticed that they are gone."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterddp.config import load_job
from clusterddp.files import write_json
from clusterddp.launch import parting
from clusterddp.launch.parting import Parting
from clusterddp.launch.process import RankProcess
from clusterddp.launch.watch import Watch
from clusterddp.runs.directory import AttemptDirectory, RunDirectory, create_run
from clusterddp.runs.verdict import Summary, Verdict, write_summary, write_verdict
from tests.runs import write_job

FAILED = Verdict(3, "crash", 1, 7, "n2", 0.0)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run whose first attempt goes on."""
    made = create_run(tmp_path, "toy", "r1")
    made.attempt(0).verdicts.mkdir(parents=True)
    return made


def finish(attempt: AttemptDirectory) -> None:
    """Say what rank 0 says at the end of a run."""
    write_summary(attempt, Summary("completed", 30, 30))


def fail(attempt: AttemptDirectory) -> None:
    """Say what a rank says that has failed."""
    write_verdict(attempt, FAILED)


@pytest.mark.parametrize("say", [finish, fail])
def test_late_a_minute_after_the_last_words(
    run: RunDirectory, say: Callable[[AttemptDirectory], None]
) -> None:
    """However long the ranks trained before."""
    clock = Parting(run.attempt(0), has_summary=True)
    assert not clock.is_late(5000.0)
    say(run.attempt(0))
    assert not clock.is_late(5001.0)
    assert not clock.is_late(5060.0)
    assert clock.is_late(5062.0)


def test_a_scripts_rank_0_speaks_for_itself_alone(run: RunDirectory) -> None:
    """The other ranks of a script may have more to do; one that fails ends all."""
    clock = Parting(run.attempt(0), has_summary=False)
    finish(run.attempt(0))
    assert not clock.is_late(10.0)
    assert not clock.is_late(1000.0)
    fail(run.attempt(0))
    assert not clock.is_late(1001.0)
    assert clock.is_late(1062.0)


def test_a_stopped_launcher_does_not_hold_up_a_finished_run(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP of what stands for srun: TERM cannot reach it, KILL does."""
    monkeypatch.setattr(parting, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(parting, "_LOOK_S", 0.1)
    job = load_job(write_job(tmp_path, launcher="pytorch"), [])
    watch = Watch(job, run, run.attempt(0), [], None, lambda: False)
    process = RankProcess(["sleep", "600"], os.environ, tmp_path / "srun.err")
    process.send(signal.SIGSTOP)
    finish(run.attempt(0))
    seen = watch.wait_for(process)
    assert seen.code is not None
    assert not seen.is_stalled


@pytest.mark.parametrize("leaves", [True, False])
def test_ranks_that_leave_owe_no_further_step(
    run: RunDirectory, tmp_path: Path, *, leaves: bool
) -> None:
    """Saved and stopped, they may take longer to be gone than a step may take."""
    retry = {"stall_timeout": "1s"}
    job = load_job(write_job(tmp_path, launcher="pytorch", retry=retry), [])
    watch = Watch(job, run, run.attempt(0), [], None, lambda: False)
    process = RankProcess(["sleep", "6"], os.environ, tmp_path / "srun.err")
    write_json(run.progress, {"step": 7, "phase": "save", "checkpoint": 7})
    if leaves:
        write_summary(run.attempt(0), Summary("stopped", 7, 30))
    assert watch.wait_for(process).is_stalled is not leaves
