"""Rehearsing a failure on a live run: strike, wait until it goes on, tell the cost."""

import argparse
import json
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass

from clusterddp.errors import EXIT_BUG, SlurmError, UsageError
from clusterddp.files import read_json
from clusterddp.launch.step import probe_command
from clusterddp.launch.strike import strike_here
from clusterddp.runs.changes import read_run_job
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.evidence import reached_steps
from clusterddp.runs.facts import Facts, read_facts
from clusterddp.runs.finding import find_root, find_run
from clusterddp.runs.ledger import Event, Ledger, read_events
from clusterddp.slurm.hold import is_held, lift_hold
from clusterddp.slurm.jobs import query_job
from clusterddp.slurm.programs import run_program

__all__ = ["Outcome", "drill"]

_LOG = logging.getLogger("clusterddp")
_LOOK_S = 0.25
_ASK_S = 3.0


@dataclass(frozen=True)
class _Strike:
    """What is done: to the whole step, or to one rank."""

    what: str
    signum: signal.Signals
    rank: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What a drill cost.

    Attributes:
        what: which failure.
        cause: as what the supervisor took it; None: it never saw an end.
        step: the step that the ranks had reached; a second old where none of them
            could say how it ended.
        resumed_at: the step from which the next attempt went on.
        lost_steps: how many had to be done again.
        stopped_s: from the strike to the end of the attempt.
        back_s: from the strike to the next finished step; None: it did not come.
    """

    what: str
    cause: str | None
    step: int | None
    resumed_at: int | None
    lost_steps: int | None
    stopped_s: float | None
    back_s: float | None


def drill(given: argparse.Namespace) -> int:
    """Carry out what `clusterddp.drill` was asked, and give its exit code.

    Raises:
        UsageError: the run is not live, or the drill does not fit it.
        SlurmError: Slurm refuses a signal.
    """
    run = find_run(given.run, find_root(given.root, os.environ))
    facts, attempt = _find_live(run)
    strike = _read_strike(given)
    began = time.time()
    _carry_out(strike, facts, attempt)
    outcome = _wait(strike, facts, attempt, began, given.patience)
    text = json.dumps(asdict(outcome)) if given.json else render_outcome(outcome)
    sys.stdout.write(f"{text}\n")
    return 0 if outcome.back_s is not None else EXIT_BUG


def _read_strike(given: argparse.Namespace) -> _Strike:
    if given.preempt:
        return _Strike("preempt", signal.SIGTERM)
    if given.timeout:
        return _Strike("timeout", signal.SIGUSR2)
    if given.kill_rank is not None:
        return _Strike("kill-rank", signal.SIGKILL, given.kill_rank)
    return _Strike("stall", signal.SIGSTOP, given.stall)


def _find_live(run: RunDirectory) -> tuple[Facts, AttemptDirectory]:
    facts = read_facts(run)
    words = facts.last("attempt_started", "ranks_started", "attempt_ended", "stopped")
    is_live = words is not None and words.kind == "ranks_started"
    number = facts.attempt
    if not is_live or number is None or not _told_step(run, run.attempt(number)):
        message = (
            f"{run.path}: found no ranks that train, expected a live run with its "
            "first step done; see clusterddp.status"
        )
        raise UsageError(message)
    return facts, run.attempt(number)


def _carry_out(strike: _Strike, facts: Facts, attempt: AttemptDirectory) -> None:
    run, job_id = facts.run, facts.job_id
    if strike.rank is not None:
        struck = _strike_rank(strike, facts, attempt, strike.rank)
        _LOG.info("%s: %s", strike.signum.name, struck)
        return
    if job_id is None:
        message = f"{run.path}: a local run, expected one on Slurm for --{strike.what}"
        raise UsageError(f"{message}; try --kill-rank or --stall")
    ledger = Ledger(run, f"login-{socket.gethostname()}-{os.getpid()}")
    ledger.add("drill", what=strike.what, job=job_id, attempt=attempt.number)
    name = strike.signum.name.removeprefix("SIG")
    done = run_program(["scancel", f"--signal={name}", job_id])
    if done.code != 0:
        message = f"scancel --signal={name} {job_id}: {done.err.strip()}; is it yours?"
        raise SlurmError(message)


def _strike_rank(
    strike: _Strike, facts: Facts, attempt: AttemptDirectory, rank: int
) -> str:
    """Send the signal on the rank's own node, as a step beside the ranks."""
    run = facts.run
    if facts.job_id is None:
        struck = strike_here(run, attempt, rank, strike.signum) or ""
    else:
        srun, *options = probe_command(read_run_job(run), sys.executable)
        module = ("-m", "clusterddp.launch.strike", str(run.path), attempt.path.name)
        words = (*module, str(rank), strike.signum.name)
        job = f"--jobid={facts.job_id}"
        struck = run_program([srun, job, *options, *words]).out.strip()
    if not struck:
        message = (
            f"{run.path}: found no rank {rank} of attempt {attempt.number}, expected "
            f"one of {facts.shape.ranks}; ranks count from 0"
        )
        raise UsageError(message)
    return struck


def _wait(
    strike: _Strike,
    facts: Facts,
    attempt: AttemptDirectory,
    began: float,
    patience_s: float,
) -> Outcome:
    """Wait until a later attempt has finished a step, or the run is over."""
    run, asked, told = facts.run, 0.0, 0
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and not _is_back(run, attempt):
        told = max(told, _told_step(run, attempt))
        if facts.job_id is not None and time.monotonic() - asked > _ASK_S:
            asked = time.monotonic()
            _lift(facts.job_id)
        time.sleep(_LOOK_S)
    return _sum_up(strike, run, attempt, began, told)


def _told_step(run: RunDirectory, struck: AttemptDirectory) -> int:
    """Give rank 0's word while it is the struck attempt's; 0 before and afterwards.

    Ranks that were stopped or killed leave no other word. What lies there while the
    ranks start is that of the attempt before, whose steps may be lost already.
    """
    progress = read_json(run.progress) or {}
    step, told = _whole(progress.get("step")), progress.get("time")
    started = _time_of(run, "ranks_started", struck.number)
    is_new = isinstance(told, float) and started is not None and told > started
    is_its_own = run.list_attempts()[-1].number == struck.number
    return step if step is not None and is_new and is_its_own else 0


def _is_back(run: RunDirectory, struck: AttemptDirectory) -> bool:
    return _first_step_after(run, struck) is not None


def _first_step_after(run: RunDirectory, struck: AttemptDirectory) -> float | None:
    """Give when a later attempt had finished its first step; None: not yet."""
    attempts = run.list_attempts()
    record = read_json(attempts[-1].path / "resume.json")
    progress = read_json(run.progress) or {}
    step, told = progress.get("step"), progress.get("time")
    if attempts[-1].number <= struck.number or record is None:
        return None
    resumed = record.get("step")
    is_past = isinstance(step, int) and isinstance(resumed, int) and step > resumed
    started = _time_of(run, "ranks_started", attempts[-1].number)
    is_new = isinstance(told, float) and started is not None and told > started
    return told if is_past and is_new and isinstance(told, float) else None


def _lift(job_id: str) -> None:
    try:
        info = query_job(job_id)
    except SlurmError as error:
        _LOG.warning("%s", error)
        return
    if info is not None and is_held(info.state, info.reason):
        lift_hold(job_id)


def _sum_up(
    strike: _Strike,
    run: RunDirectory,
    attempt: AttemptDirectory,
    began: float,
    told: int,
) -> Outcome:
    ended = _find(run, "attempt_ended", attempt.number)
    record = read_json(run.attempt(attempt.number + 1).path / "resume.json") or {}
    reached = max(told, reached_steps(run).get(attempt.number, 0))
    resumed, back = _whole(record.get("step")), _first_step_after(run, attempt)
    return Outcome(
        strike.what,
        str(ended.values.get("cause")) if ended else None,
        reached,
        resumed,
        max(0, reached - resumed) if resumed is not None else None,
        ended.time - began if ended else None,
        back - began if back is not None else None,
    )


def _find(run: RunDirectory, kind: str, attempt: int) -> Event | None:
    events = (event for event in read_events(run) if event.kind == kind)
    return next((one for one in events if one.values.get("attempt") == attempt), None)


def _time_of(run: RunDirectory, kind: str, attempt: int) -> float | None:
    found = _find(run, kind, attempt)
    return None if found is None else found.time


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def render_outcome(outcome: Outcome) -> str:
    """Give the report of a drill as text; pure."""
    if outcome.cause is None:
        return f"{outcome.what}: the ranks did not leave; see clusterddp.why"
    place = f"reached step {outcome.step}, resumed at {outcome.resumed_at}"
    lines = [
        f"{outcome.what}: seen as {outcome.cause}, after {outcome.stopped_s:.1f} s",
        f"{place}: {outcome.lost_steps} steps lost",
    ]
    if outcome.back_s is None:
        lines.append("it does not go on; see clusterddp.why")
    else:
        lines.append(f"training again after {outcome.back_s:.1f} s")
    return "\n".join(lines)
