"""The run directory and its ledger: nothing lost, nothing shared."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from clusterddp.errors import UsageError
from clusterddp.files import read_json, write_atomic, write_json
from clusterddp.runs.directory import (
    RunDirectory,
    claim_attempt,
    create_run,
    new_id,
    point_latest,
)
from clusterddp.runs.history import is_finished, last_ranks, read_exit_code, read_past
from clusterddp.runs.ledger import Ledger, read_events
from clusterddp.runs.verdict import Cause, Past, Summary, write_summary


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return create_run(tmp_path / "runs", "toy", new_id())


def test_events_of_several_writers_are_merged_by_time(run: RunDirectory) -> None:
    """One file per writer; reading puts them in order."""
    first, second = Ledger(run, "login-a-1"), Ledger(run, "attempt-0000")
    first.add("submitted", job="7")
    second.add("attempt_started", attempt=0)
    first.add("noted")
    kinds = [event.kind for event in read_events(run)]
    assert kinds == ["submitted", "attempt_started", "noted"]


def test_a_line_that_a_killed_writer_left_spoils_only_itself(run: RunDirectory) -> None:
    """Half a line, then a new event: the new one is whole."""
    ledger = Ledger(run, "attempt-0000")
    ledger.add("one")
    with (run.events / "attempt-0000.jsonl").open("ab") as file:
        file.write(b'{"time": 1, "eve')
    ledger.add("two")
    assert [event.kind for event in read_events(run)] == ["one", "two"]


@pytest.mark.parametrize("line", ["7", "[]", "{}", '{"event": "x"}', '{"time": "a"}'])
def test_foreign_lines_are_passed_over(run: RunDirectory, line: str) -> None:
    """Whatever stands there, reading the ledger never fails."""
    (run.events / "x.jsonl").write_text(f"{line}\n")
    assert read_events(run) == []


def test_attempts_are_claimed_by_one_only(run: RunDirectory) -> None:
    """Twenty at once get twenty numbers."""
    claimed: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: claimed.append(claim_attempt(run, {"pid": 1}).number)
        )
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == list(range(20))


def test_directories_with_cookies_are_private(run: RunDirectory) -> None:
    """Nobody else reads where rank 0's store listens."""
    attempt = claim_attempt(run, {"pid": 1})
    assert stat.S_IMODE(attempt.rendezvous.stat().st_mode) == 0o700


def test_latest_follows_the_newest_run(tmp_path: Path) -> None:
    """The link is replaced, never missing."""
    root = tmp_path / "runs"
    for run_id in ("a", "b"):
        point_latest(create_run(root, "toy", run_id))
    assert (root / "toy" / "latest").readlink() == Path("b")


def test_run_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in the way is told with what to do."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(UsageError, match="cannot be made .*choose a place that all"):
        create_run(tmp_path / "runs", "toy", "a")


def test_history_is_read_from_the_ledger(run: RunDirectory) -> None:
    """Causes, checkpoints and failures of ended attempts; unknown causes left out."""
    ledger = Ledger(run, "attempt-0000")
    ledger.add("ranks_started", pid=12, created=3.5)
    ledger.add("attempt_ended", cause="crash", checkpoint=5, failure="ValueError at x")
    ledger.add("attempt_ended", cause="eaten by a bear")
    ledger.add("attempt_ended", cause="preempted", checkpoint=None, failure=None)
    assert read_past(run) == [
        Past(Cause.CRASH, 5, "ValueError at x"),
        Past(Cause.PREEMPTED),
    ]
    assert last_ranks(run) == (12, 3.5)


def test_exit_code_is_the_last_word(run: RunDirectory) -> None:
    """A stopped run that was started again goes on."""
    ledger = Ledger(run, "attempt-0000")
    assert read_exit_code(run) is None
    ledger.add("stopped", code=75)
    assert read_exit_code(run) == 75
    ledger.add("attempt_started")
    assert read_exit_code(run) is None
    ledger.add("finished", code=0)
    assert read_exit_code(run) == 0


def test_finished_by_rank_zeros_word_only(run: RunDirectory) -> None:
    """Any attempt whose summary says completed."""
    first, second = (claim_attempt(run, {"pid": 1}) for _ in range(2))
    write_summary(first, Summary("stopped", 3, 9))
    assert not is_finished(run)
    write_summary(first, Summary("completed", 9, 9))
    assert second.number == 1
    assert is_finished(run)


def test_atomic_write_keeps_the_old_file_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk in the middle: the old content stands, nothing else lies about."""
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_atomic(path, b"new")
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_read_json_of_what_is_not_there_yet(tmp_path: Path) -> None:
    """Absent, half-written and foreign files are None."""
    path = tmp_path / "x.json"
    assert read_json(path) is None
    for text in ("", "{", "[1]"):
        path.write_text(text)
        assert read_json(path) is None
