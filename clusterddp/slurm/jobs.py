"""Job states: asking Slurm about one job and reading the answer."""

import enum
import re
from dataclasses import dataclass

from clusterddp.errors import SlurmError
from clusterddp.slurm.hostlist import expand_hostlist
from clusterddp.slurm.programs import Runner, run_program

__all__ = ["JobInfo", "Phase", "parse_job", "phase_of", "query_job"]


class Phase(enum.Enum):
    """What a Slurm job state means for a run; unknown is a value of its own."""

    WAITING = "waiting"
    RUNNING = "running"
    OVER = "over"
    UNKNOWN = "unknown"


# squeue(1), "JOB STATE CODES". A state that a newer Slurm invents is unknown, and
# unknown is never taken for finished.
_PHASES = {
    **dict.fromkeys(
        ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"),
        Phase.WAITING,
    ),
    **dict.fromkeys(
        (
            *("CONFIGURING", "RUNNING", "RESIZING", "SIGNALING", "STAGE_OUT"),
            *("STOPPED", "SUSPENDED", "COMPLETING"),
        ),
        Phase.RUNNING,
    ),
    **dict.fromkeys(
        (
            *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
            *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
        ),
        Phase.OVER,
    ),
}


def phase_of(state: str) -> Phase:
    """Say what a state means; takes `CANCELLED by 0` and `CANCELLED+` too."""
    word = re.match(r"[A-Z_]*", state)
    return _PHASES.get(word[0] if word else "", Phase.UNKNOWN)


@dataclass(frozen=True)
class JobInfo:
    """What Slurm says of a job right now.

    Attributes:
        state: Slurm's own word.
        reason: why it waits, or why it ended.
        preempt_time: when its preemption began; None when it is not preempted.
        end_time: when its time limit ends it, seconds since the epoch.
        restarts: how often it has been requeued.
        may_requeue: whether Slurm would take a requeue.
        nodes: its node list, as Slurm writes it.
        excluded: nodes that it must not get.
    """

    state: str
    reason: str = ""
    preempt_time: float | None = None
    end_time: float | None = None
    restarts: int = 0
    may_requeue: bool = True
    nodes: str = ""
    excluded: tuple[str, ...] = ()

    @property
    def phase(self) -> Phase:
        """What the state means."""
        return phase_of(self.state)


def parse_job(text: str) -> JobInfo:
    """Read one record of `scontrol --oneliner show job`.

    Raises:
        SlurmError: the text has no JobState.
    """
    state = _field(text, "JobState")
    if not state:
        message = f"scontrol show job: no JobState in {text[:200]!r}; expected a record"
        raise SlurmError(message)
    return JobInfo(
        state=state,
        reason=_field(text, "Reason"),
        preempt_time=_time(_field(text, "PreemptTime")),
        end_time=_time(_field(text, "EndTime")),
        restarts=int(_field(text, "Restarts") or 0),
        may_requeue=_field(text, "Requeue") != "0",
        nodes=_field(text, "NodeList"),
        excluded=_nodes(_field(text, "ExcNodeList")),
    )


def query_job(job_id: str, run: Runner = run_program) -> JobInfo | None:
    """Ask the controller about one job, and accounting when it has forgotten it.

    Args:
        job_id: `123`, or `120_3` for an array element.
        run: what runs a program.

    Returns:
        What is known; None when neither knows the job.

    Raises:
        SlurmError: a program is missing or does not answer.
    """
    shown = run(["scontrol", "--oneliner", "show", "job", job_id])
    if shown.code == 0 and "JobState=" in shown.out:
        return parse_job(shown.out)
    if "Invalid job id" not in shown.err:
        message = f"scontrol show job {job_id}: {shown.err.strip() or shown.out[:200]}"
        raise SlurmError(message)
    fields = "--format=State,ExitCode"
    listed = run(["sacct", "-X", "-n", "-P", fields, "--jobs", job_id])
    rows = [line for line in listed.out.splitlines() if "|" in line]
    return JobInfo(state=rows[-1].split("|")[0]) if rows else None


def _field(text: str, key: str) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", text)
    return match[1] if match else ""


def _nodes(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else tuple(expand_hostlist(text))


def _time(text: str) -> float | None:
    # "None", "N/A" and "Unknown" are Slurm's words for no time.
    return float(text) if text.isdigit() and int(text) > 0 else None
