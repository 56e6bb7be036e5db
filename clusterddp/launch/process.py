"""The process that holds the ranks of an attempt: srun, our agent, or one rank."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from clusterddp.errors import LaunchError
from clusterddp.processes import GRACE_S, end_process_tree

__all__ = ["RankProcess"]

_POLL_S = 0.1
# Longer between two looks than any busy machine makes it: this process stood still.
_STOOD_STILL_S = 5.0


class RankProcess:
    """Starts, watches and ends one such process; it never ends anything else."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        errors: Path,
        *,
        in_foreground: bool = False,
    ) -> None:
        """Start it.

        Args:
            command: the argument list.
            environ: its whole environment.
            errors: the file that its own output is appended to.
            in_foreground: leave terminal and signals to it (for a debugger).

        Raises:
            LaunchError: the program cannot be started.
        """
        try:
            with errors.open("ab") as sink:
                self._process = subprocess.Popen(
                    list(command),
                    env=dict(environ),
                    stdin=None if in_foreground else subprocess.DEVNULL,
                    stdout=None if in_foreground else sink,
                    stderr=None if in_foreground else sink,
                    start_new_session=not in_foreground,
                )
        except OSError as error:
            message = f"{command[0]}: cannot be started ({error.strerror}); is it here?"
            raise LaunchError(message) from error
        self._started = time.monotonic()
        self._looked = self._started
        self.stood_still_s = 0.0
        """For how many seconds altogether this process itself was suspended."""
        self.suspended_at: float | None = None
        """When that was noticed last, by time.monotonic()."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def age_s(self) -> float:
        """For how many seconds it has been running, suspensions left out."""
        return time.monotonic() - self._started - self.stood_still_s

    def wait(self, between: Callable[[], object]) -> int | None:
        """Wait for its end and give its exit code; `between` is called meanwhile.

        Returns:
            None when `between` gave True: it is left to itself.
        """
        self._looked = time.monotonic()
        while True:
            try:
                return self._process.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                self._note_suspension()
                if between() is True:
                    return None
                self._looked = time.monotonic()  # looking took time, it was no gap
            finally:
                self._note_suspension()

    def _note_suspension(self) -> None:
        """See by the clock whether this process was stopped since the last look.

        Gang scheduling stops supervisor and ranks alike (PreemptMode=SUSPEND,GANG:
        TSTP, STOP, later CONT; measured), and no timer must take that for silence.
        """
        now = time.monotonic()
        gap, self._looked = now - self._looked, now
        if gap > _STOOD_STILL_S:
            self.stood_still_s += gap
            self.suspended_at = now

    def send(self, signum: int) -> None:
        """Send it a signal, if it is still there."""
        if self._process.poll() is None:
            self._process.send_signal(signum)

    def end(self, grace_s: float = GRACE_S) -> None:
        """End it and all that it started, by pid: TERM, and KILL after a grace."""
        end_process_tree(self.pid, grace_s)
