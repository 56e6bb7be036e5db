"""Sending a further job into a run's directory, never twice."""

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from clusterddp.config.schema import Job
from clusterddp.errors import SlurmError
from clusterddp.launch.dependents import move_dependents
from clusterddp.runs.claims import Claim, claim_submission
from clusterddp.runs.delay import Delay, choose_delay, with_delay
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import Ledger
from clusterddp.slurm.environment import clean_environment
from clusterddp.slurm.patience import is_transient
from clusterddp.slurm.programs import Runner, run_program

__all__ = [
    "find_sent_job",
    "note_changes",
    "note_sent_job",
    "send_further_job",
    "without_nodes",
]

_LOG = logging.getLogger("clusterddp")
_LOOKS_S = (1.0, 4.0, 10.0)


def send_further_job(
    run: RunDirectory,
    job: Job,
    environ: Mapping[str, str],
    entry: Callable[[str], None],
    *,
    changes: Sequence[str] = (),
    seen: int | None = None,
) -> str:
    """Send a job that goes on with a run; give its id.

    Args:
        run: the run; whoever had it before must be gone.
        job: its job, changes included.
        environ: the environment of this process.
        entry: what runs as the batch task; a callable of a module.
        changes: what was changed of the job, for the ledger.
        seen: the number of claims when the run was looked at.

    Raises:
        UsageError: somebody else is just sending one, or has since.
        SlurmError: sbatch is missing or refuses.
    """
    claim = claim_submission(run, seen)
    delay = choose_delay(run, job)
    job_id = _send(run, with_delay(job, delay), environ, entry, claim)
    note_sent_job(run, job_id, claim, changes, delay)
    return job_id


def note_sent_job(
    run: RunDirectory,
    job_id: str,
    claim: Claim,
    changes: Sequence[str] = (),
    delay: Delay | None = None,
) -> None:
    """Write into the ledger what became of a claim."""
    ledger = Ledger(run, f"login-{socket.gethostname()}-{os.getpid()}")
    known: dict[str, object] = {"changes": list(changes)} if changes else {}
    if delay is not None:
        known |= {"signal_delay": delay.seconds, "delay_reason": delay.reason}
    values = {"job": job_id, "cluster": "slurm", "token": claim.token, **known}
    ledger.add("submitted", **values)
    move_dependents(run, job_id)


def note_changes(run: RunDirectory, changes: Sequence[str]) -> None:
    """Write into the ledger what was changed of a local run's job."""
    ledger = Ledger(run, f"login-{socket.gethostname()}-{os.getpid()}")
    ledger.add("submitted", job=None, cluster="local", changes=list(changes))


def find_sent_job(
    run: RunDirectory, token: str, runner: Runner = run_program
) -> str | None:
    """Look for the job of a claim by its comment; None when Slurm knows none.

    Raises:
        SlurmError: the controller does not answer, so nobody can tell.
    """
    comment = f"clusterddp {run.path.parent.name}/{run.id} {token}"
    listed = runner(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%k"])
    if listed.code != 0:
        raise SlurmError(f"squeue --me: {listed.err.strip()}; is the controller up?")
    found = [row.partition("|") for row in listed.out.splitlines()]
    ids = [job_id.strip() for job_id, _, words in found if words.strip() == comment]
    return ids[-1] if ids else None


def _send(
    run: RunDirectory,
    job: Job,
    environ: Mapping[str, str],
    entry: Callable[[str], None],
    claim: Claim,
) -> str:
    from clusterddp.launch.submission import send, written_options

    clean = clean_environment(environ, written_options(job))
    try:
        return send(job, run, clean.variables, entry, token=claim.token)
    except SlurmError as error:
        if not is_transient(str(error)):
            claim.path.unlink(missing_ok=True)  # refused whole: nothing was sent
            raise
        # submitit's pickle has no name of that job: it is ended, and sent again.
        _end_what_was_sent(run, claim.token)
        claim.path.unlink(missing_ok=True)
        raise


def _end_what_was_sent(run: RunDirectory, token: str) -> None:
    """Cancel a job whose submission seemed to fail but did not (measured by others).

    It could not start: submitit names the pickle after sbatch has answered.
    """
    for pause_s in _LOOKS_S:
        time.sleep(pause_s)
        job_id = find_sent_job(run, token)
        if job_id is not None:
            _LOG.warning("sbatch had sent job %s all the same: ending it", job_id)
            run_program(["scancel", re.sub(r"\W.*", "", job_id)])
            return


def without_nodes(job: Job, nodes: Sequence[str]) -> Job:
    """Give the same job without some nodes; pure."""
    if not nodes:
        return job
    excluded = ",".join(filter(None, [job.slurm.exclude, *nodes]))
    slurm = job.slurm.model_copy(update={"exclude": excluded})
    return job.model_copy(update={"slurm": slurm})
