"""Leaving an allocation so that the run goes on: requeue the job, or send another."""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clusterddp.config.schema import Job
from clusterddp.errors import EXIT_STOPPED, SlurmError
from clusterddp.launch.ending import describe_job
from clusterddp.launch.successor import send_further_job, without_nodes
from clusterddp.runs.decision import Decision
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.history import is_cancel_requested
from clusterddp.runs.ledger import Ledger
from clusterddp.runs.verdict import Cause
from clusterddp.slurm.allocation import Allocation
from clusterddp.slurm.hostlist import expand_hostlist
from clusterddp.slurm.jobs import JobInfo
from clusterddp.slurm.nodes import count_usable
from clusterddp.slurm.patience import fit_pauses, patiently

__all__ = ["Leave", "note_cancelled"]

_LOG = logging.getLogger("clusterddp")


@dataclass(frozen=True)
class Leave:
    """What is needed to leave an allocation and come back.

    Attributes:
        run: the run.
        job: its job.
        allocation: the job that this process runs in.
        ledger: this attempt's.
        entry: what a successor runs as its batch task.
    """

    run: RunDirectory
    job: Job
    allocation: Allocation
    ledger: Ledger
    entry: Callable[[str], None]

    def go(self, decision: Decision) -> int:
        """Requeue the job, or send a successor; the caller leaves at once.

        Slurm ends this process soon after the requeue. A job that may not be
        requeued (JobRequeue=0) gets a successor into the same run directory.

        Returns:
            The supervisor's exit code.

        Raises:
            SlurmError: neither worked; the ledger says "needs resubmit".
        """
        if is_cancel_requested(self.run, self.allocation.address):
            return self._stop(decision)
        try:
            self._return(decision)
        except SlurmError as error:
            if self._was_cancelled():
                return self._stop(decision)
            words = {"reason": str(error), "code": error.exit_code}
            self.ledger.add("needs_resubmit", **words)
            raise
        return decision.exit_code

    def _return(self, decision: Decision) -> None:
        allocation = self.allocation
        info = patiently(allocation.query)
        kept_away = _choose_kept_away(self.job, allocation, info, decision.exclude)
        if not info.may_requeue and info.restarts == allocation.restarts:
            self.ledger.add("successor", reason=decision.reason)
            left_s = None if info.end_time is None else info.end_time - time.time()
            job = without_nodes(self.job, kept_away)
            sent = patiently(lambda: self._send(job), fit_pauses(left_s))
            _LOG.warning("the job may not be requeued: job %s goes on", sent)
            return
        self.ledger.add("requeue", reason=decision.reason, job=allocation.address)
        with _unended():
            patiently(allocation.requeue)
            if decision.exclude:
                self._exclude((*_asked_for(self.job), *kept_away))

    def _exclude(self, nodes: tuple[str, ...]) -> None:
        """Keep nodes from the job that is requeued now; it comes back either way."""
        try:
            done = self.allocation.exclude(nodes)
            words = done.err.strip() or f"code {done.code}" if done.code else None
        except SlurmError as error:
            words = str(error)
        self.ledger.add("excluded", nodes=list(nodes), error=words)

    def _send(self, job: Job) -> str:
        """Send the successor; a refusal is written down: no word may follow it."""
        try:
            return send_further_job(self.run, job, os.environ, self.entry)
        except SlurmError as error:
            self.ledger.add("refused", reason=str(error))
            raise

    def _was_cancelled(self) -> bool:
        """Ask once more: a scancel between the decision and the requeue wins."""
        try:
            info = self.allocation.query()
        except SlurmError:
            return False
        return describe_job(info, self.allocation).get("is_cancelled", False)

    def _stop(self, decision: Decision) -> int:
        note_cancelled(self.ledger)
        return decision.exit_code


@contextlib.contextmanager
def _unended() -> Iterator[None]:
    """Let programs that are started here live on when Slurm ends the batch step.

    It does so at once after a requeue, and then an scontrol that was under way seemed
    to have failed (seen with proctrack/linuxproc). A program inherits what is ignored.
    """
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def note_cancelled(ledger: Ledger) -> None:
    """Write down that a run stops because somebody cancelled its job."""
    words = {"reason": "the job was cancelled", "cause": Cause.CANCELLED.value}
    ledger.add("stopped", **words, code=EXIT_STOPPED)


def _choose_kept_away(
    job: Job, allocation: Allocation, info: JobInfo, new: tuple[str, ...]
) -> tuple[str, ...]:
    """Give the nodes that the job shall not get, beside those that its file excludes.

    As many as leave it enough to start on: the earlier ones are let in first, then
    all. Slurm itself keeps a job from a node that is still down.
    """
    asked = _asked_for(job)
    earlier = tuple(node for node in info.excluded if node not in asked)
    if not new:
        return earlier
    needed, usable = job.slurm.nodes + job.slurm.spare_nodes, None
    for kept_away in ((*earlier, *new), new):
        without = (*asked, *kept_away)
        usable = count_usable(allocation.partition, without, allocation.run)
        if usable is None or usable >= needed:
            return tuple(dict.fromkeys(kept_away))
    _LOG.warning(
        "not excluding %s: only %d other nodes can be used, the job needs %d",
        ", ".join(new),
        usable,
        needed,
    )
    return ()


def _asked_for(job: Job) -> tuple[str, ...]:
    """Give the nodes that the job file excludes."""
    return tuple(expand_hostlist(job.slurm.exclude)) if job.slurm.exclude else ()
