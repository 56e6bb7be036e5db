"""What a supervisor does while the ranks run: signals, srun's start, stalls."""

import logging
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterddp.config.schema import Job
from clusterddp.files import read_json
from clusterddp.launch.orphan import Heartbeat
from clusterddp.launch.parting import Parting
from clusterddp.launch.process import RankProcess
from clusterddp.launch.stacks import collect_stacks
from clusterddp.processes import GRACE_S
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.stall import StallClock

__all__ = ["Seen", "Watch", "read_last_words"]

_LOG = logging.getLogger("clusterddp")
_LOOK_S = 1.0
_SHORTLY_S = 120.0
_HUNG_GRACE_S = 1.0
_LAST_WORDS = 4096


@dataclass(frozen=True)
class Seen:
    """What was seen of an attempt while it ran.

    Attributes:
        code: the exit code of srun, of the agent or of the one process; None: they
            were left to Slurm, which has taken the job away.
        is_stalled: no step was finished for too long, and the ranks were ended.
        was_suspended: this process stood still shortly before their end.
        never_started: srun could not start them in time, and was ended.
    """

    code: int | None
    is_stalled: bool = False
    was_suspended: bool = False
    never_started: bool = False


class Watch:
    """Waits for the end of an attempt's ranks, and brings it about where it must."""

    def __init__(
        self,
        job: Job,
        run: RunDirectory,
        attempt: AttemptDirectory,
        requests: Sequence[int],
        probe: Sequence[str] | None,
        take_signal: Callable[[], bool],
    ) -> None:
        """Begin before the ranks are started.

        Args:
            job: the job file's value.
            run: the run.
            attempt: its newest attempt.
            requests: stop signals that this process has received; grows.
            probe: the srun words that start Python on each node; None: the ranks
                are on this machine.
            take_signal: called when this process got a signal in a job; True: Slurm
                has taken the job away, and the ranks are not waited for.
        """
        self._job, self._run, self._attempt = job, run, attempt
        self._requests, self._probe = requests, probe
        self._passed_on = 0
        self._take_signal = take_signal
        self._is_stalled = self._never_started = False
        self._clock = _stall_clock(job, run)
        self._looked = self._forgiven = self._read_at = 0.0
        self._is_broken = False
        self._heart = Heartbeat(attempt) if job.outlives_nodes else None
        self._parting: Parting | None = None
        self._is_ended = False
        if job.launcher != "none":  # a debugger may stay as long as it likes
            self._parting = Parting(attempt, has_summary=job.experiment is not None)

    def wait_for(
        self, process: RankProcess, meanwhile: Callable[[], None] = lambda: None
    ) -> Seen:
        """Stay until the ranks are gone, and say what was seen.

        Args:
            process: what started the ranks.
            meanwhile: called again and again; must be quick.
        """

        def look() -> bool:
            meanwhile()
            return self._between(process)

        code = process.wait(look)
        suspended_at = process.suspended_at
        return Seen(
            code,
            is_stalled=self._is_stalled,
            never_started=self._never_started,
            was_suspended=suspended_at is not None
            and time.monotonic() - suspended_at < _SHORTLY_S,
        )

    def _between(self, process: RankProcess) -> bool:
        """Under Slurm the ranks get their signals from Slurm itself.

        srun would take one as an order to end the step at once. After a node failure
        srun waits longer for the lost node than Slurm lets this process live (7 s,
        and KillWait was 5: measured), so then it is not waited for.
        """
        if self._heart is not None:
            self._heart.beat()
            self._look_for_lost_node(process)
        if self._probe is not None:
            if self._has_news() and self._take_signal():
                return True
            self._bound_start(process)
        elif self._job.launcher != "none":
            self._pass_on(process)
        is_leaving = self._look_for_leftover(process)
        if self._clock is not None and not self._is_stalled and not is_leaving:
            self._look_for_stall(process, self._clock)
        return False

    def _look_for_leftover(self, process: RankProcess) -> bool:
        """End an srun that has not noticed that its ranks are gone.

        Returns:
            Whether the ranks have begun to leave: that may take longer than a step.
        """
        if self._parting is None:
            return False
        if self._parting.is_late(process.age_s) and not self._is_ended:
            _LOG.warning(
                "the ranks have left, and what started them has not: ending it"
            )
            self._is_ended = True
            process.end()
        return self._parting.has_begun

    def _look_for_lost_node(self, process: RankProcess) -> None:
        """End a step that has lost a node: with --no-kill srun itself only says so.

        The ranks left would wait in a collective until the stall timeout.
        """
        now = time.monotonic()
        if self._is_broken or now - self._read_at < _LOOK_S:
            return
        self._read_at = now
        if "Node failure on" in read_last_words(self._attempt.step_errors):
            _LOG.warning("srun has lost a node: ending the ranks that are left")
            self._is_broken = True
            process.end()

    def _has_news(self) -> bool:
        news = len(self._requests) > self._passed_on
        self._passed_on = len(self._requests)
        return news

    def _bound_start(self, process: RankProcess) -> None:
        is_late = process.age_s > self._job.slurm.step_timeout
        if is_late and not any(self._attempt.path.glob("*-[0-9]*.log")):
            _LOG.warning("srun has not started the ranks in time: ending it")
            self._never_started = True
            process.end()

    def _pass_on(self, process: RankProcess) -> None:
        new = len(self._requests) - self._passed_on
        if new and self._passed_on:
            _LOG.warning("asked again: ending the ranks without another save")
            process.end()
        elif new:
            _LOG.warning("asked to stop: the ranks save and leave; ask again to kill")
            process.send(signal.SIGTERM)
        self._passed_on += new

    def _look_for_stall(self, process: RankProcess, clock: StallClock) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        clock.forgive(process.stood_still_s - self._forgiven)
        self._forgiven = process.stood_still_s
        clock.note(read_json(self._run.progress), now)
        if clock.is_over(now):
            self._is_stalled = True
            _LOG.error(
                "no step was finished for %g s: asking the ranks for their stacks, "
                "then ending them",
                clock.patience_s,
            )
            ranks = self._job.world_size
            collect_stacks(self._run, self._attempt, self._probe, ranks)
            # Hanging ranks have nothing left to say; srun needs time to end its own.
            process.end(_HUNG_GRACE_S if self._probe is None else GRACE_S)


def read_last_words(path: Path) -> str:
    """Give the end of a log file; empty when there is none."""
    try:
        return path.read_bytes()[-_LAST_WORDS:].decode(errors="replace")
    except OSError:
        return ""


def _stall_clock(job: Job, run: RunDirectory) -> StallClock | None:
    """Give the clock of an attempt; None where nobody says how far the ranks are."""
    timeout = job.retry.stall_timeout
    if job.experiment is None or job.launcher == "none" or timeout == "never":
        return None
    patience = None if isinstance(timeout, str) else timeout
    return StallClock(patience, read_json(run.progress), time.monotonic())
