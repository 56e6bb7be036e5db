"""Jobs that wait for a run (`submit --after`): they follow it to its newest job.

Slurm's `afterok:12` is about job 12, not about the run. A job that is requeued keeps
its number, and whoever waits goes on waiting; where a further job takes the run over,
the first one has left with 75, and whoever waits would do so for ever, as
DependencyNeverSatisfied. Such a job may be given another dependency, and goes on
(all measured on 22.05).
"""

import logging
import re
from collections.abc import Collection

from clusterddp.errors import SlurmError
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import read_events
from clusterddp.slurm.programs import Runner, run_program

__all__ = ["follow", "move_dependents"]

_LOG = logging.getLogger("clusterddp")
_STATE = re.compile(r"\(\w+\)")
_AFTER = re.compile(r"\bafterok:(\w+)")


def follow(dependency: str, old: Collection[str], new: str) -> str | None:
    """Give a dependency with a run's newest job for its earlier ones; pure.

    Args:
        dependency: as squeue shows it: `singleton(unfulfilled),afterok:1(failed)`.
        old: the run's earlier jobs.
        new: its newest.

    Returns:
        What scontrol takes; None when the run's earlier jobs are not in it.
    """
    plain = _STATE.sub("", dependency)
    moved = _AFTER.sub(
        lambda found: f"afterok:{new}" if found[1] in old else found[0], plain
    )
    return None if moved == plain else moved


def move_dependents(
    run: RunDirectory, job_id: str, runner: Runner = run_program
) -> None:
    """Let the user's jobs that wait for an earlier job of a run wait for this one.

    What cannot be moved is named in a warning: the run itself goes on all the same.
    """
    jobs = {str(event.values.get("job")) for event in read_events(run)} - {job_id}
    words = ["squeue", "--noheader", "--me", "--states=PENDING", "--format=%i|%E"]
    try:
        for row in runner(words).out.splitlines():
            waiting, _, dependency = row.partition("|")
            moved = follow(dependency, jobs, job_id)
            if moved is not None:
                _move(waiting, moved, runner)
    except SlurmError as error:
        _LOG.warning(
            "%s; jobs that wait for this run still wait for its old job", error
        )


def _move(job_id: str, dependency: str, runner: Runner) -> None:
    done = runner(["scontrol", "update", f"JobId={job_id}", f"Dependency={dependency}"])
    if done.code == 0:
        _LOG.info("job %s, which waits for this run, now waits for its new job", job_id)
        return
    _LOG.warning(
        "job %s waits for an earlier job of this run, which will not finish any more "
        "(scontrol: %s); let it wait for the new one with scontrol update JobId=%s "
        "Dependency=%s",
        *(job_id, done.err.strip(), job_id, dependency),
    )
