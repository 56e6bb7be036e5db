"""The decision table, cause by cause and exhaustively."""

import itertools

import pytest

from clusterddp.config.schema import Retry
from clusterddp.runs.decision import Action, decide
from clusterddp.runs.verdict import Cause, Past

NEVER_REQUEUED = {
    Cause.COMPLETED,
    Cause.CANCELLED,
    Cause.REQUEUED,
    Cause.INTERRUPTED,
    Cause.WRONG_JOB,
    Cause.CRASH,
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
    ],
)
def test_table(cause: Cause, on_slurm: bool, action: Action, code: int) -> None:  # noqa: FBT001
    """The first time, with the default budgets."""
    decision = decide([Past(cause)], Retry(), on_slurm=on_slurm)
    assert (decision.action, decision.exit_code) == (action, code)


@pytest.mark.parametrize(
    ("cause", "policy", "key"),
    [
        (Cause.CRASH, Retry(crashes=2), "retry.crashes"),
        (Cause.TIME_LIMIT, Retry(timeouts=2), "retry.timeouts"),
        (Cause.PREEMPTED, Retry(preemptions=2), "retry.preemptions"),
    ],
)
def test_budgets_count_their_own_cause_only(
    cause: Cause, policy: Retry, key: str
) -> None:
    """Two are allowed, the third stops the run and names the key to raise."""
    others = [Past(other) for other in Cause if other is not cause]
    past = [*others, Past(cause), *others, Past(cause)]
    assert decide(past, policy, on_slurm=True).action is not Action.STOP
    last = decide([*past, Past(cause)], policy, on_slurm=True)
    assert last.action is Action.STOP
    assert f"{key} allows 2" in last.reason


def test_preemptions_are_unlimited_by_default() -> None:
    """A long run on a busy partition is preempted a thousand times."""
    past = [Past(Cause.PREEMPTED)] * 1000
    assert decide(past, Retry(), on_slurm=True).action is Action.REQUEUE


def test_every_history_has_a_decision_and_nothing_rises_from_the_dead() -> None:
    """All pairs of causes: a decision exists; only a signal in time requeues."""
    for first, last in itertools.product(Cause, Cause):
        for on_slurm in (True, False):
            history = [Past(first), Past(last)]
            decision = decide(history, Retry(), on_slurm=on_slurm)
            assert decision.reason
            if last in NEVER_REQUEUED or not on_slurm:
                assert decision.action is not Action.REQUEUE
