"""Looking at many runs: their directories once, squeue once, sacct at most once."""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from clusterddp.processes import is_same_process
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.facts import Facts, read_facts
from clusterddp.runs.status import Status, derive_status, exit_code, is_over
from clusterddp.slurm.listing import ListedJob, ask_accounting, ask_queue
from clusterddp.slurm.programs import Runner, run_program

__all__ = ["Look", "survey"]


@dataclass(frozen=True)
class Look:
    """One run as it was found: its facts, what Slurm said, and what follows."""

    facts: Facts
    job: ListedJob | None
    status: Status


def survey(
    runs: Sequence[RunDirectory], now: float | None = None, run: Runner = run_program
) -> list[Look]:
    """Look at runs, in their order.

    Slurm is asked about those only that have not ended by their own word.

    Args:
        runs: the runs.
        now: the time; the clock's when None.
        run: what runs a program.
    """
    moment = time.time() if now is None else now
    facts = [read_facts(one) for one in runs]
    asked = [one for one in facts if one.job_id is not None and not is_over(one)]
    jobs, answered = _ask(asked, run)
    return [_look(one, jobs, moment, answered=answered) for one in facts]


def _ask(asked: Sequence[Facts], run: Runner) -> tuple[dict[str, ListedJob], bool]:
    """Ask the queue about all, the accounting about those that it has forgotten."""
    queued = ask_queue(sorted({str(one.job_id) for one in asked}), run)
    known = queued or {}
    left = {str(one.job_id) for one in asked if exit_code(one) is None} - set(known)
    counted = ask_accounting(sorted(left), run)
    answered = queued is not None or bool(counted)
    return {**(counted or {}), **known}, answered


def _look(
    facts: Facts, jobs: dict[str, ListedJob], now: float, *, answered: bool
) -> Look:
    job = jobs.get(facts.job_id or "")
    alive = _is_alive(facts) if facts.job_id is None else None
    status = derive_status(facts, job, now, answered=answered, alive=alive)
    return Look(facts, job, status)


def _is_alive(facts: Facts) -> bool | None:
    """Say whether a local run's supervisor lives; None when that is another host's."""
    owner = facts.owner or {}
    pid, created = owner.get("pid"), owner.get("created")
    if owner.get("host") != socket.gethostname() or not isinstance(pid, int):
        return None
    return is_same_process(pid, float(str(created)))
