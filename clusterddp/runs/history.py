"""What a run has been through, as its ledger and its attempts tell it."""

import re

from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import Event, read_events
from clusterddp.runs.verdict import Cause, Past, read_summary

__all__ = [
    "is_cancel_requested",
    "is_finished",
    "last_job",
    "last_ranks",
    "newest_checkpoint",
    "read_exit_code",
    "read_past",
]

_CHECKPOINT = re.compile(r"step-(\d{8,})")


def is_finished(run: RunDirectory) -> bool:
    """Say whether the last step is done and saved, by rank 0's own word."""
    summaries = (read_summary(attempt) for attempt in reversed(run.list_attempts()))
    return any(found is not None and found.cause == "completed" for found in summaries)


def is_cancel_requested(run: RunDirectory, job: str) -> bool:
    """Say whether `clusterddp.cancel` was told to end this job of the run.

    A request names its job: it says nothing about a later one.
    """
    wanted = (event for event in read_events(run) if event.kind == "cancel_requested")
    return any(event.values.get("job") == job for event in wanted)


def last_job(run: RunDirectory) -> str | None:
    """Give the id of the job that was sent for a run last; None: it was local."""
    sent = [event for event in read_events(run) if event.kind == "submitted"]
    job = sent[-1].values.get("job") if sent else None
    return None if job is None else str(job)


def newest_checkpoint(run: RunDirectory) -> int | None:
    """Give the step of the newest published checkpoint; None: there is none."""
    try:
        names = [path.name for path in run.checkpoints.iterdir()]
    except OSError:
        return None
    steps = [int(match[1]) for match in map(_CHECKPOINT.fullmatch, names) if match]
    return max(steps, default=None)


def read_past(run: RunDirectory) -> list[Past]:
    """Give how the attempts of a run ended, oldest first.

    An attempt whose supervisor was killed has no end in the ledger and is left
    out: nobody knows its cause, and it costs no budget.
    """
    ended = [event for event in read_events(run) if event.kind == "attempt_ended"]
    return [past for past in map(_past, ended) if past is not None]


def last_ranks(run: RunDirectory) -> tuple[int, float] | None:
    """Give pid and creation time of the process that last held the ranks."""
    for event in reversed(read_events(run)):
        pid, created = event.values.get("pid"), event.values.get("created")
        if event.kind == "ranks_started" and isinstance(pid, int):
            return pid, float(str(created))
    return None


def _past(event: Event) -> Past | None:
    try:
        cause = Cause(event.values.get("cause"))
    except ValueError:  # a cause that a newer version knows
        return None
    values = event.values
    saved, lost = values.get("checkpoint"), values.get("lost")
    return Past(
        cause,
        saved if isinstance(saved, int) else None,
        _text(values.get("failure")),
        _text(values.get("host")),
        tuple(map(str, lost)) if isinstance(lost, list) else (),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def read_exit_code(run: RunDirectory) -> int | None:
    """Give the code that the run ended with; None while it goes on.

    Only the last word counts: a stopped run that was started again goes on.
    """
    last: int | None = None
    for event in read_events(run):
        code = event.values.get("code")
        if event.kind in ("finished", "stopped", "needs_resubmit"):
            last = code if isinstance(code, int) else None
        elif event.kind in ("attempt_started", "submitted"):
            last = None
    return last
