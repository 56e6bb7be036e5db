"""status, why and logs on recorded runs: real failures, printed to the letter."""

import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterddp.errors import SlurmError, UsageError
from clusterddp.logs import main as logs
from clusterddp.report import main as report
from clusterddp.resubmit import main as resubmit
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.finding import find_root, find_run, list_runs, select_runs
from clusterddp.runs.folding import fold, prefix
from clusterddp.runs.inquiry import examine
from clusterddp.runs.ledger import Ledger
from clusterddp.runs.output import Follower, render_attempt
from clusterddp.runs.status import Status
from clusterddp.runs.survey import survey
from clusterddp.runs.verdict import Cause
from clusterddp.slurm.listing import parse_sacct, parse_squeue
from clusterddp.slurm.programs import Completed
from clusterddp.status import main as status
from clusterddp.status import render_status
from clusterddp.tables import brief_number, brief_seconds
from clusterddp.why import main as why
from clusterddp.why import render_explanation
from tests.replay import CASES, Replay, replay
from tests.runs import ROOT, finish, start

GOLDEN = ROOT / "tests" / "golden"


def check_golden(name: str, text: str) -> None:
    """Compare with a file of the repository; GOLDEN=write writes it anew."""
    path = GOLDEN / name
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def look(case: Replay) -> Status:
    return survey([case.run], case.now, case.program)[0].status


STATES = {
    "cancelled": "stopped",
    "crash": "failed",
    "died_before_supervisor": "died",
    "finished": "finished",
    "interrupted": "stopped",
    "killed_rank": "finished",
    "killed_supervisor": "died",
    "lost_node": "pending",
    "lost_peer": "pending",
    "out_of_memory": "failed",
    "pending": "pending",
    "preempted": "pending",
    "requeued": "pending",
    "running": "running",
    "signalled": "finished",
    "stalled": "failed",
    "time_limit": "finished",
    "wrong_job": "failed",
}


@pytest.mark.parametrize("case", CASES)
def test_state_and_line(case: str, tmp_path: Path) -> None:
    """The state of every recorded run, and its line of the table."""
    found = replay(case, tmp_path)
    stands = look(found)
    assert stands.state == STATES[case]
    check_golden(f"status/{case}.txt", render_status([stands]))


@pytest.mark.parametrize("case", CASES)
def test_why(case: str, tmp_path: Path) -> None:
    """The paragraph and the evidence of every recorded run."""
    found = replay(case, tmp_path)
    told = examine(found.run, found.now, found.program)
    check_golden(f"why/{case}.txt", found.neutral(render_explanation(told)))


@pytest.mark.parametrize("cause", [cause.value for cause in Cause])
def test_why_knows_every_cause(cause: str, tmp_path: Path) -> None:
    """A cause that the supervisor can name has a meaning for people."""
    found = replay("preempted", tmp_path)
    events = found.run.events / "attempt-0000.jsonl"
    events.write_text(events.read_text().replace('"preempted"', json.dumps(cause)))
    told = examine(found.run, found.now, found.program)
    if cause != "completed":
        assert f"ended as {cause}: " in told.paragraph
    assert "see the ledger" not in told.paragraph


def test_one_squeue_and_one_sacct_call_for_all(tmp_path: Path) -> None:
    """However many runs there are; those that ended by their word are not asked for."""
    found = [replay(case, tmp_path / case) for case in CASES]
    asked: list[Sequence[str]] = []

    def program(words: Sequence[str]) -> Completed:
        asked.append(words)
        return Completed(0, "", "")

    survey([one.run for one in found], found[0].now, program)
    assert [words[0] for words in asked] == ["squeue", "sacct"]
    finished = look(replay("finished", tmp_path / "again")).job_id
    assert finished not in asked[0][-1].partition("=")[2].split(",")


def test_slurm_that_does_not_answer_makes_nobody_dead(tmp_path: Path) -> None:
    """No squeue, no sacct: unknown, and said why."""
    found = replay("running", tmp_path)

    def program(words: Sequence[str]) -> Completed:
        raise SlurmError(f"{words[0]}: not found")

    stands = survey([found.run], found.now, program)[0].status
    assert (stands.state, stands.detail) == ("unknown", "Slurm does not answer")


def test_job_that_slurm_has_forgotten_is_unknown(tmp_path: Path) -> None:
    """Neither squeue nor sacct knows it: never taken for finished."""
    found = replay("running", tmp_path)
    found.said.update(squeue="", sacct="")
    assert look(found).state == "unknown"
    assert "does not know job" in look(found).detail


def test_run_that_goes_on_with_fewer_ranks_says_so(tmp_path: Path) -> None:
    """Until an attempt has all of them again."""
    found = replay("running", tmp_path)
    before = look(found).detail
    ledger = Ledger(found.run, "attempt-0009")
    ledger.add("attempt_started", attempt=9, shrunk={"ranks": 6, "of": 8})
    assert look(found).detail == "start (6 of 8 ranks)"
    ledger.add("attempt_started", attempt=10)
    assert (before, look(found).detail) == ("train", "start")


@pytest.mark.parametrize(
    ("state", "word"), [("PENDING", "pending"), ("RUNNING", "running")]
)
def test_job_that_somebody_requeued_is_not_stopped(
    state: str, word: str, tmp_path: Path
) -> None:
    """The supervisor's last word was `stopped`; Slurm knows better."""
    found = replay("cancelled", tmp_path)
    for path in found.run.events.iterdir():
        text = path.read_text().replace('"cause": "cancelled"', '"cause": "requeued"')
        path.write_text(text)
    found.said["squeue"] = f"{look(found).job_id}|{state}|N/A|N/A||None\n"
    assert look(found).state == word


def test_run_that_could_not_be_requeued_needs_resubmit(tmp_path: Path) -> None:
    """The last word is the requeue that failed, not the one that was meant."""
    found = replay("preempted", tmp_path)
    word = {"event": "needs_resubmit", "reason": "scontrol requeue: refused", "code": 4}
    with (found.run.events / "attempt-0000.jsonl").open("a") as file:
        file.write(json.dumps({"time": found.now, **word}) + "\n")
    found.said.update(squeue="", sacct="17|PREEMPTED|1|2|n1|0:0\n")
    assert (look(found).state, look(found).detail) == (
        "stopped",
        "preempted; needs resubmit",
    )
    told = examine(found.run, found.now, found.program).paragraph
    assert "could not bring it back: scontrol requeue: refused" in told


def test_unknown_slurm_state_is_unknown(tmp_path: Path) -> None:
    """A state that a newer Slurm invents."""
    found = replay("running", tmp_path)
    found.said["squeue"] = found.said["squeue"].replace("RUNNING", "HIBERNATING")
    assert (look(found).state, look(found).detail) == (
        "unknown",
        "Slurm says HIBERNATING",
    )


@pytest.mark.parametrize("broken", ["events", "attempts/0000", "progress.json"])
def test_half_written_directory_breaks_nothing(broken: str, tmp_path: Path) -> None:
    """Empty files, missing files, half lines: status and why still answer."""
    found = replay("crash", tmp_path)
    path = found.run.path / broken
    if path.is_dir():
        for file in path.rglob("*.json*"):
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    else:
        path.write_text('{"step": ')
    (found.run.metrics).write_text(
        '{"step": 5, "time"\n[1]\n{"step": "x", "time": 1}\n'
    )
    assert look(found).state in ("failed", "died", "unknown")
    assert examine(found.run, found.now, found.program).paragraph


def test_why_of_a_directory_with_nothing_but_a_job_file(tmp_path: Path) -> None:
    """Submit was killed between making the directory and the ledger."""
    run = RunDirectory(tmp_path / "runs" / "toy" / "x")
    run.path.mkdir(parents=True)
    run.job_file.write_text("name: toy\n")
    told = examine(run, 0.0)
    assert "no word of a submission" in told.paragraph


def test_times_and_numbers_in_short() -> None:
    """As they stand in the table."""
    times = [None, 0, 59.9, 60, 3599, 3600, 86399, 90000]
    assert [brief_seconds(one) for one in times] == [
        *("-", "0s", "59s", "1m", "59m", "1h00m", "23h59m", "1d01h")
    ]
    assert [brief_number(one) for one in (None, 0.123456, 12345)] == [
        *("-", "0.1235", "1.234e+04")
    ]


def test_squeue_and_sacct_lines() -> None:
    """Array elements, `None assigned`, `CANCELLED by 0`, missing times."""
    queued = parse_squeue("12_3|PENDING|N/A|N/A||Dependency\nrubbish\n")
    assert queued["12_3"].reason == "Dependency"
    assert queued["12_3"].start is None
    counted = parse_sacct("9|CANCELLED by 0|1796065702|1796065702|None assigned|0:0\n")
    assert (counted["9"].phase.value, counted["9"].nodes) == ("over", "")


def test_finding_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory, NAME (with and without `latest`), NAME/ID."""
    found = replay("crash", tmp_path)
    root = tmp_path / "runs"
    (root / ".code" / "0123").mkdir(parents=True)
    for word in ("toy", f"toy/{found.run.id}", str(found.run.path)):
        assert find_run(word, root) == found.run
    second = root / "toy" / "99990101-000000-ffff"
    shutil.copytree(found.run.path, second)
    (root / "toy" / "latest").symlink_to(found.run.id)
    assert find_run("toy", root) == found.run
    assert list_runs(root) == [found.run, RunDirectory(second)]
    with pytest.raises(UsageError, match=r"no run of that name .*; there are toy \("):
        find_run("tyo", root)
    with pytest.raises(UsageError, match="no such directory; expected the place"):
        select_runs([], tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)
    assert find_root(None, {}) == root
    assert find_root(None, {"CLUSTERDDP_RUNS": "/r"}) == Path("/r")
    assert find_root("/s", {"CLUSTERDDP_RUNS": "/r"}) == Path("/s")


def test_status_at_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table, JSON, and a mistake in three parts."""
    found = replay("crash", tmp_path)
    words = ["--runs", str(tmp_path / "runs")]
    assert status(words) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["RUN", "STATE", "JOB"]
    assert line.split()[:2] == [f"toy/{found.run.id}", "failed"]
    assert status([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "failed"
    assert status([*words, "nobody"]) == 2


def damage(run: RunDirectory) -> None:
    """Leave in a run what full disks, editors and other versions may leave."""
    run.events.mkdir(exist_ok=True)
    (run.events / "login-x-1.jsonl").write_bytes(
        b'\xff\xfe{{{\nnull\n[]\n{"time": "x", "event": 3}\n{"time": 1}\n'
    )
    (run.events / "directory.jsonl").mkdir()
    with run.metrics.open("a") as file:
        file.write('{"step": "x"}\nnull\n12\n{"step": 5, "time": 1, "loss": "low"}\n')
        file.write('{"step": 12, "time": 9e8, "samples_per_s": "fast"}\n{"ste')
    run.progress.write_text('"x"')
    for attempt in run.list_attempts():
        for path in attempt.verdicts.glob("*.json"):
            path.write_text('{"rank": 1')
        attempt.owner.write_text("[]")
        attempt.saves.write_text(
            'nonsense\n{"event": "saved", "time": "x"}\n{"event": "saved"}\n[]\n'
        )
    (run.attempts / "0099").mkdir(parents=True)
    (run.attempts / "junk").touch()


@pytest.mark.parametrize("case", CASES)
def test_damaged_runs_are_looked_at(case: str, tmp_path: Path) -> None:
    """No verb ends in a traceback, whatever lies there; what is sound is shown."""
    run = replay(case, tmp_path).run
    damage(run)
    word = str(run.path)
    assert status([word]) == 0
    assert why([word]) == 0
    assert report([word, "--text"]) == 0
    assert report([word]) == 0
    assert logs([word]) == 0
    assert resubmit([word, "--dry-run"]) == 0


def test_what_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file where a directory should be; a directory where a file should be."""
    run = replay("crash", tmp_path).run
    shutil.rmtree(run.attempts)
    shutil.rmtree(run.events)
    run.attempts.touch()
    run.events.touch()
    assert why([str(run.path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "its ledger is lost: submit it once more" in out
    assert logs([str(run.path)]) == 2
    run.progress.unlink(missing_ok=True)
    run.progress.mkdir()
    assert status([str(run.path)]) == 2
    said = capsys.readouterr().err
    expected = f"{run.progress}: found Is a directory, expected to be able to use it"
    assert expected in said
    assert "see who owns it and what it is with ls -ld" in said


def test_watch_shows_it_again_until_ctrl_c(tmp_path: Path) -> None:
    """Piped: one table after the other; 130 and no traceback at the end."""
    replay("crash", tmp_path)
    words = ("clusterddp.status", "--runs", str(tmp_path / "runs"), "--watch", "1")
    process = start(words, tmp_path)
    assert process.stdout is not None
    seen = [process.stdout.readline().split()[0] for _ in range(3)]
    assert seen[0] == seen[2] == "RUN"
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert (done.code, "Traceback" in done.err) == (130, False)


def test_why_at_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON has the same paragraph."""
    replay("crash", tmp_path)
    words = ["toy", "--runs", str(tmp_path / "runs")]
    assert why(words) == 0
    assert "ValueError: the toy broke" in capsys.readouterr().out
    assert why([*words, "--json"]) == 0
    assert "the toy broke" in json.loads(capsys.readouterr().out)["paragraph"]


@pytest.mark.parametrize("case", ["finished", "crash", "killed_rank"])
def test_logs_of_all_ranks(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All attempts, each line with who said it, equal ones once."""
    found = replay(case, tmp_path)
    assert logs([str(found.run.path)]) == 0
    check_golden(f"logs/{case}.txt", found.neutral(capsys.readouterr().out))


def test_logs_choose_and_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One rank, one attempt, the first traceback; mistakes say what there is."""
    run = str(replay("crash", tmp_path).run.path)
    assert logs([run, "--rank", "0", "--attempt", "-1"]) == 0
    assert "step 10/30" in capsys.readouterr().out
    assert logs([run, "--errors"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("== attempt 1")
    assert out[1].startswith("rank 1 on n1: ValueError: the toy broke")
    assert out[-1] == "[1] ValueError: the toy broke"
    waiting = str(replay("pending", tmp_path / "p").run.path)
    good = str(replay("finished", tmp_path / "f").run.path)
    for words, text in (
        ([run, "--attempt", "7"], "has the attempts 0 to 1; give one of them"),
        ([run, "--rank", "7"], "has words of ranks 0-1; give one that there is"),
        ([waiting], "no attempt yet, so nothing was said"),
        ([good, "--errors"], "no rank told of a failure"),
    ):
        assert logs(words) == 2
        assert text in capsys.readouterr().err


def test_fold_keeps_order_and_says_equal_lines_once() -> None:
    """Lines in common keep the ranks in step; torch's times do not count."""
    lines = {
        0: ["a", "zero", "b", "[W1130 19:11:36.95 socket.cpp:207] x", "c"],
        1: ["a", "b", "one", "[W1130 19:11:37.11 socket.cpp:207] x", "c"],
        2: ["a", "b", "[W1130 19:11:37.12 socket.cpp:207] x"],
    }
    assert list(fold(lines)) == [
        ([0, 1, 2], "a"),
        ([0], "zero"),
        ([0, 1, 2], "b"),
        ([1], "one"),
        ([0, 1, 2], "[W1130 19:11:36.95 socket.cpp:207] x"),
        ([0, 1], "c"),
    ]
    crossed = {0: ["x", "y"], 1: ["y", "x"]}
    assert [line for _, line in fold(crossed)] == ["x", "y", "x"]
    assert [prefix(ranks, 8) for ranks in (range(8), [3], [0, 1, 2, 5])] == [
        *("[x8]", "[3]", "[0-2,5]")
    ]
    assert prefix([0], 1) == "[0]"


def test_follower_gives_each_line_once_across_attempts(tmp_path: Path) -> None:
    """New lines only, half lines when they are whole, a headline per attempt."""
    run = RunDirectory(tmp_path)
    first, second = run.attempt(0), run.attempt(1)
    first.path.mkdir(parents=True)
    follower = Follower(run)
    (first.path / "rank-0000.log").write_text("one\nhal")
    (first.path / "rank-0001.log").write_text("one\n")
    assert follower.look()[1:] == ["[x2] one"]
    with (first.path / "rank-0000.log").open("a") as file:
        file.write("f\nrest")
    assert follower.look() == ["[0] half"]
    second.path.mkdir()
    (second.path / "rank-0000.log").write_text("10%\r20%\n")
    assert follower.look() == [
        *("[0] rest", "== attempt 1 · local · host unknown", "[0] 20%")
    ]
    assert follower.look() == []
    assert list(render_attempt(first)) == ["[x2] one", "[0] half", "[0] rest"]
