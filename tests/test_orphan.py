"""Ranks that miss their supervisor: signs of life, silence, and who brings back."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterddp.launch import orphan
from clusterddp.launch.orphan import Heartbeat, OrphanWatch
from clusterddp.runs.directory import RunDirectory, create_run
from clusterddp.runs.ledger import Ledger
from clusterddp.slurm.allocation import Allocation
from clusterddp.slurm.programs import Completed
from tests.runs import ROOT, clean_environ

RUNNING = "JobState=RUNNING Reason=None Restarts=0 Requeue=1"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run whose first attempt goes on."""
    made = create_run(tmp_path, "toy", "r1")
    made.attempt(0).path.mkdir()
    return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Slurm was asked by the ranks of job 7."""
    words: list[str] = []

    def answer(arguments: Sequence[str]) -> Completed:
        words.append(" ".join(arguments))
        return Completed(0, RUNNING, "")

    monkeypatch.setattr(orphan, "current_allocation", lambda _: Allocation("7", answer))
    monkeypatch.setattr(orphan, "_LOOK_S", 0.05)
    return words


def watch(run: RunDirectory, patience_s: float) -> OrphanWatch:
    return OrphanWatch(run, run.attempt(0), patience_s)


def test_a_rank_that_failed_leaves_when_its_supervisor_gives_a_sign(
    run: RunDirectory, asked: list[str]
) -> None:
    """It has not to be missed: nothing is requeued by a rank."""
    timer = threading.Timer(0.3, Heartbeat(run.attempt(0)).beat)
    timer.start()
    watch(run, 60.0).linger()
    timer.join()
    assert asked == []


def test_of_several_ranks_one_requeues_the_job(
    run: RunDirectory, asked: list[str]
) -> None:
    """Silence for longer than the patience; mkdir decides who does it."""
    for _ in range(3):
        watch(run, 0.2).linger()
    assert asked.count("scontrol requeue 7") == 1


def test_a_cancelled_job_is_not_brought_back(
    run: RunDirectory, asked: list[str]
) -> None:
    """The request to end it stands in the ledger."""
    Ledger(run, "login").add("cancel_requested", job="7")
    watch(run, 0.2).linger()
    assert asked == []


def test_signs_differ_and_are_not_too_many(run: RunDirectory) -> None:
    """One every few seconds, however often it is called."""
    heart = Heartbeat(run.attempt(0))
    for _ in range(100):
        heart.beat()
    assert (run.attempt(0).path / "heartbeat").read_text() == "1\n"


def test_silence_asks_for_a_common_stop_first(tmp_path: Path) -> None:
    """The rank gets a SIGTERM of its own: it saves and leaves if it still can."""
    code = (
        "import signal, sys, time\n"
        "from pathlib import Path\n"
        "from clusterddp.launch import orphan\n"
        "from clusterddp.runs.directory import create_run\n"
        "orphan._LOOK_S = 0.05\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        "run = create_run(Path(sys.argv[1]), 'toy', 'r1')\n"
        "run.attempt(0).path.mkdir()\n"
        "orphan.OrphanWatch(run, run.attempt(0), 0.3).start()\n"
        "time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=clean_environ(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 75, done.stderr
    assert "no sign of life from the supervisor" in done.stderr
