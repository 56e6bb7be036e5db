"""`clusterddp.supervise RUN_DIR`: one loop over attempts until the run has ended.

On Slurm this is the batch task, started by submitit; for a local run it is the
user's terminal. It starts the ranks, waits, learns from their verdicts how the
attempt ended, and decides. It never imports torch.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from clusterddp import __version__
from clusterddp.config import Job
from clusterddp.errors import EXIT_STOPPED, LaunchError, SlurmError, UsageError
from clusterddp.launch.crew import count_nodes, find_place, say_shrunk
from clusterddp.launch.early import EarlySignal, asker_of
from clusterddp.launch.ending import collect_ending, describe_job
from clusterddp.launch.environment import rank_environment
from clusterddp.launch.process import RankProcess
from clusterddp.launch.requeue import Leave, note_cancelled
from clusterddp.launch.step import local_command, probe_command, step_command
from clusterddp.launch.watch import Watch
from clusterddp.processes import creation_time
from clusterddp.runs.changes import read_run_job
from clusterddp.runs.decision import Action, Decision, decide
from clusterddp.runs.delay import delay_in_force
from clusterddp.runs.directory import AttemptDirectory, RunDirectory, claim_attempt
from clusterddp.runs.history import (
    is_cancel_requested,
    is_finished,
    read_past,
)
from clusterddp.runs.holder import describe_owner, take_over
from clusterddp.runs.ledger import Ledger
from clusterddp.runs.telling import explain, remember, to_event
from clusterddp.runs.verdict import Cause, Ending, classify
from clusterddp.slurm.allocation import Allocation, current_allocation
from clusterddp.terminal import run_verb, talk_to, talk_to_stderr

__all__ = ["in_job", "main", "supervise"]

_STOP_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
)


def in_job(run_dir: str) -> None:
    """Supervise a run as the batch task of its job; submitit calls this.

    Raises:
        SystemExit: always, with the run's exit code.
    """
    talk_to_stderr()
    sys.exit(run_verb(lambda: supervise(Path(run_dir))))


def supervise(run_dir: Path) -> int:
    """Bring a run to its end, or as far as it goes here, and give its exit code.

    Raises:
        UsageError: there is no such run.
        LaunchError: somebody else holds the run, or its job's allocation is missing.
    """
    run = RunDirectory(run_dir.absolute())
    if not run.job_file.is_file():
        message = f"{run.path}: no job.yaml; expected a run directory, see ls runs/*"
        raise UsageError(message)
    job = read_run_job(run)
    return _Supervisor(run, job, _find_allocation(run, job)).run_to_end()


class _Supervisor:
    """The loop, and what it must remember between two looks: signals that came."""

    def __init__(
        self, run: RunDirectory, job: Job, allocation: Allocation | None
    ) -> None:
        self._run = run
        self._job = job
        self._allocation = allocation
        self._delay_s = self._asked_s = delay_in_force(run, job)
        self._requests: list[int] = []
        self._given_up: tuple[str, ...] = ()

    def run_to_end(self) -> int:
        """Start attempts until one of them, or a signal, ends the matter."""
        previous = {
            signum: signal.signal(signum, self._note) for signum in _STOP_SIGNALS
        }
        try:
            code: int | None = None
            while code is None:
                code = self._is_over_already()
                if code is None:
                    code = self._attempt_once()
            return code
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    def _is_over_already(self) -> int | None:
        """Give the exit code of a run that is finished, or whose job is cancelled."""
        if is_finished(self._run):
            return 0
        allocation = self._allocation
        if allocation and is_cancel_requested(self._run, allocation.address):
            ledger = Ledger(self._run, f"job-{allocation.address}-{os.getpid()}")
            note_cancelled(ledger)
            return EXIT_STOPPED
        return None

    def _attempt_once(self) -> int | None:
        """One start of the ranks; gives an exit code when nothing is to follow."""
        take_over(self._run, self._allocation)
        owner = describe_owner(self._allocation, os.environ)
        attempt = claim_attempt(self._run, owner)
        with talk_to(attempt.log):
            ledger = Ledger(self._run, f"attempt-{attempt.path.name}")
            ledger.add("attempt_started", **owner, **self._describe(attempt))
            ending = self._watch(attempt, ledger)
            cause = classify(ending, self._asked_s)
            past = [*read_past(self._run), remember(cause, ending, self._run)]
            ledger.add("attempt_ended", **to_event(attempt, ending, past[-1]))
            is_gone = ending.is_requeued
            place = find_place(self._job, self._allocation, is_requeued=is_gone)
            decision = decide(past, self._job.retry, place)
            explain(attempt, cause, ending, decision)
            return self._act(decision, ending, ledger)

    def _describe(self, attempt: AttemptDirectory) -> dict[str, object]:
        """Say what this attempt is made of: nodes, code and version."""
        allocation, code = self._allocation, self._run.code
        return {
            "attempt": attempt.number,
            "nodes": list(allocation.nodes) if allocation else [],
            "code": code.resolve().name if code.exists() else None,
            "version": __version__,
            "shrunk": say_shrunk(self._job, allocation) or None,
        }

    def _watch(self, attempt: AttemptDirectory, ledger: Ledger) -> Ending:
        """Start the ranks, wait for their end, and collect what is known of it."""
        command, probe = self._commands(attempt)
        watch = Watch(
            self._job,
            self._run,
            attempt,
            self._requests,
            probe,
            lambda: self._take_signal(ledger),
        )
        process = RankProcess(
            command,
            rank_environment(os.environ, self._job, self._run, attempt),
            attempt.step_errors,
            in_foreground=self._job.launcher == "none",
        )
        born = creation_time(process.pid)
        ledger.add(
            "ranks_started", attempt=attempt.number, pid=process.pid, created=born
        )
        send = asker_of(self._allocation)
        early = EarlySignal(self._run, self._job, self._delay_s, ledger, send)
        seen = watch.wait_for(process, early.look)
        self._asked_s = early.asked_s
        asked = bool(self._requests)
        return collect_ending(
            self._run, attempt, seen, self._allocation, is_interrupted=asked
        )

    def _commands(
        self, attempt: AttemptDirectory
    ) -> tuple[list[str], list[str] | None]:
        """Give what starts the ranks, and Python once on each node of a job."""
        job, allocation, python = self._job, self._allocation, sys.executable
        if allocation is None:
            return local_command(job, self._run, python), None
        nodes = count_nodes(job, allocation)
        step = step_command(job, self._run, attempt, python, self._given_up, nodes)
        size = len(allocation.nodes) or None
        return step, probe_command(job, python, size, self._given_up)

    def _take_signal(self, ledger: Ledger) -> bool:
        """Look what a signal means, before Slurm ends this process, too.

        KillWait may be over before the ranks have left: then a cancellation must
        stand in the ledger already, or somebody would bring the run back.

        Returns:
            Whether Slurm has requeued the job, though its ranks are still there.
        """
        if self._allocation is None:
            return False
        try:
            facts = describe_job(self._allocation.query(), self._allocation)
        except SlurmError:
            return False
        ledger.add("signal", signal=signal.Signals(self._requests[-1]).name)
        if facts.get("is_cancelled"):
            ledger.add("cancel_requested", job=self._allocation.address)
        return facts.get("is_requeued", False)

    def _act(self, decision: Decision, ending: Ending, ledger: Ledger) -> int | None:
        code = decision.exit_code
        if decision.action is Action.RESTART:
            self._give_up(decision.exclude)
            ledger.add("restart", reason=decision.reason)
            return None
        if decision.action is Action.REQUEUE and self._allocation is not None:
            leave = Leave(self._run, self._job, self._allocation, ledger, in_job)
            without = (*self._given_up, *decision.exclude)
            return leave.go(replace(decision, exclude=without))
        kind = "finished" if decision.action is Action.FINISH else "stopped"
        ledger.add(kind, reason=decision.reason, code=code)
        self._keep_dead(ending)
        return code

    def _give_up(self, nodes: tuple[str, ...]) -> None:
        """Go on without nodes of the allocation; their loss is known from now on."""
        self._given_up = (*self._given_up, *nodes)
        if self._allocation is not None:
            left = tuple(node for node in self._allocation.nodes if node not in nodes)
            self._allocation = replace(self._allocation, nodes=left)

    def _keep_dead(self, ending: Ending) -> None:
        """Cancel a job that Slurm has requeued, though its run shall stop."""
        is_over = classify(ending, self._asked_s) is not Cause.REQUEUED
        if self._allocation is not None and ending.is_requeued and is_over:
            self._allocation.cancel()

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self._requests.append(signum)


def _find_allocation(run: RunDirectory, job: Job) -> Allocation | None:
    if job.where == "local":
        return None
    allocation = current_allocation(os.environ)
    if allocation is None:
        message = (
            f"{run.path}: its job file says cluster slurm, and this process is in no "
            "Slurm job; submit it, or run this inside an allocation (salloc)"
        )
        raise LaunchError(message)
    return allocation


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    given = build_parser().parse_args(arguments)
    talk_to_stderr()
    return run_verb(lambda: supervise(given.run_dir))


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="clusterddp supervise",
        description="Bring a run to its end: start its ranks, restart, requeue.",
        epilog="exit codes: 0 finished, 75 stopped and can be resumed, 1 crashed",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="a run directory")
    return parser


if __name__ == "__main__":
    sys.exit(main())
