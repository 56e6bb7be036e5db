"""How long before the limit a run is told: by default learned from what it needed."""

import json
from pathlib import Path

import pytest

from clusterddp.config import load_job, render_job
from clusterddp.errors import JobFileError
from clusterddp.launch.early import EarlySignal, next_look
from clusterddp.runs.changes import read_run_job
from clusterddp.runs.delay import (
    Delay,
    choose_delay,
    delay_in_force,
    learn_delay,
    with_delay,
)
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import Ledger
from clusterddp.runs.timing import Timing, read_timing
from tests.runs import Done, events, latest, run_python, write_job
from tests.test_sending import Site

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("step_s", "save_s", "limit_s", "seconds", "words"),
    [
        (None, 30.0, HOUR_S, None, ""),
        (1.0, None, HOUR_S, None, ""),
        (0.5, 3.0, HOUR_S, 90.0, "fit into the default"),
        (10.0, 30.0, HOUR_S, 90.0, "fit into the default"),
        (10.0, 60.0, HOUR_S, 130.0, "two steps of 10 s and a save of 60 s, with"),
        (10.0, 61.0, HOUR_S, 140.0, "two steps of 10 s and a save of 61 s, with"),
        (120.0, 300.0, HOUR_S, 820.0, "two steps of 120 s and a save of 300 s"),
        (120.0, 300.0, 1200.0, 600.0, "no more than half of slurm.time"),
        (0.5, 3.0, 120.0, 60.0, "no more than half of slurm.time"),
    ],
)
def test_two_steps_and_a_save_with_margin(
    step_s: float | None,
    save_s: float | None,
    limit_s: float,
    seconds: float | None,
    words: str,
) -> None:
    """Rounded up, not below the default, not above half of the limit."""
    found = learn_delay(Timing(step_s=step_s, save_s=save_s), limit_s)
    assert (None if found is None else found.seconds) == seconds
    assert words in ("" if found is None else found.reason)


@pytest.mark.parametrize(
    ("time", "seconds"), [("1m", 30.0), ("2m", 60.0), ("3m", 90.0), ("12h", 90.0)]
)
def test_before_anything_was_measured(
    time: str, seconds: float, tmp_path: Path
) -> None:
    """90 s, but no more than half of a short limit."""
    job = load_job(write_job(tmp_path, slurm={"time": time}))
    assert job.slurm.first_delay_s == seconds


def test_given_delay_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    """Only what cannot work; see test_room for what hurts."""
    path = write_job(tmp_path, slurm={"time": "2m", "signal_delay": "2m"})
    with pytest.raises(JobFileError, match="more than slurm.signal_delay"):
        load_job(path)


def leave_measures(run: RunDirectory, samples_per_s: float, save_s: float) -> None:
    """Let a run look as if it had trained and saved."""
    attempt = run.attempt(0)
    attempt.path.mkdir(parents=True)
    saves = [
        {"event": "saved", "time": 9.0, "stall_s": 0.5, "write_s": save_s - 0.5},
        {"event": "failed", "time": 9.5},
        {"event": "saved", "time": 10.0, "write_s": 0.1},
    ]
    lines = [*map(json.dumps, saves), '{"event": "sav']
    attempt.saves.write_text("\n".join(lines))
    points = [
        {"step": 5, "time": 8.0, "samples_per_s": 10 * samples_per_s},
        {"step": 10, "time": 9.0, "samples_per_s": samples_per_s},
        {"step": 15, "time": 9.5},
    ]
    run.metrics.write_text("".join(f"{json.dumps(point)}\n" for point in points))


def test_a_further_job_asks_for_what_was_learned(tmp_path: Path) -> None:
    """Slowest step and longest save; sbatch and ledger get it, and the reason.

    What the newest job was sent with is in force until another one is sent.
    """
    site = Site(tmp_path)
    assert site.submit().code == 0
    run = latest(tmp_path)
    assert read_timing([run]) == Timing()
    assert "#SBATCH --signal=USR2@90\n" in script(run, "71")
    leave_measures(run, samples_per_s=0.8, save_s=100.0)
    assert read_timing([run]) == Timing(step_s=30.0, save_s=100.0)
    assert delay_in_force(run, read_run_job(run)) == 90.0
    done = resubmit(site)
    assert done.code == 0, done.err
    assert "#SBATCH --signal=USR2@250\n" in script(run, "72")
    sent = events(run, "submitted")[-1].values
    assert sent["signal_delay"] == 250.0
    assert sent["delay_reason"] == "two steps of 30 s and a save of 100 s, with margin"
    assert delay_in_force(run, read_run_job(run)) == 250.0
    assert read_run_job(run).slurm.signal_delay == "auto"
    assert resubmit(site, "slurm.signal_delay=2m").code == 0
    assert "#SBATCH --signal=USR2@120\n" in script(run, "73")
    assert delay_in_force(run, read_run_job(run)) == 120.0


def script(run: RunDirectory, job_id: str) -> str:
    return (run.submitit / f"{job_id}_submission.sh").read_text()


def resubmit(site: Site, *words: str) -> Done:
    """Bring the run back: Slurm knows its job as failed."""
    number = site.calls
    site.say("queue", f"7{number}|FAILED|1|2|n1|None\n")
    environ = {"PATH": f"{site.home}/bin:/usr/bin:/bin"}
    verb = ("clusterddp.resubmit", "toy", *words)
    return run_python(verb, site.home, environ)


def test_choice_without_measures_and_with_a_given_delay(tmp_path: Path) -> None:
    """The default, and the job file's own word; the file's word always wins."""
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    job = load_job(write_job(tmp_path))
    unmeasured = choose_delay(run, job)
    assert unmeasured == Delay(90.0, "the default: nothing was measured yet")
    given = with_delay(job, Delay(40.0, ""))
    leave_measures(run, samples_per_s=0.1, save_s=100.0)
    assert choose_delay(run, given) == Delay(40.0, "slurm.signal_delay")


@pytest.mark.parametrize(
    ("left_s", "needed_s", "pause_s"),
    [
        (None, 200.0, 60.0),
        (5000.0, 200.0, 300.0),
        (260.0, 200.0, 60.0),
        (200.0, 200.0, 0.0),
        (-5.0, 200.0, 0.0),
    ],
)
def test_when_the_time_left_is_looked_at(
    left_s: float | None, needed_s: float, pause_s: float
) -> None:
    """At least every five minutes: somebody may change the limit."""
    assert next_look(left_s, needed_s) == pause_s


@pytest.fixture
def early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[RunDirectory, list[bool], EarlySignal]:
    """A job whose own signal comes 90 s before the limit; 240 s are left."""
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    job = load_job(write_job(tmp_path))
    run.job_file.write_text(render_job(job))
    answers = [False, True]
    clock = iter(range(0, 100_000, 1000))
    monkeypatch.setattr("clusterddp.launch.early.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("clusterddp.launch.early.seconds_left", lambda *_: 240.0)
    signal = EarlySignal(run, job, 90.0, Ledger(run, "a"), lambda: answers.pop(0))
    return run, answers, signal


def test_ranks_that_need_longer_are_asked_earlier(
    early: tuple[RunDirectory, list[bool], EarlySignal],
) -> None:
    """Not before it is known, again after a failed try, and once."""
    run, answers, signal = early
    signal.look()
    assert (answers, signal.asked_s) == ([False, True], 90.0)
    leave_measures(run, samples_per_s=0.8, save_s=100.0)
    signal.look()
    assert (answers, signal.asked_s) == ([True], 90.0)
    signal.look()
    assert (answers, signal.asked_s) == ([], 250.0)
    signal.look()
    told = [event.values for event in events(run, "early_signal")]
    assert [(one["seconds"], one["job_s"]) for one in told] == [(250.0, 90.0)]


def test_ranks_that_fit_into_the_jobs_own_signal_are_left_to_it(
    early: tuple[RunDirectory, list[bool], EarlySignal],
) -> None:
    """Nothing is asked for, nobody asks Slurm."""
    run, answers, signal = early
    leave_measures(run, samples_per_s=24.0, save_s=3.0)
    signal.look()
    assert answers == [False, True]
    assert not events(run, "early_signal")
