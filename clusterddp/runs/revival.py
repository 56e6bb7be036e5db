"""Whether a run that is not running should be brought back; pure, from what is known.

What is not known is never guessed: a job that Slurm does not speak of is neither
finished nor dead.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from clusterddp.runs.facts import Facts
from clusterddp.runs.verdict import Cause
from clusterddp.slurm.hold import is_held, was_not_started
from clusterddp.slurm.jobs import Phase
from clusterddp.slurm.listing import ListedJob

__all__ = ["STATES", "Judgement", "Known", "Wish", "judge"]

STATES = ("preempted", "node_fail", "timeout", "failed")
"""The kinds of death that `--state` names; `failed`: nobody could say why."""

_BY_STATE = {
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
}
_BY_CAUSE = {
    Cause.PREEMPTED.value: "preempted",
    Cause.NODE_FAILURE.value: "node_fail",
    Cause.TIME_LIMIT.value: "timeout",
}


@dataclass(frozen=True)
class Known:
    """What is known of a run.

    Attributes:
        facts: its directory.
        queued: what squeue says of its job; None: nothing.
        counted: what sacct says of its job; None: nothing.
        answered: whether squeue answered at all.
        is_alive: for a local run, whether its supervisor lives; None: cannot tell.
        in_progress: whether somebody is just sending a job for it.
        claims: the number of the newest claim, from before all of this was looked at.
    """

    facts: Facts
    queued: ListedJob | None = None
    counted: ListedJob | None = None
    answered: bool = True
    is_alive: bool | None = False
    in_progress: bool = False
    claims: int = 0


@dataclass(frozen=True)
class Wish:
    """What the user wants: named runs come back for more reasons than all.

    Attributes:
        named: whether the run was named, not found by `--all`.
        force: whether even a cancelled one shall come back.
        states: kinds of death that shall be brought back.
    """

    named: bool = False
    force: bool = False
    states: Collection[str] = STATES


@dataclass(frozen=True)
class Judgement:
    """What to do with a run, what it is in, and why; `release` lifts a hold."""

    action: Literal["send", "run here", "release", "leave"]
    state: str
    why: str


def judge(known: Known, wish: Wish) -> Judgement:
    """Say whether a run should be brought back; reads nothing and does nothing."""
    facts = known.facts
    if _is_finished(facts):
        return Judgement("leave", "finished", "its last step is done and saved")
    if known.in_progress:
        return Judgement("leave", "unknown", "somebody sends a job for it right now")
    if facts.job_id is None:
        return _judge_local(known, wish)
    if not known.answered:
        return Judgement("leave", "unknown", "Slurm does not answer; try again")
    if known.queued is not None and known.queued.phase is not Phase.OVER:
        return _judge_active(known.queued)
    return _judge_dead(known, wish)


def _is_finished(facts: Facts) -> bool:
    is_complete = facts.summary is not None and facts.summary.cause == "completed"
    last = facts.last("finished", "submitted", "attempt_started")
    return is_complete or (last is not None and last.kind == "finished")


def _judge_active(job: ListedJob) -> Judgement:
    state = job.state.lower()
    if was_not_started(job.reason):
        why = f"a node could not start job {job.id}, so Slurm held it"
        return Judgement("release", state, why)
    if is_held(job.state, job.reason):
        return Judgement("release", state, f"job {job.id} waits out Slurm's hold")
    reason = f" ({job.reason})" if job.reason else ""
    return Judgement("leave", state, f"job {job.id} is {job.state}{reason}")


def _judge_local(known: Known, wish: Wish) -> Judgement:
    if known.is_alive is None:
        host = (known.facts.owner or {}).get("host")
        return Judgement("leave", "unknown", f"a local run of {host}; ask there")
    if known.is_alive:
        return Judgement("leave", "running", "its supervisor is alive")
    if not wish.named:
        return Judgement("leave", "stopped", "a local run; name it to go on here")
    return Judgement("run here", "stopped", "a local run goes on in the foreground")


def _judge_dead(known: Known, wish: Wish) -> Judgement:
    facts, job = known.facts, known.queued or known.counted
    if _was_cancelled(facts, job):
        if wish.named and wish.force:
            return Judgement("send", "cancelled", "brought back by --force")
        return Judgement("leave", "cancelled", "somebody cancelled it; see --force")
    stopped = facts.last("stopped", "needs_resubmit", "submitted", "attempt_started")
    if stopped is not None and stopped.kind == "stopped":
        return _judge_stopped(str(stopped.values.get("reason")), wish)
    if job is None and facts.last("attempt_started") is None and not wish.named:
        why = f"Slurm does not know job {facts.job_id} any more; name the run"
        return Judgement("leave", "unknown", why)
    state, why = _name_death(facts, job)
    if not wish.named and state not in wish.states:
        return Judgement("leave", state, f"--state leaves {state} out")
    return Judgement("send", state, why)


def _judge_stopped(reason: str, wish: Wish) -> Judgement:
    """A run that its supervisor stopped for good comes back when it is named."""
    if wish.named:
        return Judgement("send", "stopped", f"named; it was stopped: {reason}")
    return Judgement("leave", "stopped", f"{reason}; name it to go on")


def _was_cancelled(facts: Facts, job: ListedJob | None) -> bool:
    if job is not None and job.state.startswith("CANCELLED"):
        return True
    wanted = facts.last("cancel_requested")
    if wanted is not None and str(wanted.values.get("job")) == facts.job_id:
        return True
    ended = facts.last("stopped", "attempt_ended", "submitted", "attempt_started")
    if ended is not None and ended.kind == "stopped" and "cause" not in ended.values:
        ended = facts.last("attempt_ended", "submitted", "attempt_started")
    return ended is not None and ended.values.get("cause") == Cause.CANCELLED.value


def _name_death(facts: Facts, job: ListedJob | None) -> tuple[str, str]:
    """Say what a dead run died of: the supervisor's word first, then Slurm's."""
    ended = facts.last("attempt_ended", "submitted", "attempt_started")
    cause = str(ended.values.get("cause")) if ended else ""
    state = (job.state if job else "").partition(" ")[0].rstrip("+")
    name = _BY_CAUSE.get(cause) or _BY_STATE.get(state) or "failed"
    needs = facts.last("needs_resubmit")
    if needs is not None and ended is not None and needs.time >= ended.time:
        return name, f"needs resubmit: {needs.values.get('reason')}"
    if job is None:
        return name, f"Slurm does not know job {facts.job_id} any more"
    return name, f"job {facts.job_id} ended as {state}"
