"""What a run has been through, as its ledger and its attempts tell it."""

from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import Event, read_events
from clusterddp.runs.verdict import Cause, Past, read_summary

__all__ = ["is_finished", "last_ranks", "read_exit_code", "read_past"]


def is_finished(run: RunDirectory) -> bool:
    """Say whether the last step is done and saved, by rank 0's own word."""
    summaries = (read_summary(attempt) for attempt in reversed(run.list_attempts()))
    return any(found is not None and found.cause == "completed" for found in summaries)


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
    saved, failure = event.values.get("checkpoint"), event.values.get("failure")
    return Past(
        cause,
        saved if isinstance(saved, int) else None,
        None if failure is None else str(failure),
    )


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
