"""The decision table, cause by cause and exhaustively."""

import itertools

import pytest

from clusterddp.config.schema import Retry
from clusterddp.runs.decision import FAILURES, Action, Place, decide
from clusterddp.runs.verdict import Cause, Past

NEVER_REQUEUED = {
    Cause.COMPLETED,
    Cause.CANCELLED,
    Cause.REQUEUED,
    Cause.INTERRUPTED,
    Cause.WRONG_JOB,
    Cause.OUT_OF_MEMORY,
    Cause.SUSPENDED,
    Cause.CRASH,
    Cause.STALLED,
    Cause.SIGNALLED,
}


@pytest.mark.parametrize(
    ("cause", "on_slurm", "action", "code"),
    [
        (Cause.COMPLETED, True, Action.FINISH, 0),
        (Cause.COMPLETED, False, Action.FINISH, 0),
        (Cause.PREEMPTED, True, Action.REQUEUE, 75),
        (Cause.TIME_LIMIT, True, Action.REQUEUE, 75),
        (Cause.SIGNALLED, True, Action.RESTART, 75),
        (Cause.SIGNALLED, False, Action.STOP, 75),
        (Cause.CRASH, True, Action.RESTART, 1),
        (Cause.CRASH, False, Action.RESTART, 1),
        (Cause.CANCELLED, True, Action.STOP, 75),
        (Cause.REQUEUED, True, Action.STOP, 75),
        (Cause.INTERRUPTED, False, Action.STOP, 75),
        (Cause.WRONG_JOB, True, Action.STOP, 2),
        (Cause.OUT_OF_MEMORY, True, Action.STOP, 1),
        (Cause.NODE_FAILURE, True, Action.REQUEUE, 75),
        (Cause.STALLED, True, Action.RESTART, 1),
        (Cause.STALLED, False, Action.RESTART, 1),
        (Cause.SUSPENDED, True, Action.RESTART, 75),
    ],
)
def test_table(cause: Cause, on_slurm: bool, action: Action, code: int) -> None:  # noqa: FBT001
    """The first time, with the default budgets."""
    decision = decide([Past(cause)], Retry(), Place(on_slurm))
    assert (decision.action, decision.exit_code) == (action, code)


@pytest.mark.parametrize(
    ("cause", "policy", "key"),
    [
        (Cause.CRASH, Retry(crashes=2), "retry.crashes"),
        (Cause.TIME_LIMIT, Retry(timeouts=2), "retry.timeouts"),
        (Cause.PREEMPTED, Retry(preemptions=2), "retry.preemptions"),
        (Cause.STALLED, Retry(crashes=2), "retry.crashes"),
        (Cause.NODE_FAILURE, Retry(node_failures=2), "retry.node_failures"),
    ],
)
def test_budgets_count_their_own_cause_only(
    cause: Cause, policy: Retry, key: str
) -> None:
    """Two are allowed, the third stops the run and names the key to raise."""
    same = FAILURES if cause in FAILURES else (cause,)
    others = [Past(other) for other in Cause if other not in same]
    past = [*others, Past(cause), *others, Past(cause)]
    assert decide(past, policy, Place(on_slurm=True)).action is not Action.STOP
    last = decide([*past, Past(cause)], policy, Place(on_slurm=True))
    assert last.action is Action.STOP
    assert f"{key} allows 2" in last.reason


def test_preemptions_are_unlimited_by_default() -> None:
    """A long run on a busy partition is preempted a thousand times."""
    past = [Past(Cause.PREEMPTED)] * 1000
    assert decide(past, Retry(), Place(on_slurm=True)).action is Action.REQUEUE


def test_every_history_has_a_decision_and_nothing_rises_from_the_dead() -> None:
    """All pairs of causes: a decision exists; only a signal in time requeues."""
    for first, last in itertools.product(Cause, Cause):
        for on_slurm in (True, False):
            history = [Past(first), Past(last)]
            decision = decide(history, Retry(), Place(on_slurm))
            assert decision.reason
            if last in NEVER_REQUEUED or not on_slurm:
                assert decision.action is not Action.REQUEUE


def failed(key: str | None, host: str | None, checkpoint: int | None = 5) -> Past:
    return Past(Cause.CRASH, checkpoint, key, host)


def test_the_same_failure_on_two_nodes_stops_the_run() -> None:
    """It would fail for ever; the reason names it, whatever came between."""
    past = [failed("E at x", "n1"), Past(Cause.PREEMPTED, 5), failed("E at x", "n2")]
    decision = decide(past, Retry(), Place(on_slurm=True))
    assert (decision.action, decision.exit_code) == (Action.STOP, 1)
    assert "E at x twice on n1 and n2 and no newer checkpoint" in decision.reason
    here = [failed("E at x", "n1"), failed("E at x", "n1")]
    reason = decide(here, Retry(), Place(on_slurm=False)).reason
    assert "E at x twice on n1 and no newer checkpoint" in reason


def test_the_same_failure_on_one_node_excludes_the_node() -> None:
    """The node may be the cause; without a cluster there is no other node."""
    past = [failed("E at x", "n1"), failed("E at x", "n1")]
    decision = decide(past, Retry(), Place(on_slurm=True))
    assert (decision.action, decision.exclude) == (Action.REQUEUE, ("n1",))
    assert decide(past, Retry(), Place(on_slurm=False)).action is Action.STOP


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (failed("E at x", "n1", 5), failed("E at x", "n2", 10)),
        (failed("E at x", "n1", None), failed("E at x", "n2", 5)),
        (failed("E at x", "n1"), failed("E at y", "n2")),
        (failed(None, None), failed(None, None)),
    ],
    ids=["newer checkpoint", "first checkpoint", "other failure", "nobody could tell"],
)
def test_failures_that_are_not_the_same_again(first: Past, last: Past) -> None:
    """Progress, another failure, or no name for it: restarted within the budget."""
    decision = decide([first, last], Retry(), Place(on_slurm=True))
    assert decision.action is Action.RESTART


def test_a_node_that_is_blamed_three_times_is_excluded() -> None:
    """Different failures, newer checkpoints, but always the same node."""
    past = [failed(f"E{step}", "n1", step) for step in (1, 2, 3)]
    assert decide(past[:2], Retry(), Place(on_slurm=True)).action is Action.RESTART
    decision = decide(past, Retry(), Place(on_slurm=True))
    assert (decision.action, decision.exclude) == (Action.REQUEUE, ("n1",))
    assert "n1 was blamed 3 times" in decision.reason


def test_a_lost_node_is_excluded_unless_spares_are_left() -> None:
    """Requeued without it; with spare nodes the same job goes on."""
    past = [Past(Cause.NODE_FAILURE, 5, lost=("n2",))]
    decision = decide(past, Retry(), Place(on_slurm=True))
    assert (decision.action, decision.exclude) == (Action.REQUEUE, ("n2",))
    spared = decide(past, Retry(), Place(True, ("n1", "n2", "n3"), wanted=2))  # noqa: FBT003
    assert (spared.action, spared.exclude) == (Action.RESTART, ("n2",))


THREE = ("n1", "n2", "n3")
BAD = (failed("E at x", "n2"), failed("E at x", "n2"))
BLAMED = tuple(failed(f"E{step}", "n2", step) for step in (1, 2, 3))
LOST = (Past(Cause.NODE_FAILURE, 5, lost=("n2",)),)
LOST_TWO = (Past(Cause.NODE_FAILURE, 5, lost=("n2", "n3")),)
LOST_ALL = (Past(Cause.NODE_FAILURE, 5, lost=THREE),)
NEVER_STARTED = (Past(Cause.NODE_FAILURE, 5),)
STAYS, LEAVES = Action.RESTART, Action.REQUEUE


@pytest.mark.parametrize(
    ("past", "nodes", "wanted", "may_shrink", "action", "words"),
    [
        (LOST, THREE, 3, True, STAYS, "going on with 2 of 3 nodes"),
        (LOST_TWO, THREE, 3, True, STAYS, "going on with 1 of 3 nodes"),
        (LOST_TWO, THREE, 2, True, STAYS, "going on with 1 of 2 nodes"),
        (LOST, THREE, 2, True, STAYS, "going on with the nodes left"),
        (LOST, THREE, 2, False, STAYS, "going on with the nodes left"),
        (LOST, THREE, 3, False, LEAVES, "node failure of n2, time 1"),
        (LOST_TWO, THREE, 2, False, LEAVES, "node failure of n2, n3, time 1"),
        (LOST_ALL, THREE, 3, True, LEAVES, "time 1"),
        (LOST, ("n2",), 2, True, LEAVES, "time 1"),
        (LOST, (), 2, True, LEAVES, "time 1"),
        (LOST, ("n7.site", "n8.site"), 2, True, LEAVES, "time 1"),
        (NEVER_STARTED, THREE, 3, True, LEAVES, "time 1"),
        (NEVER_STARTED, THREE, 2, False, LEAVES, "time 1"),
        (BAD, THREE, 3, True, STAYS, "excluding the node, going on with 2 of 3"),
        (BAD, THREE, 2, False, STAYS, "excluding the node, going on with the nodes"),
        (BAD, THREE, 3, False, LEAVES, "twice on n2: excluding the node"),
        (BLAMED, THREE, 3, True, STAYS, "excluding it, going on with 2 of 3 nodes"),
        (BLAMED, THREE, 3, False, LEAVES, "n2 was blamed 3 times: excluding it"),
        (BLAMED, ("n2",), 3, True, LEAVES, "n2 was blamed 3 times: excluding it"),
    ],
)
def test_spares_first_then_fewer_ranks_then_a_requeue(
    past: tuple[Past, ...],
    nodes: tuple[str, ...],
    wanted: int,
    may_shrink: bool,  # noqa: FBT001
    action: Action,
    words: str,
) -> None:
    """Without a node that is lost or bad; whatever follows, the node is kept out."""
    policy = Retry(shrink=may_shrink)
    decision = decide(past, policy, Place(True, nodes, wanted))  # noqa: FBT003
    assert decision.action is action
    assert words in decision.reason
    excluded = past[-1].lost or tuple(filter(None, [past[-1].host]))
    assert decision.exclude == excluded


def test_shrinking_has_the_budget_of_node_failures() -> None:
    """As often as nodes may be lost, and no more."""
    past = [*LOST, *LOST]
    decision = decide(past, Retry(shrink=True, node_failures=1), Place(True, THREE, 3))  # noqa: FBT003
    assert decision.action is Action.STOP
    assert "retry.node_failures allows 1" in decision.reason


def test_saves_that_failed_too_often_end_the_run_at_once() -> None:
    """Another attempt would train for nothing."""
    past = [Past(Cause.CRASH, 5, "SaveError at checkpoints.py:9 in save")]
    decision = decide(past, Retry(crashes=9), Place(on_slurm=True))
    assert (decision.action, decision.exit_code) == (Action.STOP, 5)
    assert "checkpoints cannot be written" in decision.reason


@pytest.mark.parametrize("crashes", [1, 3])
def test_a_run_that_cannot_save_ends_with_the_code_of_checkpoints(crashes: int) -> None:
    """Whether it has failed so twice or as often as is allowed."""
    failure = "CheckpointError at checkpoints.py:9 in save"
    past = [Past(Cause.CRASH, 5, failure), Past(Cause.CRASH, 5, failure)]
    decision = decide(past, Retry(crashes=crashes), Place(on_slurm=False))
    assert (decision.action, decision.exit_code) == (Action.STOP, 5)
