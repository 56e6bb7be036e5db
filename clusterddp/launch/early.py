"""Asking the ranks to stop before the job's own signal comes, where they need longer.

A requeued job keeps its `--signal` for good, so a run of slow steps or long saves would
lose its last save at every time limit. The supervisor then asks in Slurm's stead.
"""

import logging
import os
import time
from collections.abc import Callable

from clusterddp.config.schema import Job
from clusterddp.errors import SlurmError
from clusterddp.runs.delay import learn_delay
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import Ledger
from clusterddp.runs.timing import read_timing
from clusterddp.slurm.allocation import Allocation
from clusterddp.slurm.programs import run_program
from clusterddp.slurm.remaining import seconds_left

__all__ = ["EarlySignal", "asker_of", "next_look"]

_LOG = logging.getLogger("clusterddp")
_LOOK_S = 60.0
_LONGEST_S = 300.0
_ANSWER_S = 10.0


def next_look(left_s: float | None, needed_s: float) -> float:
    """Give the seconds until the time that is left is looked at again; 0: act; pure.

    Args:
        left_s: until the time limit; None: nobody says.
        needed_s: how long before it the ranks have to be asked.
    """
    if left_s is None:
        return _LOOK_S
    return min(_LONGEST_S, max(0.0, left_s - needed_s))


class EarlySignal:
    """Looks now and then whether the job's own signal would come too late."""

    def __init__(
        self,
        run: RunDirectory,
        job: Job,
        delay_s: float,
        ledger: Ledger,
        send: Callable[[], bool] | None,
    ) -> None:
        """Look at nothing yet.

        Args:
            run: the run; its log points and saves say how long it needs.
            job: its job.
            delay_s: how long before the limit the job's own signal comes.
            ledger: the attempt's.
            send: asks the ranks to stop, False if that failed; None: no limit here.
        """
        self._run, self._job, self._ledger, self._send = run, job, ledger, send
        self._delay_s = self.asked_s = delay_s
        self._next = time.monotonic() + _LOOK_S
        self._is_done = send is None or job.slurm.signal_delay != "auto"

    def look(self) -> None:
        """Ask the ranks to stop if it is time; once; call it often."""
        if self._is_done or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._act()

    def _act(self) -> float:
        """Give the seconds until the next look."""
        learned = learn_delay(read_timing([self._run]), self._job.slurm.time)
        if learned is None or learned.seconds <= self._delay_s:
            return _LOOK_S
        pause_s = next_look(seconds_left(os.environ, time.time), learned.seconds)
        if pause_s == 0 and self._send is not None and self._send():
            self._is_done, self.asked_s = True, learned.seconds
            known = {"seconds": learned.seconds, "job_s": self._delay_s}
            self._ledger.add("early_signal", reason=learned.reason, **known)
            _LOG.warning(
                "asking the ranks to stop %g s before the time limit, earlier than the "
                "job's own signal: they need it (%s)",
                learned.seconds,
                learned.reason,
            )
        return max(1.0, pause_s)


def asker_of(allocation: Allocation | None) -> Callable[[], bool] | None:
    """Give what sends the ranks of a job the signal that Slurm would; None: no job."""
    if allocation is None:
        return None
    address = allocation.address

    def send() -> bool:
        try:
            words = ["scancel", "--signal=USR2", address]
            return run_program(words, timeout_s=_ANSWER_S).code == 0
        except SlurmError:
            return False

    return send
