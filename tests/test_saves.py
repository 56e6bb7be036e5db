"""How often to save: from what saves cost and how often earlier runs failed."""

import json
from pathlib import Path

import pytest

from clusterddp.config.schema import Every
from clusterddp.doctor import main as doctor
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.saves import (
    Experience,
    advise,
    read_experience,
    suggest_interval,
)
from tests.runs import write_job


def test_interval() -> None:
    """Young's example: a save of 10 s, a failure a day."""
    assert suggest_interval(10.0, 86400.0) == pytest.approx(1314.5, abs=0.1)


@pytest.mark.parametrize(
    ("every", "seen", "words"),
    [
        (Every(epochs=1), Experience(0.5, 3, 7200, 0, 36000), None),
        (Every(epochs=1), Experience(0.5, 3, 100, 2, 36000), None),
        (Every(seconds=600), Experience(0.5, 3, 100, 2, 36000), "one in 600s"),
        (Every(epochs=1), Experience(0.5, 3, 7200, 2, 36000), "about one in 134s"),
        (Every(epochs=1), Experience(0.5, 3, None, 2, 36000), "fewer than two"),
        (Every(seconds=5), Experience(1e-9, 30, 5, 2, 36000), "about one in 60s"),
    ],
    ids=["no failure", "near", "own words", "rare", "unknown", "while one is written"],
)
def test_advice(every: Every, seen: Experience, words: str | None) -> None:
    """Only where it is far off; never more often than a save can be written."""
    text = advise(every, seen)
    assert text is None if words is None else words in str(text)


def make_run(path: Path) -> RunDirectory:
    """Give a run of two attempts; the first crashed after an hour."""
    run = RunDirectory(path)
    run.events.mkdir(parents=True)
    run.job_file.write_text("name: toy\n")
    events: list[tuple[int, str, dict[str, object]]] = [
        (0, "ranks_started", {"attempt": 0}),
        (3600, "attempt_ended", {"attempt": 0, "cause": "crash"}),
        (3700, "ranks_started", {"attempt": 1}),
        (7300, "attempt_ended", {"attempt": 1, "cause": "completed"}),
    ]
    lines = [
        json.dumps({"time": time, "event": kind, **values})
        for time, kind, values in events
    ]
    (run.events / "attempt-0000.jsonl").write_text("\n".join(lines) + "\n")
    for number in (0, 1):
        attempt = run.attempt(number)
        attempt.path.mkdir(parents=True)
        save = {"event": "saved", "write_s": 2.0, "stall_s": 0.25}
        saves = [json.dumps({**save, "time": 1800 * i}) for i in range(2)]
        saves += ['{"event": "failed", "time": 9}', '{"event": "sav']
        attempt.saves.write_text("\n".join(saves))
    return run


def test_experience_is_read(tmp_path: Path) -> None:
    """From the attempts' lines and the ledger; a cut line is left out."""
    run = make_run(tmp_path)
    assert read_experience([run]) == Experience(0.25, 2.0, 1800.0, 1, 7200.0)
    assert read_experience([RunDirectory(tmp_path / "none")]) is None


def test_doctor_suggests(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It knows the earlier runs of the same name."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "toy" / "one")
    job = write_job(tmp_path, launcher="pytorch")
    assert doctor([str(job)]) == 0
    out = capsys.readouterr().out
    assert (
        "CD010 checkpoint.every: found one in 1800s, expected about one in 60s" in out
    )
