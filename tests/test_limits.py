"""Limits on submitted jobs pass when a job ends; others never do, and are reported.

The texts are those of a real 22.05 (tests/test_slurm_limits.py provokes one for real).
"""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from clusterddp.config import load_job
from clusterddp.errors import SlurmError
from clusterddp.launch.requeue import Leave
from clusterddp.runs.decision import Action, Decision
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import Ledger
from clusterddp.slurm.allocation import Allocation
from clusterddp.slurm.patience import Backoff, fit_pauses, is_full, is_transient
from clusterddp.slurm.programs import Completed
from clusterddp.supervise import in_job
from tests.runs import events, finish, latest, start
from tests.test_sending import Site

_POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)
FULL = f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{_POLICY}\n"
TOO_LONG = f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{_POLICY}\n"
ALWAYS = "99"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("AssocMaxSubmitJobLimit", True),
        ("AssocGrpSubmitJobsLimit", True),
        ("QOSMaxSubmitJobPerUserLimit", True),
        ("QOSGrpSubmitJobsLimit", True),
        ("MaxSubmitJobsPerAccount", True),
        ("QOSMaxWallDurationPerJobLimit", False),
        ("QOSMaxCpuPerJobLimit", False),
        ("Batch job submission failed: Job violates accounting/QOS policy", False),
        ("Invalid qos specification", False),
        ("Unable to contact slurm controller", False),
    ],
)
def test_which_limits_pass(words: str, answer: bool) -> None:  # noqa: FBT001
    """Those on the number of jobs; nothing was sent, so no answer was lost either."""
    assert is_full(f"sbatch refused: {words}; Job violates") is answer
    assert not (answer and is_transient(words))


def test_pauses_fit_into_what_is_left() -> None:
    """All of them where nobody knows; none when the end is near."""
    assert fit_pauses(None, (1, 2, 4)) == (1, 2, 4)
    assert fit_pauses(27.0, (1, 2, 4)) == (1, 2, 4)
    assert fit_pauses(26.0, (1, 2, 4)) == (1, 2)
    assert fit_pauses(3.0, (1, 2, 4)) == ()
    assert fit_pauses(-3.0, (1, 2, 4)) == ()


def test_refused_runs_rest_longer_each_time() -> None:
    """Twice as long, ten minutes at most, and not at all after a success."""
    refusals = Backoff(60.0)
    for now, rest in ((0.0, 60.0), (100.0, 120.0), (300.0, 240.0), (600.0, 480.0)):
        refusals.note("a", now, is_refused=True)
        assert refusals.rests("a", now + rest - 1)
        assert not refusals.rests("a", now + rest)
    refusals.note("a", 2000.0, is_refused=True)
    assert not refusals.rests("a", 2600.0)
    refusals.note("a", 3000.0, is_refused=False)
    assert not refusals.rests("a", 3000.0)
    assert not refusals.rests("b", 0.0)
    hourly = Backoff(3600.0)
    hourly.note("a", 0.0, is_refused=True)
    assert hourly.rests("a", 3599.0)


@pytest.fixture
def leaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Site, Leave]:
    """A run about to leave a job that may not be requeued; no pause takes time."""
    site = Site(tmp_path)
    assert site.submit().code == 0
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr("clusterddp.slurm.patience.time.sleep", lambda _: None)
    shown = Completed(0, "JobState=RUNNING Restarts=0 Requeue=0 EndTime=Unknown", "")
    allocation = Allocation("71", run=lambda _: shown)
    run, job = latest(tmp_path), load_job(tmp_path / "job.yaml")
    return site, Leave(run, job, allocation, Ledger(run, "attempt-0000"), in_job)


DECISION = Decision(Action.REQUEUE, "preempted, time 1", 75)


def test_successor_waits_for_room(leaving: tuple[Site, Leave]) -> None:
    """Refused three times for the number of jobs, then taken: one successor."""
    site, leave = leaving
    site.say("sbatch-says", FULL)
    site.say("sbatch-fails", "4")
    assert leave.go(DECISION) == 75
    assert site.calls == 5
    refused = events(leave.run, "refused")
    assert len(refused) == 3
    assert str(refused[0].values["reason"]) == (
        "sbatch refused: QOSMaxSubmitJobPerUserLimit; Batch job submission failed: Job "
        "violates accounting/QOS policy (job submit limit, user's size and/or time "
        "limits); as many jobs are submitted as this limit allows, and one more fits "
        "when one of them has ended"
    )
    assert [one.values["job"] for one in events(leave.run, "submitted")] == ["71", "75"]
    assert not events(leave.run, "needs_resubmit")


@pytest.mark.parametrize(
    ("says", "calls", "words"),
    [(FULL, 9, "QOSMaxSubmitJobPerUserLimit"), (TOO_LONG, 2, "QOSMaxWallDuration")],
    ids=["no room for two minutes", "too long for ever"],
)
def test_successor_that_is_refused_for_good_is_reported(
    leaving: tuple[Site, Leave], says: str, calls: int, words: str
) -> None:
    """The ledger says "needs resubmit", and which limit it was."""
    site, leave = leaving
    site.say("sbatch-says", says)
    site.say("sbatch-fails", ALWAYS)
    with pytest.raises(SlurmError, match=words):
        leave.go(DECISION)
    assert site.calls == calls
    told = events(leave.run, "needs_resubmit")
    assert [words in str(event.values["reason"]) for event in told] == [True]


@pytest.mark.parametrize("says", [FULL, TOO_LONG], ids=["full", "too long"])
def test_submit_reports_a_limit_at_once(tmp_path: Path, says: str) -> None:
    """Somebody sits there and reads which limit it is; nothing stays behind."""
    site = Site(tmp_path)
    site.say("sbatch-says", says)
    site.say("sbatch-fails", ALWAYS)
    done = site.submit()
    assert done.code == 4
    assert site.calls == 1
    limit = says.splitlines()[0].removeprefix("sbatch: error: ")
    assert f"sbatch refused: {limit}; Batch job submission failed" in done.err
    assert ("one more fits when one of them has ended" in done.err) is (says == FULL)
    assert not list((tmp_path / "runs" / "toy").glob("2*"))


def test_watch_brings_a_run_back_when_there_is_room(tmp_path: Path) -> None:
    """Refused twice, said once, then sent; the queue has its job from then on."""
    site = Site(tmp_path)
    assert site.submit().code == 0
    run = latest(tmp_path)
    _needs_resubmit(run)
    site.say("queue", "71|FAILED|1|2|n1|None\n")
    site.say("sbatch-says", FULL)
    site.say("sbatch-fails", "3")
    path = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    watch = start(("clusterddp.resubmit", "--all", "--watch", "1"), tmp_path, path)
    assert watch.stdout is not None
    said = []
    for line in watch.stdout:
        said.append(line)
        if "resubmitted" in line:
            break
    site.say("queue", "74|RUNNING|1|2|n1|None\n")
    watch.terminate()
    finish(watch)
    assert site.calls == 4
    assert "".join(said).count("QOSMaxSubmitJobPerUserLimit") == 1
    assert [one.values["job"] for one in events(run, "submitted")] == ["71", "74"]


def _needs_resubmit(run: RunDirectory) -> None:
    ledger = Ledger(run, "attempt-0000")
    ledger.add("attempt_started", attempt=0, job="71")
    ledger.add("attempt_ended", attempt=0, cause="preempted")
    ledger.add("needs_resubmit", reason="sbatch refused: no room", code=4)


_SCONTROL = """#!/bin/sh
echo "$*" >> {home}/scontrol-calls
case "$*" in
*show*) echo JobState=RUNNING Restarts=0 Requeue=1 EndTime=Unknown ExcNodeList=n9 ;;
*) kill -TERM $$ ; sleep 0.1 ;;
esac
"""


@pytest.mark.parametrize(
    ("drained", "excluded"),
    [
        ((), "n8,n9,n2"),
        (("n3",), "n8,n2"),
        (("n3", "n4"), "n8"),
    ],
    ids=["room without all", "an earlier one comes back", "no room without any"],
)
def test_a_job_is_kept_only_from_nodes_that_it_can_do_without(
    leaving: tuple[Site, Leave], drained: tuple[str, ...], excluded: str
) -> None:
    """Each node lost in its life would in the end leave none (seen: it waited on).

    What the job file excludes stays excluded. The job needs two of n1 to n9, of which
    n1, n5, n6 and n7 are down anyway.
    """
    site, leave = leaving
    closed = {"n1", "n5", "n6", "n7", *drained}
    states = [
        f"n{i}|{'drained' if f'n{i}' in closed else 'idle'}" for i in range(1, 10)
    ]
    for name, text in (
        ("scontrol", _SCONTROL.format(home=site.home).replace("=n9", "=n8,n9")),
        ("sinfo", "#!/bin/sh\necho '" + "\n".join(states) + "'\n"),
    ):
        site.say(f"bin/{name}", text)
        (site.home / "bin" / name).chmod(0o755)
    slurm = leave.job.slurm.model_copy(update={"nodes": 2, "exclude": "n8"})
    job = leave.job.model_copy(update={"slurm": slurm})
    going = replace(leave, job=job, allocation=Allocation("71"))
    assert going.go(replace(DECISION, exclude=("n2",))) == 75
    calls = (site.home / "scontrol-calls").read_text().splitlines()
    assert calls[-1] == f"update JobId=71 ExcNodeList={excluded}"


def test_requeue_is_not_broken_off_by_what_it_brings_about(
    leaving: tuple[Site, Leave],
) -> None:
    """Slurm ends the whole batch step then, a scontrol that is under way included.

    It was taken for a refusal, and the ledger said "needs resubmit" (seen).
    """
    site, leave = leaving
    path = site.home / "bin" / "scontrol"
    path.write_text(_SCONTROL.format(home=site.home))
    path.chmod(0o755)
    site.say("bin/sinfo", "#!/bin/sh\nexit 1\n")
    (site.home / "bin" / "sinfo").chmod(0o755)
    before = signal.getsignal(signal.SIGTERM)
    going = replace(leave, allocation=Allocation("71"))
    assert going.go(replace(DECISION, exclude=("n2", "n9"))) == 75
    calls = (site.home / "scontrol-calls").read_text().splitlines()
    assert calls[-2:] == ["requeue 71", "update JobId=71 ExcNodeList=n9,n2"]
    told = events(leave.run, "excluded")
    assert [event.values["error"] for event in told] == [None]
    assert not events(leave.run, "needs_resubmit")
    assert signal.getsignal(signal.SIGTERM) is before
