"""Who holds a run: at most one living supervisor, and nobody else's ranks."""

import logging
import os
import socket
import time
from collections.abc import Mapping

from clusterddp.errors import LaunchError, SlurmError
from clusterddp.files import read_json
from clusterddp.processes import creation_time, end_process_tree, is_same_process
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.history import last_ranks
from clusterddp.slurm.allocation import Allocation
from clusterddp.slurm.environment import restart_count
from clusterddp.slurm.jobs import Phase

__all__ = ["describe_owner", "take_over"]

_LOG = logging.getLogger("clusterddp")


def describe_owner(
    allocation: Allocation | None, environ: Mapping[str, str]
) -> dict[str, object]:
    """Give what an attempt's `owner.json` says of the process that claims it."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "created": creation_time(os.getpid()),
        "job": allocation.address if allocation else None,
        "restarts": restart_count(environ) if allocation else 0,
        "time": time.time(),
    }


def take_over(run: RunDirectory, allocation: Allocation | None) -> None:
    """See that nobody else holds the run, and end ranks that a dead holder left.

    Raises:
        LaunchError: a living supervisor or a running job holds it; it is named.
    """
    attempts = run.list_attempts()
    owner = read_json(attempts[-1].owner) if attempts else None
    if owner is None:
        return
    _refuse_running_job(run, str(owner.get("job") or ""), allocation)
    if owner.get("host") != socket.gethostname() or owner.get("pid") == os.getpid():
        return
    pid, created = owner.get("pid"), owner.get("created")
    if isinstance(pid, int) and is_same_process(pid, float(str(created))):
        message = (
            f"{run.path}: attempt {attempts[-1].number} is supervised by process {pid} "
            f"on {owner['host']}; wait for it, or stop it first (kill {pid})"
        )
        raise LaunchError(message)
    _end_orphans(run)


def _refuse_running_job(run: RunDirectory, job: str, mine: Allocation | None) -> None:
    if not job or (mine is not None and job == mine.address):
        return
    try:
        info = Allocation(job).query()
    except SlurmError:  # no Slurm here, or it has forgotten the job
        return
    if info.phase is Phase.RUNNING and info.state != "COMPLETING":
        message = (
            f"{run.path}: held by job {job}, which is {info.state} on {info.nodes}; "
            f"wait for it, or scancel {job}"
        )
        raise LaunchError(message)


def _end_orphans(run: RunDirectory) -> None:
    started = last_ranks(run)
    if started is not None and is_same_process(*started):
        _LOG.warning("ranks of a killed supervisor are still here: ending them")
        end_process_tree(started[0])
