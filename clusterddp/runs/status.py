"""The state of a run: what ledger, rank 0, squeue and sacct say, put together; pure.

Unknown is a state of its own: a job that nobody knows any more is never taken for
finished, and never for dead.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from clusterddp.errors import EXIT_STOPPED
from clusterddp.runs.facts import Facts
from clusterddp.runs.measures import measure_ettr
from clusterddp.slurm.jobs import Phase
from clusterddp.slurm.listing import ListedJob

__all__ = [
    "STATES",
    "Status",
    "count_states",
    "derive_status",
    "exit_code",
    "is_over",
]

STATES = ("running", "pending", "stopped", "failed", "died", "finished", "unknown")
"""All words for a state; `died` is: over, and its supervisor could not say why."""


_LAST_WORDS = ("finished", "stopped")


@dataclass(frozen=True)
class Status:
    """Where a run stands; None is "not known" everywhere.

    Attributes:
        name: of the job file.
        id: of the run.
        path: the run directory.
        state: one of `STATES`.
        detail: the phase of a running one, why it waits, or what ended it.
        job_id: the Slurm job that has or had it last; None: local.
        nodes: how many the job file asks for.
        ranks: likewise.
        attempt: the number of the newest start of the ranks.
        step: finished steps.
        total_steps: of the whole training.
        loss: the last one logged.
        samples_per_s: of all ranks, lately.
        ettr: time in steps that stayed / all time since the submission.
        checkpoint_step: of the newest checkpoint.
        checkpoint_age_s: since it was published.
        left_s: estimated training time left.
        limit_s: until the job's time limit.
        starts_in_s: until Slurm expects to start a waiting job.
        submitted: when, in seconds since the epoch.
        values: of a run of a sweep, what is special about it, by dotted key.
        evaluated: the last value of each metric of the evaluation, by name.
    """

    name: str
    id: str
    path: str
    state: str
    detail: str
    job_id: str | None = None
    nodes: int | None = None
    ranks: int | None = None
    attempt: int | None = None
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    ettr: float | None = None
    checkpoint_step: int | None = None
    checkpoint_age_s: float | None = None
    left_s: float | None = None
    limit_s: float | None = None
    starts_in_s: float | None = None
    submitted: float | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    evaluated: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Give it as a JSON object."""
        return asdict(self)


def exit_code(facts: Facts) -> int | None:
    """Give the code that the run ended with, by its ledger; None while it goes on."""
    word = facts.last(*_LAST_WORDS, "needs_resubmit", "attempt_started", "submitted")
    code = None if word is None else word.values.get("code")
    return code if isinstance(code, int) else None


def is_over(facts: Facts) -> bool:
    """Say whether the run has ended by its own word, so that nobody need be asked."""
    is_complete = facts.summary is not None and facts.summary.cause == "completed"
    return is_complete or exit_code(facts) == 0


def derive_status(
    facts: Facts,
    job: ListedJob | None,
    now: float,
    *,
    answered: bool = True,
    alive: bool | None = None,
) -> Status:
    """Say where a run stands; pure.

    Args:
        facts: what its directory says.
        job: what Slurm says of its job; None: nothing.
        now: the time.
        answered: whether Slurm answered at all.
        alive: for a local run, whether its supervisor lives; None: on another host.
    """
    state, detail = _judge(facts, job, answered=answered, alive=alive)
    progress = facts.progress or {}
    running = state == "running"
    waiting = state == "pending" and job is not None
    return Status(
        name=facts.name,
        id=facts.run.id,
        path=str(facts.run.path),
        state=state,
        detail=detail,
        job_id=facts.job_id,
        nodes=facts.shape.nodes,
        ranks=facts.shape.ranks,
        attempt=facts.attempt,
        step=_whole(progress.get("step")),
        total_steps=_whole(progress.get("total_steps")),
        loss=_number(progress.get("loss")) or _last_value(facts, "loss"),
        samples_per_s=_last_value(facts, "samples_per_s"),
        ettr=measure_ettr(facts, now),
        checkpoint_step=facts.saved[0] if facts.saved else None,
        checkpoint_age_s=max(0.0, now - facts.saved[1]) if facts.saved else None,
        left_s=_seconds_left(facts) if running else None,
        limit_s=_until(job.end, now) if running and job is not None else None,
        starts_in_s=_until(job.start, now) if waiting and job is not None else None,
        submitted=facts.began,
        values=facts.values,
        evaluated=_evaluated(facts),
    )


def _judge(
    facts: Facts, job: ListedJob | None, *, answered: bool, alive: bool | None
) -> tuple[str, str]:
    if is_over(facts):
        return "finished", "-"
    code = exit_code(facts)
    if job is not None and _is_back(facts, job):
        return _judge_job(facts, job)
    if code is not None:
        return _judge_end(facts, code)
    if job is not None:
        return _judge_job(facts, job)
    if facts.job_id is not None:
        forgot = f"Slurm does not know job {facts.job_id} any more"
        return "unknown", forgot if answered else "Slurm does not answer"
    return _judge_local(facts, alive=alive)


def _judge_end(facts: Facts, code: int) -> tuple[str, str]:
    """Say how the run ended, by its supervisor's last word."""
    ended = facts.last("attempt_ended")
    cause = str(ended.values.get("cause")) if ended else "before the first attempt"
    word = facts.last(*_LAST_WORDS, "needs_resubmit")
    if word is not None and word.kind == "needs_resubmit":
        return "stopped", f"{cause}; needs resubmit"
    return ("stopped" if code == EXIT_STOPPED else "failed"), cause


def _is_back(facts: Facts, job: ListedJob) -> bool:
    """Say whether somebody requeued the job after its supervisor's last word."""
    ended = facts.last("attempt_ended")
    is_requeued = ended is not None and ended.values.get("cause") == "requeued"
    is_alive = is_requeued and job.phase is Phase.RUNNING
    return is_alive or job.phase is Phase.WAITING


def _judge_job(facts: Facts, job: ListedJob) -> tuple[str, str]:
    if job.phase is Phase.WAITING:
        return "pending", job.reason or job.state
    if job.phase is Phase.RUNNING:
        is_plain = job.state == "RUNNING"
        return "running", _phase(facts) if is_plain else job.state.lower()
    if job.phase is Phase.UNKNOWN:
        return "unknown", f"Slurm says {job.state}"
    return "died", f"job {job.state.partition(' ')[0]}"


def _judge_local(facts: Facts, *, alive: bool | None) -> tuple[str, str]:
    if facts.owner is None:
        is_local = facts.last("submitted") is not None
        if not is_local:
            return "unknown", "no word of a submission"
        return "died", "before the first attempt"
    if alive is None:
        return "unknown", f"on {facts.owner.get('host')}; ask there"
    return ("running", _phase(facts)) if alive else ("died", "its supervisor is gone")


def _phase(facts: Facts) -> str:
    """Say what the ranks do; what an earlier attempt wrote says nothing."""
    started = facts.last("attempt_started", "submitted")
    progress = facts.progress or {}
    told = _number(progress.get("time")) or 0.0
    is_old = started is not None and told < started.time
    is_known = isinstance(progress.get("phase"), str) and not is_old
    phase = str(progress["phase"]) if is_known else "start"
    return f"{phase}{_shrunk(facts)}"


def _shrunk(facts: Facts) -> str:
    """Say so when the newest attempt has fewer ranks than were asked for."""
    started = facts.last("attempt_started")
    found = None if started is None else started.values.get("shrunk")
    if not isinstance(found, dict):
        return ""
    return f" ({found.get('ranks')} of {found.get('of')} ranks)"


def _seconds_left(facts: Facts) -> float | None:
    progress = facts.progress or {}
    step, total = _whole(progress.get("step")), _whole(progress.get("total_steps"))
    rate = _last_value(facts, "samples_per_s")
    if step is None or total is None or not rate or not facts.shape.batch:
        return None
    return max(0, total - step) * facts.shape.batch / rate


def _last_value(facts: Facts, name: str) -> float | None:
    values = (_number(point.get(name)) for point in reversed(facts.points))
    return next((value for value in values if value is not None), None)


def _evaluated(facts: Facts) -> dict[str, float]:
    """Give the last finite value of each metric of the evaluation."""
    found: dict[str, float] = {}
    for point in facts.points:
        for name, value in point.items():
            if name.startswith("eval/") and _number(value) is not None:
                found[name.removeprefix("eval/")] = float(value)
    return found


def _until(moment: float | None, now: float) -> float | None:
    return None if moment is None else max(0.0, moment - now)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else None  # type: ignore[arg-type]


def count_states(found: Sequence[Status]) -> Mapping[str, int]:
    """Give how many runs are in which state, in the order of `STATES`."""
    counts = {state: sum(one.state == state for one in found) for state in STATES}
    return {state: count for state, count in counts.items() if count}
