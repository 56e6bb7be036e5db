"""`clusterddp.supervise RUN_DIR`: one loop over attempts until the run has ended.

On Slurm this is the batch task, started by submitit; for a local run it is the
user's terminal. It starts the ranks, waits, learns from their verdicts how the
attempt ended, and decides. It never imports torch.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TypedDict

from clusterddp.config import Job, read_job
from clusterddp.errors import LaunchError, SlurmError, UsageError
from clusterddp.files import read_json
from clusterddp.launch.environment import rank_environment
from clusterddp.launch.process import RankProcess
from clusterddp.launch.step import local_command, step_command
from clusterddp.processes import creation_time
from clusterddp.runs.blame import find_blame
from clusterddp.runs.decision import Action, Decision, decide
from clusterddp.runs.directory import AttemptDirectory, RunDirectory, claim_attempt
from clusterddp.runs.history import is_finished, read_past
from clusterddp.runs.holder import describe_owner, take_over
from clusterddp.runs.ledger import Ledger
from clusterddp.runs.verdict import (
    Cause,
    Ending,
    Past,
    classify,
    read_summary,
    read_verdicts,
)
from clusterddp.slurm.allocation import Allocation, current_allocation
from clusterddp.slurm.environment import restart_count
from clusterddp.slurm.jobs import JobInfo, Phase
from clusterddp.terminal import run_verb, talk_to, talk_to_stderr

__all__ = ["in_job", "main", "supervise"]

_LOG = logging.getLogger("clusterddp")
_FAILURES = (Cause.CRASH, Cause.WRONG_JOB)
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
    job = read_job(run.job_file)
    return _Supervisor(run, job, _find_allocation(run, job)).run_to_end()


class _Supervisor:
    """The loop, and what it must remember between two looks: signals that came."""

    def __init__(
        self, run: RunDirectory, job: Job, allocation: Allocation | None
    ) -> None:
        self._run = run
        self._job = job
        self._allocation = allocation
        self._requests: list[int] = []
        self._passed_on = 0

    def run_to_end(self) -> int:
        """Start attempts until one of them, or a signal, ends the matter."""
        previous = {
            signum: signal.signal(signum, self._note) for signum in _STOP_SIGNALS
        }
        try:
            code: int | None = None
            while code is None:
                code = 0 if is_finished(self._run) else self._attempt_once()
            return code
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    def _attempt_once(self) -> int | None:
        """One start of the ranks; gives an exit code when nothing is to follow."""
        take_over(self._run, self._allocation)
        owner = describe_owner(self._allocation, os.environ)
        attempt = claim_attempt(self._run, owner)
        with talk_to(attempt.log):
            ledger = Ledger(self._run, f"attempt-{attempt.path.name}")
            ledger.add("attempt_started", **{"attempt": attempt.number, **owner})
            ending = self._watch(attempt, ledger)
            cause = classify(ending, self._job.slurm.signal_delay)
            past = [*read_past(self._run), _remember(cause, ending, self._run)]
            ledger.add("attempt_ended", **_to_event(attempt, ending, past[-1]))
            is_on_slurm = self._allocation is not None
            decision = decide(past, self._job.retry, on_slurm=is_on_slurm)
            _explain(attempt, cause, ending, decision)
            return self._act(decision, ledger)

    def _watch(self, attempt: AttemptDirectory, ledger: Ledger) -> Ending:
        """Start the ranks, wait for their end, and collect what is known of it."""
        environ = rank_environment(os.environ, self._job, self._run, attempt)
        if self._allocation is None:
            command = local_command(self._job, self._run, sys.executable)
        else:
            command = step_command(self._job, self._run, attempt, sys.executable)
        process = RankProcess(
            command,
            environ,
            attempt.step_errors,
            in_foreground=self._job.launcher == "none",
        )
        born = creation_time(process.pid)
        ledger.add(
            "ranks_started", attempt=attempt.number, pid=process.pid, created=born
        )
        code = process.wait(lambda: self._between(process, attempt))
        return self._collect(attempt, code)

    def _between(self, process: RankProcess, attempt: AttemptDirectory) -> None:
        """While the ranks run: pass signals on (local), bound srun's start (Slurm).

        Under Slurm the ranks get their signals from Slurm itself, and srun would
        take one as an order to end the step at once.
        """
        if self._allocation is None and self._job.launcher != "none":
            self._pass_on(process)
        is_late = process.age_s > self._job.slurm.step_timeout
        if self._allocation and is_late and not any(attempt.path.glob("*-0000.log")):
            _LOG.warning("srun has not started the ranks in time: ending it")
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

    def _collect(self, attempt: AttemptDirectory, code: int) -> Ending:
        facts = _JobFacts()
        if self._allocation is None:
            facts["is_interrupted"] = bool(self._requests)
        elif (info := _ask_patiently(self._allocation)) is not None:
            facts = _describe_job(info, os.environ)
        return Ending(
            code,
            read_verdicts(attempt),
            read_summary(attempt),
            has_progress=bool((read_json(self._run.progress) or {}).get("step")),
            said=_last_words(attempt.step_errors),
            **facts,
        )

    def _act(self, decision: Decision, ledger: Ledger) -> int | None:
        code = decision.exit_code
        if decision.action is Action.RESTART:
            ledger.add("restart", reason=decision.reason)
            return None
        if decision.action is Action.REQUEUE and self._allocation is not None:
            return self._requeue(self._allocation, decision, ledger)
        kind = "finished" if decision.action is Action.FINISH else "stopped"
        ledger.add(kind, reason=decision.reason, code=code)
        return code

    def _requeue(
        self, allocation: Allocation, decision: Decision, ledger: Ledger
    ) -> int:
        """Requeue the job and leave at once: Slurm ends this process soon after."""
        ledger.add("requeue", reason=decision.reason, job=allocation.address)
        try:
            allocation.requeue()
        except SlurmError as error:
            ledger.add("needs_resubmit", reason=str(error), code=error.exit_code)
            raise
        return decision.exit_code

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self._requests.append(signum)


class _JobFacts(TypedDict, total=False):
    is_interrupted: bool
    is_cancelled: bool
    is_requeued: bool
    is_preempted: bool
    seconds_left: float | None


def _ask_patiently(allocation: Allocation) -> JobInfo | None:
    """Ask how the job stands, again while the controller is busy or restarting.

    After two minutes without an answer nothing is known: then nothing is requeued,
    and the ranks are started again in the allocation.
    """
    for pause_s in (1, 2, 4, 8, 15, 30, 60, 0):
        try:
            return allocation.query()
        except SlurmError as error:
            _LOG.warning("%s", error)
            time.sleep(pause_s)
    return None


def _describe_job(info: JobInfo, environ: Mapping[str, str]) -> _JobFacts:
    """Say what the state of the job tells about an attempt's end.

    EndTime is the limit only while the job runs; after scancel it is the time of the
    cancellation (measured on 22.05), so the reason tells a time limit from a cancel.
    """
    is_over = info.phase is Phase.OVER or info.state == "COMPLETING"
    is_preempted = info.preempt_time is not None
    is_timeout = info.state == "TIMEOUT" or info.reason == "TimeLimit"
    is_requeued = info.phase is Phase.WAITING or info.restarts > restart_count(environ)
    left = 0.0 if is_timeout else None
    if not is_over and info.end_time is not None:
        left = info.end_time - time.time()
    return _JobFacts(
        is_cancelled=is_over and not (is_preempted or is_timeout or is_requeued),
        is_requeued=is_requeued,
        is_preempted=is_preempted and not is_requeued,
        seconds_left=left,
    )


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


def _remember(cause: Cause, ending: Ending, run: RunDirectory) -> Past:
    saved = (read_json(run.progress) or {}).get("checkpoint")
    failure = find_blame(ending).key if cause in _FAILURES else None
    return Past(cause, saved if isinstance(saved, int) else None, failure)


def _to_event(
    attempt: AttemptDirectory, ending: Ending, past: Past
) -> dict[str, object]:
    return {
        "attempt": attempt.number,
        "cause": past.cause.value,
        "code": ending.code,
        "checkpoint": past.checkpoint,
        "failure": past.failure,
        "step": ending.summary.step if ending.summary else None,
    }


def _explain(
    attempt: AttemptDirectory, cause: Cause, ending: Ending, decision: Decision
) -> None:
    if cause in _FAILURES:
        blame = find_blame(ending)
        log = attempt.path if blame.rank is None else attempt.rank_log(blame.rank)
        _LOG.error("%s\n  see %s", blame.text, log)
    _LOG.log(
        logging.INFO if decision.exit_code == 0 else logging.WARNING,
        "attempt %d: %s -> %s: %s",
        attempt.number,
        cause.value,
        decision.action.value,
        decision.reason,
    )


def _last_words(path: Path, size: int = 4096) -> str:
    try:
        return path.read_bytes()[-size:].decode(errors="replace")
    except OSError:
        return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    parser = argparse.ArgumentParser(
        prog="clusterddp supervise",
        description="Bring a run to its end: start its ranks, restart, requeue.",
        epilog="exit codes: 0 finished, 75 stopped and can be resumed, 1 crashed",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="a run directory")
    given = parser.parse_args(arguments)
    talk_to_stderr()
    return run_verb(lambda: supervise(given.run_dir))


if __name__ == "__main__":
    sys.exit(main())
