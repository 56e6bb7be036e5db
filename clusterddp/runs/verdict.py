"""Verdicts: what each rank says of its own end, and what an attempt's end means.

srun's exit code cannot classify an attempt (one rank 3 and one 75 give 75; one
rank killed gives 143: measured on Slurm 22.05), so the ranks write files.
"""

import enum
import re
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from clusterddp.files import read_json, write_json
from clusterddp.runs.directory import AttemptDirectory

__all__ = [
    "Cause",
    "Ending",
    "Failure",
    "Past",
    "Summary",
    "Verdict",
    "classify",
    "read_summary",
    "read_verdicts",
    "write_summary",
    "write_verdict",
]


class Cause(enum.Enum):
    """Why an attempt ended; each has one row in the decision table."""

    COMPLETED = "completed"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"
    SIGNALLED = "signalled"
    SUSPENDED = "suspended"
    NODE_FAILURE = "node failure"
    STALLED = "stalled"
    CRASH = "crash"
    OUT_OF_MEMORY = "out of memory"
    CANCELLED = "cancelled"
    REQUEUED = "requeued"
    INTERRUPTED = "interrupted"
    WRONG_JOB = "wrong job"


@dataclass(frozen=True)
class Failure:
    """What an exception was: its type, its words, and where it was raised."""

    type: str
    message: str
    where: str
    traceback: str


@dataclass(frozen=True)
class Verdict:
    """What one rank says of its own end.

    Attributes:
        rank: the rank that speaks.
        cause: `completed`, `stopped`, `crash`, `out of memory` or `wrong job`.
        code: the exit code it leaves with.
        step: the last finished step, None if there was none.
        host: where it ran.
        time: seconds since the epoch.
        signal: the signal that asked it to stop, or that killed it.
        failure: the first exception, if one ended it.
    """

    rank: int
    cause: str
    code: int
    step: int | None
    host: str
    time: float
    signal: str | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Summary:
    """What rank 0 says of the attempt: `completed` or `stopped`, saved at a step."""

    cause: str
    step: int
    total_steps: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Past:
    """How one attempt ended, as the ledger remembers it.

    Attributes:
        cause: why it ended.
        checkpoint: the newest good checkpoint at its end, by step; None: none.
        failure: what names the failure: exception type and frame, or signal; None
            where nobody could tell.
        host: the node of the rank that failed.
        lost: nodes that no longer answered.
    """

    cause: Cause
    checkpoint: int | None = None
    failure: str | None = None
    host: str | None = None
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ending:
    """All that is known when the ranks of an attempt are gone.

    Attributes:
        code: the exit code of srun, of the agent or of the one process; None: not
            known, Slurm took the job away.
        verdicts: what the ranks wrote, the first to end first.
        summary: what rank 0 wrote, if it did.
        is_cancelled: somebody cancelled the job.
        is_requeued: the job waits again already; somebody requeued it.
        is_preempted: Slurm shows a preempt time.
        seconds_left: until the job's time limit, None if there is none.
        is_interrupted: the supervisor itself was asked to stop (Ctrl-C, TERM).
        has_progress: some step of the run was finished, in whatever attempt.
        is_stalled: no step was finished for too long, and the ranks were ended.
        was_suspended: this process itself stood still shortly before the end.
        lost_nodes: nodes of the job that no longer answer.
        never_started: srun could not start the ranks in time.
        silent: the rank (and its node) that could not say where it hung.
        said: the last words of srun or of the agent.
    """

    code: int | None
    verdicts: tuple[Verdict, ...] = ()
    summary: Summary | None = None
    is_cancelled: bool = False
    is_requeued: bool = False
    is_preempted: bool = False
    seconds_left: float | None = None
    is_interrupted: bool = False
    has_progress: bool = False
    is_stalled: bool = False
    was_suspended: bool = False
    lost_nodes: tuple[str, ...] = ()
    never_started: bool = False
    silent: tuple[int, str] | None = None
    said: str = ""


def classify(ending: Ending, signal_delay_s: float) -> Cause:
    """Say why an attempt ended; pure.

    A finished run is finished whatever came at the same time; a cancelled one is
    never anything else, so that it cannot be brought back from the dead.
    """
    for cause, holds in (
        (Cause.COMPLETED, _is(ending.summary, "completed")),
        (Cause.CANCELLED, ending.is_cancelled),
        (Cause.INTERRUPTED, ending.is_interrupted),
        (Cause.NODE_FAILURE, _is_node_failure(ending)),
        (Cause.REQUEUED, ending.is_requeued),
        (Cause.PREEMPTED, ending.is_preempted),
        (Cause.TIME_LIMIT, _is_at_the_limit(ending, signal_delay_s)),
        (Cause.STALLED, ending.is_stalled),
        (Cause.SUSPENDED, ending.was_suspended),
        (Cause.SIGNALLED, _is(ending.summary, "stopped")),
        (Cause.OUT_OF_MEMORY, _is_out_of_memory(ending) and not ending.has_progress),
        (Cause.WRONG_JOB, _is_wrong_job(ending)),
    ):
        if holds:
            return cause
    return Cause.CRASH


def _is(summary: Summary | None, cause: str) -> bool:
    return summary is not None and summary.cause == cause


def _is_at_the_limit(ending: Ending, signal_delay_s: float) -> bool:
    # Slurm sends the signal up to 60 s early (sbatch(1), --signal).
    left = ending.seconds_left
    if left is None or left > signal_delay_s + 60.0:
        return False
    # A rank that was just starting had no handler yet, and died of the signal.
    died_of_it = ending.code in (128 + signal.SIGUSR1, 128 + signal.SIGUSR2)
    return left <= 0 or died_of_it or _is(ending.summary, "stopped")


def _is_node_failure(ending: Ending) -> bool:
    """A node that does not answer now is the cause, whatever its peers then said."""
    return bool(ending.lost_nodes) or ending.never_started


# srun and slurmstepd of 22.05: `task 0: Out Of Memory`, `Detected 1 oom_kill event`;
# torch: `DefaultCPUAllocator: can't allocate memory`, `CUDA out of memory`.
_MEMORY_WORDS = re.compile(
    r"out of memory|oom[-_]kill|can't allocate memory", re.IGNORECASE
)


def _is_out_of_memory(ending: Ending) -> bool:
    failures = [one.failure for one in ending.verdicts if one.failure is not None]
    told = (f"{failure.type} {failure.message}" for failure in failures)
    words = [ending.said, *told]
    types = {failure.type for failure in failures}
    is_type = bool(types & {"MemoryError", "OutOfMemoryError"})
    return is_type or any(_MEMORY_WORDS.search(text) for text in words)


def _is_wrong_job(ending: Ending) -> bool:
    all_say_so = all(verdict.cause == "wrong job" for verdict in ending.verdicts)
    return bool(ending.verdicts) and all_say_so and not ending.has_progress


def write_verdict(attempt: AttemptDirectory, verdict: Verdict) -> None:
    """Write what a rank says of its own end; durable when this returns."""
    write_json(attempt.verdict(verdict.rank), asdict(verdict))


def write_summary(attempt: AttemptDirectory, summary: Summary) -> None:
    """Write what rank 0 says of the attempt; durable when this returns."""
    write_json(attempt.summary, asdict(summary))


def read_verdicts(attempt: AttemptDirectory) -> tuple[Verdict, ...]:
    """Give what the ranks wrote, the first to end first."""
    paths = attempt.verdicts.glob("rank-*.json")
    read = (_verdict(read_json(path)) for path in paths)
    found = [verdict for verdict in read if verdict is not None]
    return tuple(sorted(found, key=lambda verdict: (verdict.time, verdict.rank)))


def read_summary(attempt: AttemptDirectory) -> Summary | None:
    """Give what rank 0 wrote of the attempt, None if it did not come to that."""
    values = read_json(attempt.summary)
    return None if values is None else Summary(**values)  # type: ignore[arg-type]


def _verdict(values: dict[str, object] | None) -> Verdict | None:
    if values is None:
        return None
    failure = values.pop("failure", None)
    parsed = Failure(**failure) if isinstance(failure, dict) else None
    return Verdict(**values, failure=parsed)  # type: ignore[arg-type]
