"""When silence is a stall: the clock alone, and stacks of real processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterddp.launch import stacks
from clusterddp.launch.stacks import (
    collect_here,
    collect_stacks,
    find_silent,
    stacks_directory,
)
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.stall import StallClock
from tests.runs import ROOT, wait_until


def clock(patience: float | None = 10.0) -> StallClock:
    """Give a clock that has seen step 1 finished at second 0."""
    made = StallClock(patience, None, 0.0)
    made.note({"step": 1, "phase": "train"}, 0.0)
    return made


def test_no_step_for_longer_than_the_patience_is_a_stall() -> None:
    """Every finished step is news; the same word again is none."""
    one = clock()
    one.note({"step": 2, "phase": "train"}, 9.0)
    one.note({"step": 2, "phase": "train", "time": 5.0}, 18.0)
    assert not one.is_over(18.9)
    assert one.is_over(19.1)


@pytest.mark.parametrize("phase", ["eval", "save", None])
def test_start_evaluation_and_save_may_take_long(phase: str | None) -> None:
    """Half an hour, or ten times the patience."""
    one = clock()
    one.note({"step": 1, "phase": phase}, 1.0)
    assert not one.is_over(1800.0)
    assert one.is_over(1802.0)
    assert StallClock(600.0, None, 0.0).patience_s == 6000.0


def test_after_a_save_steps_are_expected_again() -> None:
    """Rank 0 says `save` until its next step is finished; the step is saved by then."""
    one = clock()
    one.note({"step": 2, "phase": "save"}, 1.0)
    assert not one.is_over(100.0)
    one.note({"step": 2, "phase": "save", "checkpoint": 2}, 100.0)
    assert one.is_over(111.0)


def test_after_the_last_step_none_is_expected() -> None:
    """The end may take long: the last save, taking leave."""
    one = clock()
    one.note({"step": 9, "phase": "save", "checkpoint": 9, "total_steps": 9}, 1.0)
    assert not one.is_over(1000.0)


def test_what_an_earlier_attempt_left_is_no_news() -> None:
    """The new attempt is at its start until progress.json changes."""
    before = {"step": 7, "phase": "train", "time": 1.0}
    one = StallClock(10.0, before, 0.0)
    one.note(before, 100.0)
    assert not one.is_over(1000.0)
    one.note({**before, "time": 2.0}, 1000.0)
    assert one.is_over(1011.0)


def test_auto_learns_from_the_slowest_step() -> None:
    """At least 5 minutes; 20 of the slowest steps where those take long."""
    one = clock(None)
    assert one.patience_s == 1800.0, "the second step may take its time"
    one.note({"step": 3, "phase": "train"}, 2.0)
    assert one.patience_s == 300.0
    one.note({"step": 5, "phase": "train"}, 102.0)
    assert one.patience_s == 1000.0


def test_a_suspension_is_not_held_against_the_ranks() -> None:
    """The time in which the supervisor itself stood still is left out."""
    one = clock()
    one.forgive(60.0)
    assert not one.is_over(69.0)
    assert one.is_over(71.0)
    one.note({"step": 2, "phase": "train"}, 71.0)
    assert one.patience_s == 10.0


RANK = """
import signal, sys, time
sys.argv[0] = "clusterddp.train"
from pathlib import Path
from clusterddp.launch.stacks import answer_on_request
from clusterddp.runs.directory import AttemptDirectory
def hang_here():
    Path(sys.argv[3]).touch()
    time.sleep(600)
answer_on_request(AttemptDirectory(Path(sys.argv[2])), int(sys.argv[4]))
hang_here()
"""


def test_stacks_of_the_ranks_that_answer_and_a_word_on_those_that_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank hangs and answers, one stands still: /proc says `stopped`.

    Nobody waits for the one that cannot answer, which here would take 15 minutes.
    """
    monkeypatch.setattr(stacks, "_ANSWER_S", 900.0)
    run = RunDirectory(tmp_path / "run")
    attempt = run.attempt(0)
    with two_ranks(run, attempt) as ranks:
        ranks[1].send_signal(signal.SIGSTOP)
        collect_here(run, attempt)
    directory = stacks_directory(attempt)
    assert "in hang_here" in (directory / "rank-0000.txt").read_text()
    assert find_silent(attempt) == (1, os.uname().nodename)
    words = json.loads((directory / "silent-0001.json").read_text())
    assert words["pid"] == ranks[1].pid
    assert "stopped" in words["threads"][str(ranks[1].pid)]["state"]


def test_nobody_is_asked_through_a_rank_0_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 passes the question on: the others get their signal at once instead."""
    monkeypatch.setattr(stacks, "_ASKING_S", 900.0)
    run = RunDirectory(tmp_path / "run")
    attempt = run.attempt(0)
    with two_ranks(run, attempt) as ranks:
        ranks[0].send_signal(signal.SIGSTOP)
        collect_stacks(run, attempt, None, world_size=2)
    assert "in hang_here" in (stacks_directory(attempt) / "rank-0001.txt").read_text()
    assert find_silent(attempt) == (0, os.uname().nodename)


@contextlib.contextmanager
def two_ranks(
    run: RunDirectory, attempt: AttemptDirectory
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start two processes that look like ranks, and wait until both hang."""
    attempt.path.mkdir(parents=True)
    ready = [run.path / f"ready-{rank}" for rank in (0, 1)]
    ranks = [start_rank(run, attempt, path, n) for n, path in enumerate(ready)]
    try:
        wait_until(lambda: all(path.exists() for path in ready))
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def start_rank(
    run: RunDirectory, attempt: AttemptDirectory, ready: Path, rank: int
) -> subprocess.Popen[bytes]:
    """Start a process that looks like a rank of an attempt."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CLUSTERDDP_RUN_DIR": str(run.path),
        "CLUSTERDDP_ATTEMPT": attempt.path.name,
        "RANK": str(rank),
    }
    words = ["clusterddp.train", str(attempt.path), str(ready), str(rank)]
    return subprocess.Popen([sys.executable, "-c", RANK, *words], env=environ)
