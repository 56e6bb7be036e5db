"""What an explanation is made from and rests on: the case, and its evidence; pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterddp.runs.evidence import AttemptEvidence
from clusterddp.runs.facts import Facts
from clusterddp.runs.status import Status
from clusterddp.slurm.listing import ListedJob

__all__ = ["Case", "list_evidence", "resume_command"]

_TRACEBACK_LINES = 30


@dataclass(frozen=True)
class Case:
    """All that an explanation is made from.

    Attributes:
        facts: what the run's directory says.
        status: where it stands.
        job: what Slurm says of its job.
        before: how the start of a job that waits again ended.
        last: what the last attempt with an end left; None if none has.
        newest: what the newest attempt left, where that is another one.
        batch_log: the last lines of the batch task's own log.
    """

    facts: Facts
    status: Status
    job: ListedJob | None = None
    before: ListedJob | None = None
    last: AttemptEvidence | None = None
    newest: AttemptEvidence | None = None
    batch_log: tuple[str, ...] = ()


def resume_command(status: Status) -> str:
    """Give the command that goes on with a run."""
    verb = "supervise" if status.job_id is None else "resubmit"
    return f"python -m clusterddp.{verb} {status.path}"


def list_evidence(case: Case) -> Iterator[tuple[str, str]]:
    """Give what an explanation rests on, by label; pure."""
    status = case.status
    yield "state", status.state + ("" if status.detail == "-" else f": {status.detail}")
    if case.job is not None:
        yield "job", _job(case.job)
    if case.before is not None:
        yield "before", _job(case.before)
    if history := _history(case.facts):
        yield "attempts", history
    one = case.last if status.state == "running" else case.newest or case.last
    if one is not None:
        yield from _attempt_evidence(one)
    if case.facts.attempt is None and case.batch_log:
        yield "batch log", "\n".join(case.batch_log)
    if status.checkpoint_step is not None:
        name = f"step-{status.checkpoint_step:08d}"
        yield "checkpoint", f"{case.facts.run.checkpoints / name}"
    yield "run", status.path
    if status.state in ("stopped", "failed", "died"):
        yield "go on", resume_command(status)


def _job(job: ListedJob) -> str:
    parts = [f"{job.id}: {job.state}", job.reason and f"reason {job.reason}"]
    parts += [f"exit code {job.exit_code}" if job.exit_code else ""]
    parts += [f"on {job.nodes}" if job.nodes else ""]
    return ", ".join(filter(None, parts))


def _history(facts: Facts) -> str:
    """Give all attempts in short: `0 crash -> restart, 1 completed -> finished`."""
    parts: list[str] = []
    for event in facts.events:
        if event.kind == "attempt_ended":
            parts.append(f"{event.values.get('attempt')} {event.values.get('cause')}")
        elif parts and "reason" in event.values and "->" not in parts[-1]:
            parts[-1] += f" -> {event.kind.replace('_', ' ')}"
    return ", ".join(parts)


def _attempt_evidence(one: AttemptEvidence) -> Iterator[tuple[str, str]]:
    place = one.attempt.path / "stacks"
    is_silent = bool(one.blame) and not one.traceback
    log = "" if one.log is None else str(one.log)
    found = (
        ("first", one.blame),
        ("traceback", _tail(one.traceback.splitlines())),
        ("signals", _signals(one)),
        ("stacks", f"{place}: {', '.join(one.stacks)}" if one.stacks else ""),
        ("stack", "\n".join(one.stack) if one.cause == "stalled" else ""),
        ("launcher", "\n".join(one.said)),
        ("last lines", _tail(one.output) if is_silent else ""),
        ("log", log),
        ("supervisor", str(one.attempt.log)),
    )
    yield from ((label, text) for label, text in found if text)


def _signals(one: AttemptEvidence) -> str:
    told = (f"rank {v.rank} {v.signal}" for v in one.verdicts if v.signal)
    return ", ".join(told)


def _tail(lines: Sequence[str]) -> str:
    return "\n".join(lines[-_TRACEBACK_LINES:])
