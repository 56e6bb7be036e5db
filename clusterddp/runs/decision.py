"""What to do when an attempt has ended: one table, one pure function."""

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterddp.config.schema import Retry
from clusterddp.errors import (
    EXIT_BUG,
    EXIT_STOPPED,
    CheckpointError,
    SaveError,
    UsageError,
)
from clusterddp.runs.verdict import Cause, Past

__all__ = ["FAILURES", "Action", "Decision", "Place", "decide"]

FAILURES = (Cause.CRASH, Cause.STALLED)
"""The causes that `retry.crashes` counts."""

_BLAMED_TOO_OFTEN = 3


class Action(enum.Enum):
    """What the supervisor does next."""

    FINISH = "finish"
    RESTART = "restart"
    REQUEUE = "requeue"
    STOP = "stop"


@dataclass(frozen=True)
class Decision:
    """What to do, why, and the code to leave with when that ends the supervisor.

    Attributes:
        action: what to do.
        reason: why, for the ledger and for people.
        exit_code: the supervisor's, where the action ends it.
        exclude: nodes that the run must not get again.
    """

    action: Action
    reason: str
    exit_code: int
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a run is.

    Attributes:
        on_slurm: whether it is in a job that can be requeued.
        nodes: the job's nodes, where it can go on without one of them; else none.
        wanted: how many of them the ranks are to have.
    """

    on_slurm: bool
    nodes: tuple[str, ...] = ()
    wanted: int = 1

    def count_without(self, nodes: Sequence[str]) -> int:
        """Count the nodes left without some; 0 if these are not known here."""
        if not set(nodes) <= set(self.nodes):
            return 0
        return len(self.nodes) - len(set(nodes))


def decide(past: Sequence[Past], policy: Retry, place: Place) -> Decision:
    """Decide what follows the last attempt; reads nothing and does nothing.

    Args:
        past: all attempts of the run, oldest first; the last one has just ended.
        policy: the job file's budgets.
        place: where the run is.
    """
    cause = past[-1].cause
    if cause in _FINAL:
        return _FINAL[cause]
    return _COUNTED[cause](past, policy, place)


def _after_failure(past: Sequence[Past], policy: Retry, place: Place) -> Decision:
    """Restart in the allocation, unless it would only fail again, or the node did."""
    times = sum(attempt.cause in FAILURES for attempt in past)
    last = past[-1]
    if _is(last, SaveError):
        reason = "checkpoints cannot be written: starting again would be for nothing"
        return Decision(Action.STOP, reason, SaveError.exit_code)
    if times > policy.crashes:
        allowed = f"retry.crashes allows {policy.crashes}"
        reason = f"{last.cause.value} {times}, and {allowed}"
        return Decision(Action.STOP, reason, _code_of(last))
    again = _same_failure_before(past)
    if again is not None:
        return _after_same_failure(last, again, policy, place)
    if place.on_slurm and last.host and _count_blame(past) >= _BLAMED_TOO_OFTEN:
        reason = f"node {last.host} was blamed {_count_blame(past)} times: excluding it"
        return _go_without((last.host,), reason, policy, place)
    reason = f"{last.cause.value} {times} of {policy.crashes} that retry.crashes allows"
    return Decision(Action.RESTART, reason, EXIT_BUG)


def _same_failure_before(past: Sequence[Past]) -> Past | None:
    """Give the failure before, if it was the same and nothing was saved since."""
    last = past[-1]
    failures = [attempt for attempt in past[:-1] if attempt.cause in FAILURES]
    if not failures or last.failure is None or failures[-1].failure != last.failure:
        return None
    return None if _is_newer(last.checkpoint, failures[-1].checkpoint) else failures[-1]


def _is_newer(step: int | None, than: int | None) -> bool:
    return step is not None and (than is None or step > than)


def _after_same_failure(
    last: Past, before: Past, policy: Retry, place: Place
) -> Decision:
    if place.on_slurm and last.host and last.host == before.host:
        reason = f"{last.failure} twice on {last.host}: excluding the node"
        return _go_without((last.host,), reason, policy, place)
    hosts = dict.fromkeys(host for host in (before.host, last.host) if host)
    where = f" on {' and '.join(hosts)}" if hosts else ""
    reason = (
        f"{last.failure} twice{where} and no newer checkpoint between: it would fail "
        "for ever"
    )
    return Decision(Action.STOP, reason, _code_of(last))


def _code_of(last: Past) -> int:
    """Let who submitted tell by the code that checkpoints, not the code, failed."""
    return CheckpointError.exit_code if _is(last, CheckpointError) else EXIT_BUG


def _is(past: Past, kind: type[Exception]) -> bool:
    return (past.failure or "").startswith(f"{kind.__name__} ")


def _count_blame(past: Sequence[Past]) -> int:
    blamed = Counter(attempt.host for attempt in past if attempt.cause in FAILURES)
    return blamed[past[-1].host]


def _after_node_failure(past: Sequence[Past], policy: Retry, place: Place) -> Decision:
    """Go on without the nodes that are lost, here or after a requeue.

    Where none is known to be lost, srun could not start the ranks: here it would only
    wait once more.
    """
    lost = past[-1].lost
    back = _leave_and_return(past, policy.node_failures, "retry.node_failures", place)
    if back.action is not Action.REQUEUE:
        return back
    names = f" of {', '.join(lost)}" if lost else ""
    reason = f"node failure{names}, time {_count(past)}"
    return _go_without(lost, reason, policy, place)


def _go_without(
    nodes: tuple[str, ...], reason: str, policy: Retry, place: Place
) -> Decision:
    """Go on in the allocation if enough nodes are left, or fewer will do; else leave.

    A run that goes on with fewer ranks grows again with the next requeue: Slurm then
    gives the job as many nodes as it asked for (measured on 22.05).
    """
    left = place.count_without(nodes) if nodes else 0
    if left >= place.wanted:
        reason = f"{reason}, going on with the nodes left"
    elif left and policy.shrink:
        reason = f"{reason}, going on with {left} of {place.wanted} nodes"
    else:
        return Decision(Action.REQUEUE, reason, EXIT_STOPPED, nodes)
    return Decision(Action.RESTART, reason, EXIT_STOPPED, nodes)


def _after_timeout(past: Sequence[Past], policy: Retry, place: Place) -> Decision:
    return _leave_and_return(past, policy.timeouts, "retry.timeouts", place)


def _after_preemption(past: Sequence[Past], policy: Retry, place: Place) -> Decision:
    return _leave_and_return(past, policy.preemptions, "retry.preemptions", place)


def _after_signal(past: Sequence[Past], policy: Retry, place: Place) -> Decision:
    """Nobody claims the signal, and on Slurm the allocation is still ours."""
    back = _leave_and_return(past, policy.preemptions, "retry.preemptions", place)
    if back.action is Action.REQUEUE:
        return Decision(Action.RESTART, "a signal, but the job goes on", EXIT_STOPPED)
    return back


def _leave_and_return(
    past: Sequence[Past], budget: int | None, key: str, place: Place
) -> Decision:
    cause, times = past[-1].cause, _count(past)
    if budget is not None and times > budget:
        reason = f"{cause.value}, time {times}, and {key} allows {budget}"
        return Decision(Action.STOP, reason, EXIT_STOPPED)
    if not place.on_slurm:
        reason = f"{cause.value}; start it again in its directory to go on"
        return Decision(Action.STOP, reason, EXIT_STOPPED)
    return Decision(Action.REQUEUE, f"{cause.value}, time {times}", EXIT_STOPPED)


def _count(past: Sequence[Past]) -> int:
    return sum(attempt.cause is past[-1].cause for attempt in past)


_FINAL = {
    Cause.COMPLETED: Decision(Action.FINISH, "the last step is done and saved", 0),
    Cause.CANCELLED: Decision(Action.STOP, "the job was cancelled", EXIT_STOPPED),
    Cause.REQUEUED: Decision(
        Action.STOP, "the job was requeued; it goes on when it starts", EXIT_STOPPED
    ),
    Cause.INTERRUPTED: Decision(Action.STOP, "asked to stop", EXIT_STOPPED),
    Cause.SUSPENDED: Decision(
        Action.RESTART, "the job was suspended and goes on", EXIT_STOPPED
    ),
    Cause.OUT_OF_MEMORY: Decision(
        Action.STOP,
        "out of memory before the first step; give it more (slurm.mem), or make "
        "train.global_batch_size smaller",
        EXIT_BUG,
    ),
    Cause.WRONG_JOB: Decision(
        Action.STOP,
        "every rank failed alike before the first step; starting again cannot help",
        UsageError.exit_code,
    ),
}
_COUNTED: dict[Cause, Callable[[Sequence[Past], Retry, Place], Decision]] = {
    Cause.CRASH: _after_failure,
    Cause.STALLED: _after_failure,
    Cause.NODE_FAILURE: _after_node_failure,
    Cause.TIME_LIMIT: _after_timeout,
    Cause.PREEMPTED: _after_preemption,
    Cause.SIGNALLED: _after_signal,
}
