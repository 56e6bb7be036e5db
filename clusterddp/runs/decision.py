"""What to do when an attempt has ended: one table, one pure function."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterddp.config.schema import Retry
from clusterddp.errors import EXIT_BUG, EXIT_STOPPED, UsageError
from clusterddp.runs.verdict import Cause, Past

__all__ = ["Action", "Decision", "decide"]


class Action(enum.Enum):
    """What the supervisor does next."""

    FINISH = "finish"
    RESTART = "restart"
    REQUEUE = "requeue"
    STOP = "stop"


@dataclass(frozen=True)
class Decision:
    """What to do, why, and the code to leave with when that ends the supervisor."""

    action: Action
    reason: str
    exit_code: int


def decide(past: Sequence[Past], policy: Retry, *, on_slurm: bool) -> Decision:
    """Decide what follows the last attempt; reads nothing and does nothing.

    Args:
        past: all attempts of the run, oldest first; the last one has just ended.
        policy: the job file's budgets.
        on_slurm: whether there is a job that can be requeued.
    """
    cause = past[-1].cause
    if cause in _FINAL:
        return _FINAL[cause]
    return _COUNTED[cause](past, policy, on_slurm)


def _after_crash(past: Sequence[Past], policy: Retry, on_slurm: bool) -> Decision:  # noqa: ARG001, FBT001
    crashes = _count(past)
    if crashes > policy.crashes:
        reason = f"crash {crashes}, and retry.crashes allows {policy.crashes}"
        return Decision(Action.STOP, reason, EXIT_BUG)
    reason = f"crash {crashes} of {policy.crashes} that retry.crashes allows"
    return Decision(Action.RESTART, reason, EXIT_BUG)


def _after_timeout(past: Sequence[Past], policy: Retry, on_slurm: bool) -> Decision:  # noqa: FBT001
    return _leave_and_return(past, policy.timeouts, "retry.timeouts", on_slurm)


def _after_preemption(past: Sequence[Past], policy: Retry, on_slurm: bool) -> Decision:  # noqa: FBT001
    return _leave_and_return(past, policy.preemptions, "retry.preemptions", on_slurm)


def _after_signal(past: Sequence[Past], policy: Retry, on_slurm: bool) -> Decision:  # noqa: FBT001
    """Nobody claims the signal, and on Slurm the allocation is still ours."""
    back = _leave_and_return(past, policy.preemptions, "retry.preemptions", on_slurm)
    if back.action is Action.REQUEUE:
        return Decision(Action.RESTART, "a signal, but the job goes on", EXIT_STOPPED)
    return back


def _leave_and_return(
    past: Sequence[Past],
    budget: int | None,
    key: str,
    on_slurm: bool,  # noqa: FBT001
) -> Decision:
    cause, times = past[-1].cause, _count(past)
    if budget is not None and times > budget:
        reason = f"{cause.value}, time {times}, and {key} allows {budget}"
        return Decision(Action.STOP, reason, EXIT_STOPPED)
    if not on_slurm:
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
    Cause.WRONG_JOB: Decision(
        Action.STOP,
        "every rank failed alike before the first step; starting again cannot help",
        UsageError.exit_code,
    ),
}
_COUNTED: dict[Cause, Callable[[Sequence[Past], Retry, bool], Decision]] = {
    Cause.CRASH: _after_crash,
    Cause.TIME_LIMIT: _after_timeout,
    Cause.PREEMPTED: _after_preemption,
    Cause.SIGNALLED: _after_signal,
}
