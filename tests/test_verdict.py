"""Verdicts: written by ranks, read by the supervisor, and what they amount to."""

from pathlib import Path

import pytest

from clusterddp.runs.directory import AttemptDirectory
from clusterddp.runs.verdict import (
    Cause,
    Ending,
    Failure,
    Summary,
    Verdict,
    classify,
    read_summary,
    read_verdicts,
    write_summary,
    write_verdict,
)

DONE = Summary("completed", 30, 30)
HALT = Summary("stopped", 7, 30)


def verdict(rank: int, cause: str = "crash", **changes: object) -> Verdict:
    values = {"code": 1, "step": 3, "host": f"n{rank}", "time": 100.0 + rank, **changes}
    return Verdict(rank, cause, **values)  # type: ignore[arg-type]


def failure(message: str) -> Failure:
    return Failure("RuntimeError", message, "user.py:3 in loss", "Traceback ...")


OOM = Cause.OUT_OF_MEMORY
NO_MEMORY = Failure("OutOfMemoryError", "CUDA out of memory.", "user.py:3", "...")
WRONG = (verdict(0, "wrong job"), verdict(1, "wrong job"))


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        (Ending(0, summary=DONE), Cause.COMPLETED),
        (Ending(0, summary=DONE, is_cancelled=True), Cause.COMPLETED),
        (Ending(75, summary=DONE, is_preempted=True), Cause.COMPLETED),
        (Ending(75, summary=HALT, is_preempted=True), Cause.PREEMPTED),
        (Ending(137, is_preempted=True), Cause.PREEMPTED),
        (Ending(75, summary=HALT, is_cancelled=True), Cause.CANCELLED),
        (Ending(143, is_cancelled=True, seconds_left=5.0), Cause.CANCELLED),
        (Ending(75, summary=HALT, is_requeued=True), Cause.REQUEUED),
        (Ending(75, summary=HALT, is_interrupted=True), Cause.INTERRUPTED),
        (Ending(137, is_interrupted=True), Cause.INTERRUPTED),
        (Ending(75, summary=HALT, seconds_left=80.0), Cause.TIME_LIMIT),
        (Ending(75, summary=HALT, seconds_left=149.0), Cause.TIME_LIMIT),
        (Ending(143, seconds_left=-1.0), Cause.TIME_LIMIT),
        (Ending(140, seconds_left=80.0), Cause.TIME_LIMIT),
        (Ending(140, seconds_left=3000.0), Cause.CRASH),
        (Ending(None, is_requeued=True), Cause.REQUEUED),
        (Ending(None, is_requeued=True, lost_nodes=("n2",)), Cause.NODE_FAILURE),
        (Ending(137, never_started=True), Cause.NODE_FAILURE),
        (Ending(137, lost_nodes=("n2",), is_cancelled=True), Cause.CANCELLED),
        (Ending(137, is_stalled=True), Cause.STALLED),
        (Ending(137, is_stalled=True, is_preempted=True), Cause.PREEMPTED),
        (Ending(137, was_suspended=True), Cause.SUSPENDED),
        (Ending(1, said="srun: error: n1: task 0: Out Of Memory"), OOM),
        (
            Ending(1, said="srun: error: n1: task 0: Out Of Memory", has_progress=True),
            Cause.CRASH,
        ),
        (Ending(1, verdicts=(verdict(0, failure=NO_MEMORY),)), OOM),
        (Ending(75, summary=HALT, seconds_left=3000.0), Cause.SIGNALLED),
        (Ending(75, summary=HALT), Cause.SIGNALLED),
        (Ending(1, verdicts=WRONG), Cause.WRONG_JOB),
        (Ending(1, verdicts=WRONG, has_progress=True), Cause.CRASH),
        (Ending(1, verdicts=(*WRONG, verdict(2))), Cause.CRASH),
        (Ending(1, verdicts=(verdict(1),), seconds_left=80.0), Cause.CRASH),
        (Ending(137), Cause.CRASH),
        (Ending(0), Cause.CRASH),
    ],
)
def test_classify(ending: Ending, cause: Cause) -> None:
    """The finished run first, the cancelled one next, then the stops, then crashes."""
    assert classify(ending, signal_delay_s=90.0) is cause


def test_an_exit_code_of_zero_without_a_summary_is_no_success() -> None:
    """Srun was seen to exit 0 after a node failure; only rank 0's word counts."""
    assert classify(Ending(0), 90.0) is Cause.CRASH


def test_verdicts_read_back_first_to_end_first(tmp_path: Path) -> None:
    """What ranks write, the supervisor reads, in the order of time."""
    attempt = AttemptDirectory(tmp_path / "0000")
    attempt.verdicts.mkdir(parents=True)
    late = verdict(0, time=9.0, failure=failure("late"))
    early = verdict(1, time=8.0, signal="SIGUSR2")
    for one in (late, early):
        write_verdict(attempt, one)
    attempt.verdict(2).write_text('{"rank": 2')  # killed while it wrote
    assert read_verdicts(attempt) == (early, late)
    assert read_summary(attempt) is None
    write_summary(attempt, DONE)
    assert read_summary(attempt) == DONE
