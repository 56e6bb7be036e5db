"""What is kept of an attempt's end, and what is said of it."""

import logging

from clusterddp.files import read_json
from clusterddp.runs.blame import find_blame
from clusterddp.runs.decision import FAILURES, Decision
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.history import newest_checkpoint
from clusterddp.runs.logfiles import find_log
from clusterddp.runs.verdict import Cause, Ending, Past

__all__ = ["explain", "remember", "to_event"]

_LOG = logging.getLogger("clusterddp")
_BLAMED = (*FAILURES, Cause.WRONG_JOB, Cause.OUT_OF_MEMORY)


def remember(cause: Cause, ending: Ending, run: RunDirectory) -> Past:
    """Give what later decisions need to know of an attempt that has just ended."""
    saved = newest_checkpoint(run)
    if cause not in _BLAMED:
        return Past(cause, saved, lost=ending.lost_nodes)
    blame = find_blame(ending)
    return Past(cause, saved, blame.key, blame.host)


def to_event(
    attempt: AttemptDirectory, ending: Ending, past: Past
) -> dict[str, object]:
    """Give the ledger's words on it; `history.read_past` reads them back."""
    return {
        "attempt": attempt.number,
        "cause": past.cause.value,
        "code": ending.code,
        "checkpoint": past.checkpoint,
        "failure": past.failure,
        "host": past.host,
        "lost": list(past.lost),
        "step": ending.summary.step if ending.summary else None,
        "progress": _last_progress(attempt),
    }


def _last_progress(attempt: AttemptDirectory) -> object:
    """Give when rank 0 told of progress last: a report sees by it how long was none."""
    run = RunDirectory(attempt.path.parent.parent)
    return (read_json(run.progress) or {}).get("time")


def explain(
    attempt: AttemptDirectory, cause: Cause, ending: Ending, decision: Decision
) -> None:
    """Say in the log whom to blame, and what follows."""
    if cause in _BLAMED:
        blame = find_blame(ending)
        log = None if blame.rank is None else find_log(attempt, blame.rank)
        _LOG.error("%s\n  see %s", blame.text, log or attempt.path)
    _LOG.log(
        logging.INFO if decision.exit_code == 0 else logging.WARNING,
        "attempt %d: %s -> %s: %s",
        attempt.number,
        cause.value,
        decision.action.value,
        decision.reason,
    )
