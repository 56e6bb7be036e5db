"""Which dead runs come back: the table of judgements, claims, and changes of a job."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from clusterddp.config import read_job
from clusterddp.errors import SlurmError, UsageError
from clusterddp.launch.successor import find_sent_job, note_sent_job
from clusterddp.runs.changes import check_changes, read_run_job
from clusterddp.runs.claims import (
    claim_submission,
    count_claims,
    is_in_progress,
    unresolved_claim,
)
from clusterddp.runs.directory import RunDirectory, create_run
from clusterddp.runs.facts import Facts
from clusterddp.runs.ledger import Event, Ledger
from clusterddp.runs.revival import Known, Wish, judge
from clusterddp.runs.verdict import Summary
from clusterddp.slurm.listing import ListedJob
from clusterddp.slurm.nodes import count_usable, lost_nodes
from clusterddp.slurm.patience import is_transient, patiently
from clusterddp.slurm.programs import Completed
from tests.runs import write_job

RUN = RunDirectory(Path("/runs/toy/20260101-000000-abcd"))
NAMED, ALL = Wish(named=True), Wish()


Word = tuple[str, Mapping[str, object]]


def facts(*events: Word, **changes: object) -> Facts:
    """Give facts of a run of job 7; the events come one second after another."""
    first: Word = ("submitted", {"job": "7"})
    listed = [
        Event(float(n), kind, dict(values))
        for n, (kind, values) in enumerate([first, *events])
    ]
    return Facts(RUN, tuple(listed), **changes)  # type: ignore[arg-type]


STARTED = ("attempt_started", {"job": "7"})
PREEMPTED = ("attempt_ended", {"cause": "preempted"})
NEEDS = ("needs_resubmit", {"reason": "Access denied", "code": 4})
OVER = ("stopped", {"reason": "crash 4, and retry.crashes allows 3", "code": 1})
CANCELLED = ("attempt_ended", {"cause": "cancelled"})
GONE = (
    "stopped",
    {"reason": "the job was cancelled", "code": 75, "cause": "cancelled"},
)
ASKED = ("cancel_requested", {"job": "7"})


def job(state: str, reason: str = "") -> ListedJob:
    return ListedJob("7", state, reason)


@pytest.mark.parametrize(
    ("known", "wish", "action", "why"),
    [
        (Known(facts(STARTED), job("RUNNING")), NAMED, "leave", "job 7 is RUNNING"),
        (Known(facts(), job("PENDING", "Priority")), NAMED, "leave", "(Priority)"),
        (Known(facts(), job("PENDING", "BeginTime")), ALL, "release", "hold"),
        (Known(facts(), job("NEW_STATE")), NAMED, "leave", "job 7 is NEW_STATE"),
        (Known(facts(STARTED), answered=False), NAMED, "leave", "does not answer"),
        (Known(facts(STARTED), in_progress=True), NAMED, "leave", "right now"),
        (
            Known(facts(STARTED, summary=Summary("completed", 9, 9))),
            Wish(named=True, force=True),
            "leave",
            "last step is done",
        ),
        (Known(facts(STARTED), job("PREEMPTED")), ALL, "send", "ended as PREEMPTED"),
        (Known(facts(STARTED), job("NODE_FAIL")), ALL, "send", "ended as NODE_FAIL"),
        (Known(facts(STARTED), None, job("TIMEOUT")), ALL, "send", "as TIMEOUT"),
        (Known(facts(STARTED), job("FAILED")), ALL, "send", "ended as FAILED"),
        (
            Known(facts(STARTED), job("FAILED")),
            Wish(states=("preempted",)),
            "leave",
            "--state leaves failed out",
        ),
        (Known(facts(STARTED, PREEMPTED, NEEDS), job("FAILED")), ALL, "send", "denied"),
        (Known(facts(STARTED)), ALL, "send", "does not know job 7"),
        (Known(facts()), ALL, "leave", "name the run"),
        (Known(facts()), NAMED, "send", "does not know job 7"),
        (Known(facts(STARTED, OVER), job("FAILED")), ALL, "leave", "retry.crashes"),
        (Known(facts(STARTED, OVER), job("FAILED")), NAMED, "send", "it was stopped"),
        (Known(facts(STARTED), job("CANCELLED by 0")), NAMED, "leave", "--force"),
        (Known(facts(STARTED, CANCELLED)), NAMED, "leave", "--force"),
        (Known(facts(STARTED, PREEMPTED, GONE)), NAMED, "leave", "--force"),
        (Known(facts(ASKED), job("FAILED")), ALL, "leave", "--force"),
        (Known(facts(STARTED, CANCELLED)), Wish(force=True), "leave", "--force"),
        (
            Known(facts(STARTED, CANCELLED)),
            Wish(named=True, force=True),
            "send",
            "brought back by --force",
        ),
    ],
)
def test_judgements(known: Known, wish: Wish, action: str, why: str) -> None:
    """Never what is active, finished or unknown; the cancelled only by force."""
    judgement = judge(known, wish)
    assert judgement.action == action
    assert why in judgement.why


@pytest.mark.parametrize(
    ("is_alive", "wish", "action"),
    [
        (True, NAMED, "leave"),
        (None, NAMED, "leave"),
        (False, ALL, "leave"),
        (False, NAMED, "run here"),
    ],
)
def test_local_runs_go_on_in_the_foreground(
    is_alive: bool | None,  # noqa: FBT001
    wish: Wish,
    action: str,
) -> None:
    """Only where their supervisor is known to be gone, and one at a time."""
    local = Facts(RUN, (Event(0.0, "submitted", {"job": None}),))
    assert judge(Known(local, is_alive=is_alive), wish).action == action


def test_a_new_submission_ends_what_was_before() -> None:
    """A cancelled run that was brought back by force is a run like any other."""
    back = ("submitted", {"job": "8"})
    died = Known(facts(STARTED, CANCELLED, back), ListedJob("8", "NODE_FAIL"))
    assert judge(died, ALL).action == "send"


def test_only_one_of_two_gets_the_claim(tmp_path: Path) -> None:
    """The number is taken with O_EXCL; a claim stands until the ledger has its job."""
    run = create_run(tmp_path, "toy", "r1")
    claim = claim_submission(run)
    assert claim.token == "#0001"  # noqa: S105
    assert unresolved_claim(run) == claim
    assert not is_in_progress(claim), "of this very process"
    note_sent_job(run, "12", claim)
    assert unresolved_claim(run) is None
    assert claim_submission(run).token == "#0002"  # noqa: S105


def test_a_claim_since_the_look_is_respected(tmp_path: Path) -> None:
    """Both have seen a dead run; who comes second is refused, and so is a third."""
    run = create_run(tmp_path, "toy", "r1")
    seen = count_claims(run)
    claim_submission(run, seen)
    for _ in range(2):
        with pytest.raises(UsageError, match="somebody else sends a job for this run"):
            claim_submission(run, seen)
    assert count_claims(run) == 1


def test_claim_of_a_living_or_foreign_process(tmp_path: Path) -> None:
    """A living process is left at it; another host's is believed for ten minutes."""
    run = create_run(tmp_path, "toy", "r1")
    claim = claim_submission(run)
    claim.path.write_text('{"host": "elsewhere", "pid": 1, "created": 0}')
    assert is_in_progress(claim)
    os.utime(claim.path, (1, 1))
    assert not is_in_progress(claim)


def test_a_lost_submission_is_found_by_its_comment() -> None:
    """The token in the job's comment; an unwell controller is no `not there`."""
    mine = "clusterddp toy/20260101-000000-abcd #0002"
    listed = Completed(0, f"11|clusterddp toy/other #0002\n12|{mine}\n13|(null)\n", "")
    assert find_sent_job(RUN, "#0002", lambda _: listed) == "12"
    assert find_sent_job(RUN, "#0003", lambda _: listed) is None
    unwell = Completed(1, "", "Unable to contact slurm controller")
    with pytest.raises(SlurmError, match="Unable to contact"):
        find_sent_job(RUN, "#0002", lambda _: unwell)


def test_changes_are_kept_in_the_ledger_and_add_up(tmp_path: Path) -> None:
    """job.yaml stays as it was; whoever reads the run's job sees the changes."""
    run = create_run(tmp_path, "toy", "r1")
    write_job(run.path)
    ledger = Ledger(run, "login")
    ledger.add("submitted", job="1", changes=["slurm.time=2h", "slurm.nodes=2"])
    ledger.add("submitted", job="2", changes=["slurm.nodes=3", "retry.crashes=9"])
    changed = read_run_job(run, ["retry.timeouts=1"])
    assert (changed.slurm.time, changed.slurm.nodes) == (7200.0, 3)
    assert (changed.retry.crashes, changed.retry.timeouts) == (9, 1)
    assert read_job(run.job_file).slurm.nodes == 1
    with pytest.raises(UsageError, match="slurm.nodes: found 0, expected greater"):
        read_run_job(run, ["slurm.nodes=0"])
    with pytest.raises(UsageError, match="signal_delay"):
        read_run_job(run, ["slurm.time=1m", "slurm.signal_delay=1m"])


def test_only_shape_and_budgets_may_change() -> None:
    """The training itself stays as it was."""
    assert check_changes(["slurm.time=1h", "retry.crashes=1"])
    with pytest.raises(UsageError, match="found train, expected slurm"):
        check_changes(["train.epochs=3"])


def test_patience_is_for_what_passes() -> None:
    """An unwell controller is asked again; a refusal is told at once."""
    answers: list[str | None] = ["Socket timed out on send/recv", None]

    def call() -> str:
        words = answers.pop(0)
        if words is not None:
            raise SlurmError(words)
        return "done"

    assert patiently(call, (0.0,)) == "done"
    answers[:] = ["Invalid account", None]
    with pytest.raises(SlurmError, match="Invalid account"):
        patiently(call, (0.0,))
    answers[:] = ["try again later", "try again later"]
    with pytest.raises(SlurmError, match="try again later"):
        patiently(call, (0.0,))


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("Unable to contact slurm controller (connect failure)", True),
        ("Zero Bytes were transmitted or received", True),
        ("scontrol: no answer within 60 s; is the controller up?", True),
        ("Invalid job id specified", False),
        ("Job violates accounting/QOS policy", False),
    ],
)
def test_transient_words(words: str, answer: bool) -> None:  # noqa: FBT001
    """Slurm's own words for what passes."""
    assert is_transient(words) is answer


SINFO = Completed(0, "n1|idle\nn2|down*\nn3|mixed\nn4|allocated*\nn5|drained\n", "")


def test_lost_and_usable_nodes() -> None:
    """Down, or an asterisk: lost. Drained: answers, but takes no job."""
    names = ("n1", "n2", "n3", "n4", "n5")
    assert lost_nodes(names, lambda _: SINFO) == ("n2", "n4")
    assert lost_nodes((), lambda _: SINFO) == ()
    assert count_usable("main", ("n3",), lambda _: SINFO) == 1
    assert count_usable(None, (), lambda _: Completed(1, "", "x")) is None
