"""Ranks that outlive their supervisor's node, and bring the job back themselves.

With spare nodes the job has --no-kill: Slurm leaves it RUNNING when the node of its
batch step is lost, with nobody supervising, until its time limit (measured on 22.05).
So the supervisor gives signs of life in the attempt's directory, and the ranks of such
a job miss them: they try to save and leave together, and one of them requeues the job.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from pathlib import Path

from clusterddp.errors import EXIT_STOPPED, SlurmError
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.history import is_cancel_requested
from clusterddp.slurm.allocation import Allocation, current_allocation
from clusterddp.slurm.patience import patiently

__all__ = ["Heartbeat", "OrphanWatch"]

_LOG = logging.getLogger("clusterddp")
_BEAT_S = 2.0
_LOOK_S = 1.0
_STOOD_STILL_S = 5.0


def _sign(attempt: AttemptDirectory) -> Path:
    return attempt.path / "heartbeat"


class Heartbeat:
    """The supervisor's signs of life: a number in a file, every few seconds another.

    A number, not a time: the clocks of two nodes differ.
    """

    def __init__(self, attempt: AttemptDirectory) -> None:
        """Give none yet."""
        self._path = _sign(attempt)
        self._count = 0
        self._last = float("-inf")

    def beat(self) -> None:
        """Give a sign, if the last one is old enough; call it often."""
        now = time.monotonic()
        if now - self._last >= _BEAT_S:
            self._last, self._count = now, self._count + 1
            with contextlib.suppress(OSError):
                self._path.write_text(f"{self._count}\n")


class OrphanWatch(threading.Thread):
    """In a rank: misses the supervisor's signs, and acts when they stay away."""

    def __init__(
        self, run: RunDirectory, attempt: AttemptDirectory, patience_s: float
    ) -> None:
        """Watch nothing yet.

        Args:
            run: the run.
            attempt: this rank's attempt.
            patience_s: `slurm.supervisor_timeout`, in seconds.
        """
        super().__init__(name="orphan-watch", daemon=True)
        self._run_directory, self._attempt = run, attempt
        self._patience_s = patience_s
        self._is_orphan = threading.Event()

    def run(self) -> None:
        """Wait for silence; then ask for a common stop, and bring the job back.

        The stop fails where ranks were lost with the node: then this process ends
        without it, from the newest checkpoint the run goes on.
        """
        self._wait_for_silence()
        self._is_orphan.set()
        _LOG.error(
            "no sign of life from the supervisor for %g s: saving and leaving",
            self._patience_s,
        )
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._patience_s)
        self._bring_back()
        os._exit(EXIT_STOPPED)

    def leave(self) -> None:
        """Before a rank leaves in order: bring the job back if nobody else can."""
        if self._is_orphan.is_set():
            self._bring_back()

    def linger(self) -> None:
        """Before a rank leaves after a failure: see that there is a supervisor.

        When its node is lost all ranks may fail within milliseconds, before anybody
        has missed it.
        """
        if self._is_orphan.is_set() or self._wait_for_silence(until_sign=True):
            self._bring_back()

    def _wait_for_silence(self, *, until_sign: bool = False) -> bool:
        """Give True after too long a silence; False at a sign, if that is awaited."""
        seen, since = self._read(), time.monotonic()
        looked = since
        while True:
            time.sleep(_LOOK_S)
            sign, now = self._read(), time.monotonic()
            if now - looked > _STOOD_STILL_S:
                since += now - looked  # this rank was suspended: no silence
            looked = now
            if sign != seen:
                if until_sign:
                    return False
                seen, since = sign, now
            elif now - since > self._patience_s:
                return True

    def _read(self) -> str:
        try:
            return _sign(self._attempt).read_text()
        except OSError:
            return ""

    def _bring_back(self) -> None:
        """Requeue the job, once: mkdir decides which rank does it."""
        allocation = current_allocation(os.environ)
        if allocation is None:
            return
        try:
            (self._attempt.path / "orphaned").mkdir()
        except OSError:  # another rank does it, or the disk is gone as well
            return
        if not is_cancel_requested(self._run_directory, allocation.address):
            _requeue(allocation)


def _requeue(allocation: Allocation) -> None:
    try:
        patiently(allocation.requeue)
        _LOG.error("job %s is requeued by its ranks", allocation.address)
    except SlurmError as error:
        _LOG.error("%s", error)
