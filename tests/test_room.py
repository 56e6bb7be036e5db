"""A time limit that leaves little or no room to train in is warned of, not refused."""

import json
from pathlib import Path

import pytest

from clusterddp.config import load_job
from clusterddp.config.room import judge_room
from clusterddp.runs.timing import read_room
from tests.runs import latest, write_job
from tests.test_delay import resubmit
from tests.test_sending import Site

NO_STEP = (
    "found 180s, expected more than about 30s to start and 150s before the end, when "
    "the ranks may be asked to stop: a job may not finish a step; raise slurm.time"
)
NO_SAVE = (
    "found 600s, of which 420s are left to train (about 30s to start, and the signal "
    "90s before the end or 60s earlier), expected room for a checkpoint every 1800s: "
    "a job that fails has saved nothing; raise slurm.time or save more often "
    "(checkpoint.every)"
)


@pytest.mark.parametrize(
    ("time", "every", "start_s", "interval_s", "text"),
    [
        ("3m", "5 steps", None, None, NO_STEP),
        ("1m", "5 steps", None, None, "found 60s, expected more than about 30s"),
        ("181s", "5 steps", None, None, None),
        ("10m", "30m", None, None, NO_SAVE),
        ("10m", "7m", None, None, None),
        ("10m", ["30m", "1 epoch"], None, None, "checkpoint every 1800s"),
        ("10m", "1 epoch", None, None, None),
        ("10m", "1 epoch", None, 420.0, None),
        ("10m", "1 epoch", None, 421.0, "checkpoint every 421s"),
        ("10m", "1 epoch", 400.0, 60.0, "found 600s, of which 50s are left to train"),
        ("10m", "1 epoch", 450.0, None, "more than 450s to start (measured) and 150s"),
    ],
)
def test_room_between_start_and_signal(
    time: str,
    every: object,
    start_s: float | None,
    interval_s: float | None,
    text: str | None,
    tmp_path: Path,
) -> None:
    """By what earlier runs needed, else by a guess; a given interval counts first."""
    job = load_job(
        write_job(tmp_path, slurm={"time": time}, checkpoint={"every": every})
    )
    found = judge_room(job, start_s, interval_s)
    assert found is None if text is None else text in str(found)


def test_run_on_this_machine_has_no_limit(tmp_path: Path) -> None:
    """Nothing to say."""
    path = write_job(tmp_path, launcher="none", slurm={"time": "1m"})
    assert judge_room(load_job(path)) is None


def test_submit_and_resubmit_say_it_in_one_line_and_send(tmp_path: Path) -> None:
    """A warning only; earlier runs of the name are asked how long they needed."""
    site = Site(tmp_path)
    done = site.submit("slurm.time=3m")
    assert done.code == 0, done.err
    assert done.err.count("slurm.time: found 180s, expected more than about 30s") == 1
    quiet = site.submit("slurm.time=4m")
    assert quiet.code == 0
    assert "slurm.time" not in quiet.err
    run = latest(tmp_path)
    events = [
        {"time": 0.0, "event": "attempt_started", "attempt": 0},
        {"time": 400.0, "event": "attempt_ended", "attempt": 0, "cause": "crash"},
    ]
    lines = [f"{json.dumps(event)}\n" for event in events]
    (run.events / "attempt-0000.jsonl").write_text("".join(lines))
    point = {"step": 1, "time": 301.0, "samples_per_s": 24.0}
    run.metrics.write_text(json.dumps(point))
    assert read_room([run]) == (300.0, None)
    again = site.submit("slurm.time=5m")
    assert again.code == 0
    assert "found 300s, expected more than 300s to start (measured)" in again.err
    back = resubmit(site, "slurm.time=2m")
    assert back.code == 0
    assert "slurm.time: found 120s, expected more than about 30s" in back.err
