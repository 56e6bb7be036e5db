"""What is refused before a job is sent: unseen interpreters, odd paths, twins."""

import hashlib
import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from clusterddp.config.load import render_job
from clusterddp.config.schema import Job
from clusterddp.errors import UsageError
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.finding import list_named
from clusterddp.runs.ledger import read_events
from clusterddp.runs.survey import Look, survey
from clusterddp.slurm.programs import Runner, run_program

__all__ = [
    "content_of",
    "dependency_on",
    "refuse_odd_root",
    "refuse_twin",
    "refuse_unseen_python",
]

_LOG = logging.getLogger("clusterddp")
_PRIVATE = ("/tmp", "/dev/shm", "/run")  # noqa: S108 - named to be refused
_ACTIVE = ("running", "pending")
SHARED_TMP = "CLUSTERDDP_SHARED_TMP"


def refuse_unseen_python(
    environ: Mapping[str, str],
    prefix: str = sys.prefix,
    places: Sequence[str] = _PRIVATE,
) -> None:
    """Refuse an interpreter that lies where every node has a directory of its own.

    Raises:
        UsageError: it lies below /tmp, /dev/shm or /run.
    """
    path = Path(prefix).resolve()
    private = [place for place in places if path.is_relative_to(place)]
    if private and environ.get(SHARED_TMP) != "1":
        message = (
            f"{prefix}: this Python lies below {private[0]}, which every node has for "
            "itself; expected a place that all nodes see: make the environment anew in "
            f"your home or project directory (where nodes share it, set {SHARED_TMP}=1)"
        )
        raise UsageError(message)


def refuse_odd_root(root: Path) -> None:
    """Refuse a place for runs that sbatch would take for something else.

    Raises:
        UsageError: its path holds a percent sign or a line break.
    """
    if "%" in str(root) or any(not character.isprintable() for character in str(root)):
        message = (
            f"{str(root)!r}: runs cannot lie there: sbatch expands percent signs and "
            "ends at line breaks; give another place with --runs DIR"
        )
        raise UsageError(message)


def content_of(job: Job, code: str) -> str:
    """Give what two submissions have in common that would do the same work; pure.

    Args:
        job: the resolved job.
        code: the digest of the snapshot, empty without one.
    """
    return hashlib.sha256(f"{render_job(job)}\0{code}".encode()).hexdigest()[:16]


def refuse_twin(
    root: Path, job: Job, contents: Collection[str], runner: Runner = run_program
) -> None:
    """Refuse a job while a run with the same job and code is waiting or running.

    Raises:
        UsageError: there is such a run; the message names it.
    """
    same = [run for run in list_named(root, job.name) if _content(run) in contents]
    for look in survey(same, run=runner):
        status = look.status
        if status.state in _ACTIVE:
            who = f"job {status.job_id}" if status.job_id else "on this machine"
            message = (
                f"{status.path}: the same job with the same code is {status.state} "
                f"already ({who}); look after it with clusterddp.status, or send it "
                "once more with --new"
            )
            raise UsageError(message)


def _content(run: RunDirectory) -> object:
    events = (event for event in read_events(run) if event.kind == "submitted")
    return next((event.values.get("content") for event in events), None)


def dependency_on(look: Look) -> str | None:
    """Give sbatch's dependency on a run; None when that has finished already.

    Raises:
        UsageError: the run is not one that Slurm could wait for.
    """
    status = look.status
    if status.state == "finished":
        return None
    if status.state not in _ACTIVE or status.job_id is None:
        message = (
            f"--after {status.path}: found {status.state} ({status.detail}), expected "
            "a run that waits or runs as a Slurm job, or has finished; bring it back "
            "first (clusterddp.resubmit)"
        )
        raise UsageError(message)
    return f"afterok:{status.job_id}"
