"""Sending a run's first job, once, even where sbatch's answer gets lost.

A submission that "failed" may have succeeded (nextflow#970: a socket timeout after the
job was made, and the work ran twice). So the job's comment carries a token, and squeue
is asked for it before anything is sent again.
"""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence

from clusterddp.config.schema import Job
from clusterddp.errors import SlurmError
from clusterddp.launch.submission import send
from clusterddp.launch.successor import find_sent_job
from clusterddp.runs.claims import Claim, claim_submission
from clusterddp.runs.directory import RunDirectory
from clusterddp.slurm.patience import is_transient

__all__ = ["adopt_job", "send_first_job"]

_LOG = logging.getLogger("clusterddp")
_TRIES = 3
_LOOKS_S = (1.0, 4.0)


def send_first_job(
    run: RunDirectory,
    job: Job,
    environ: Mapping[str, str],
    entry: Callable[[str], None],
    after: str | None = None,
) -> tuple[str, Claim]:
    """Send a new run's job; give its id and the claim that its comment carries.

    A refusal takes the run directory away again: nothing of the run has begun.

    Args:
        run: the run.
        job: its job.
        environ: what sbatch is given as environment.
        entry: what runs as the batch task; a callable of a module.
        after: sbatch's dependency.

    Raises:
        SlurmError: sbatch is missing or refuses; or nobody can tell whether the job
            was sent, and then the run directory stays.
    """
    claim = claim_submission(run)
    for turn in range(_TRIES):
        try:
            return send(job, run, environ, entry, claim.token, after), claim
        except SlurmError as error:
            if not is_transient(str(error)):
                shutil.rmtree(run.path)
                raise
            job_id = _look_up(run, claim, error)
            if job_id is not None:
                return job_id, claim
            if turn == _TRIES - 1:
                shutil.rmtree(run.path)
                raise
            _LOG.warning("%s; no job was made: sending it again", error)
    raise AssertionError  # the last turn returns or raises


def _look_up(
    run: RunDirectory,
    claim: Claim,
    error: SlurmError,
    pauses_s: Sequence[float] = _LOOKS_S,
) -> str | None:
    for pause_s in pauses_s:
        time.sleep(pause_s)
        try:
            job_id = find_sent_job(run, claim.token)
        except SlurmError as silence:
            message = (
                f"{error}; and squeue does not answer, so nobody can tell whether the "
                f"job was sent: {run.path} stays; clusterddp.resubmit {run.path} looks "
                "for it before it sends another"
            )
            raise SlurmError(message) from silence
        if job_id is not None:
            _LOG.warning("%s; but job %s was made: going on with it", error, job_id)
            adopt_job(run, job_id)
            return job_id
    return None


def adopt_job(run: RunDirectory, job_id: str) -> None:
    """Give submitit's files the names by which the job looks for them.

    submitit renames them after sbatch has answered; the job waits 60 s for its pickle
    (submitit 1.5, core/submission.py).
    """
    for pattern, name in (
        ("*.pkl", f"{job_id}_submitted.pkl"),
        (".submission_file_*.sh", f"{job_id}_submission.sh"),
    ):
        found = [
            path for path in run.submitit.glob(pattern) if "_" not in path.stem[-9:]
        ]
        if found:
            newest = max(found, key=lambda path: path.stat().st_mtime)
            newest.rename(run.submitit / name)
