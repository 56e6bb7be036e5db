"""Ending a run for good, whatever it does: saved if there is time, never revived."""

import logging
import os
import signal
import socket
import time

from clusterddp.errors import SlurmError, UsageError
from clusterddp.processes import is_same_process
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.facts import Facts, read_facts
from clusterddp.runs.history import is_finished, newest_checkpoint
from clusterddp.runs.ledger import Ledger
from clusterddp.slurm.jobs import JobInfo, Phase, query_job
from clusterddp.slurm.patience import patiently
from clusterddp.slurm.programs import run_program

__all__ = ["cancel_run"]

_LOG = logging.getLogger("clusterddp")
_LOOK_S = 0.5
_ASK_AGAIN_S = 15.0


def cancel_run(run: RunDirectory, patience_s: float) -> str:
    """End a run and say in a few words what was found and done.

    The request is written into the ledger first, and names the job: from then on no
    supervisor requeues it, and `resubmit` leaves the run alone.

    Args:
        run: the run.
        patience_s: how long its ranks may take to save; 0: not at all.

    Raises:
        UsageError: a local run of another machine.
        SlurmError: Slurm does not answer; the request stands all the same.
    """
    if is_finished(run):
        return "finished already"
    facts = read_facts(run)
    if facts.job_id is None:
        return _cancel_local(run, facts, patience_s)
    ledger = Ledger(run, f"login-{socket.gethostname()}-{os.getpid()}")
    ledger.add("cancel_requested", job=facts.job_id)
    was = _end_job(facts.job_id, patience_s)
    return f"{was}; {_say_what_is_saved(run)}"


def _end_job(job_id: str, patience_s: float) -> str:
    """Ask the ranks to save and leave until the job is over, then cancel it.

    A job that waits, also one that was requeued a moment ago, is cancelled at once.
    """
    deadline, asked = time.monotonic() + patience_s, None
    while True:
        info = patiently(lambda: query_job(job_id))
        if info is None or info.phase is Phase.OVER:
            return f"job {job_id} was over" if asked is None else f"job {job_id} ended"
        now = time.monotonic()
        if now >= deadline or not _has_ranks(info):
            return _scancel(job_id, info)
        if asked is None or now - asked > _ASK_AGAIN_S:
            asked = now
            # Reaches the ranks, not the supervisor (scancel(1), --signal).
            run_program(["scancel", "--signal=USR2", job_id])
            _LOG.info("job %s: asked the ranks to save and leave", job_id)
        time.sleep(_LOOK_S)


def _has_ranks(info: JobInfo) -> bool:
    return info.phase is not Phase.WAITING


def _scancel(job_id: str, info: JobInfo) -> str:
    done = run_program(["scancel", job_id])
    if done.code != 0:
        message = (
            f"scancel {job_id}: {done.err.strip()}; the request is noted, so the run "
            "is not requeued; try again"
        )
        raise SlurmError(message)
    return f"job {job_id} was {info.state} and is cancelled"


def _cancel_local(run: RunDirectory, facts: Facts, patience_s: float) -> str:
    """Ask the supervisor in somebody's terminal, as Ctrl-C there would."""
    owner = facts.owner or {}
    pid, created = owner.get("pid"), float(str(owner.get("created", 0)))
    if not isinstance(pid, int):
        return "it never started"
    if owner.get("host") != socket.gethostname():
        message = (
            f"{run.path}: a local run of {owner.get('host')}, found this machine to be "
            f"{socket.gethostname()}; cancel it there"
        )
        raise UsageError(message)
    if not is_same_process(pid, created):
        return f"its supervisor is gone; {_say_what_is_saved(run)}"
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while is_same_process(pid, created):
        if time.monotonic() >= deadline:
            deadline = float("inf")
            os.kill(pid, signal.SIGTERM)  # asked again: without another save
        time.sleep(_LOOK_S)
    return f"process {pid} ended; {_say_what_is_saved(run)}"


def _say_what_is_saved(run: RunDirectory) -> str:
    step = newest_checkpoint(run)
    return "nothing is saved" if step is None else f"saved at step {step}"
