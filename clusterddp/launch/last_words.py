"""What a rank says of its own end, to people and to the supervisor."""

import logging
import signal
import socket
import sys
import time

from clusterddp.errors import EXIT_BUG, EXIT_STOPPED, ClusterDDPError
from clusterddp.launch.rank import Seat, describe_failure, name_cause
from clusterddp.runs.blame import is_echo
from clusterddp.runs.verdict import (
    Failure,
    Summary,
    Verdict,
    write_summary,
    write_verdict,
)

__all__ = ["LastWords"]

_LOG = logging.getLogger("clusterddp")


class LastWords:
    """Says how one rank ends; silent as long as it belongs to no run."""

    def __init__(self, rank: int, seat: Seat | None) -> None:
        """Say nothing yet.

        Args:
            rank: its number, as far as that is known.
            seat: its run and attempt; None until they are found.
        """
        self.rank = rank
        self.seat = seat

    def stopped(self, step: int, signum: int | None) -> int:
        """Say that it has stopped and can go on; give the exit code for that."""
        name = signal.Signals(signum).name if signum is not None else None
        self._write("stopped", EXIT_STOPPED, step, signum=name)
        return EXIT_STOPPED

    def script_over(self, code: int) -> int:
        """Say how a script ended; with 75 it says that it has saved and stopped."""
        if self.seat is not None and self.rank == 0:
            cause = "stopped" if code == EXIT_STOPPED else "completed"
            write_summary(self.seat.attempt, Summary(cause, 0, 0))
        return code

    def failed(self, error: BaseException, code: int, step: int | None) -> Failure:
        """Tell a failure to people and to the supervisor."""
        failure = describe_failure(error)
        if isinstance(error, ClusterDDPError):
            _LOG.error("rank %d: %s", self.rank, error)
        elif is_echo(failure.message):
            _LOG.error("rank %d lost another rank: %s", self.rank, failure.message)
        else:
            sys.stderr.write(failure.traceback)
        cause = name_cause(error, is_started=bool(step))
        self._write(cause, code, step, failure=failure)
        sys.stdout.flush()
        sys.stderr.flush()
        return failure

    def followed(self, words: str, step: int | None) -> None:
        """Tell that it leaves because another rank has failed, in that one's words."""
        _LOG.error("rank %d %s", self.rank, words)
        failure = Failure("CollectiveError", words, "nowhere", words)
        self._write("crash", EXIT_BUG, step, failure=failure)

    def _write(
        self,
        cause: str,
        code: int,
        step: int | None,
        *,
        signum: str | None = None,
        failure: Failure | None = None,
    ) -> None:
        if self.seat is None:
            return
        host, now = socket.gethostname(), time.time()
        verdict = Verdict(
            self.rank, cause, code, step, host, now, signal=signum, failure=failure
        )
        write_verdict(self.seat.attempt, verdict)
