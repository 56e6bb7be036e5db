"""What `resubmit` has changed of a run's job: recorded in the ledger, never in place.

Only the shape of the job and the budgets may change (`slurm.*`, `retry.*`); job.yaml
stays as it was submitted.
"""

from collections.abc import Sequence

from clusterddp.config import Job, change_job, parse_override, read_job
from clusterddp.errors import UsageError
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import read_events

__all__ = ["check_changes", "read_changes", "read_run_job"]

_MAY_CHANGE = ("slurm", "retry")


def check_changes(words: Sequence[str]) -> tuple[str, ...]:
    """Give the words back if all of them may change.

    Raises:
        UsageError: one is no `key=value`, or names another section.
    """
    for word in words:
        section = str(parse_override(word).key[0])
        if section not in _MAY_CHANGE:
            message = (
                f"{word!r}: found {section}, expected slurm.* or retry.*: the training "
                "itself stays as it was; submit another run to train differently"
            )
            raise UsageError(message)
    return tuple(words)


def read_changes(run: RunDirectory) -> tuple[str, ...]:
    """Give all changes of a run so far, oldest first, as `key=value`."""
    found: list[str] = []
    for event in read_events(run):
        changes = event.values.get("changes")
        if event.kind == "submitted" and isinstance(changes, list):
            found += map(str, changes)
    return tuple(found)


def read_run_job(run: RunDirectory, more: Sequence[str] = ()) -> Job:
    """Give the job of a run as it stands now, its changes included.

    Args:
        run: the run.
        more: changes that are not in the ledger yet.

    Raises:
        JobFileError: job.yaml cannot be read.
        UsageError: the changes do not go with the rest.
    """
    job = read_job(run.job_file)
    words = (*read_changes(run), *more)
    return change_job(job, [parse_override(word) for word in words]) if words else job
