"""Asking why: everything that is known of one run, read and put before `explain`."""

import time

from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.evidence import AttemptEvidence, read_evidence
from clusterddp.runs.exhibits import Case
from clusterddp.runs.explanation import Explanation, explain
from clusterddp.runs.facts import Facts
from clusterddp.runs.logfiles import read_last_lines
from clusterddp.runs.survey import survey
from clusterddp.slurm.jobs import Phase
from clusterddp.slurm.listing import ListedJob, ask_accounting
from clusterddp.slurm.programs import Runner, run_program

__all__ = ["examine"]


def examine(
    run: RunDirectory, now: float | None = None, program: Runner = run_program
) -> Explanation:
    """Read all that is known of a run, ask Slurm, and explain it."""
    moment = time.time() if now is None else now
    look = survey([run], moment, program)[0]
    facts = look.facts
    number = _last_ended(facts)
    job, before = _ask_accounting(look.job, program)
    case = Case(
        facts,
        look.status,
        job,
        before,
        None if number is None else read_evidence(facts, number),
        _newest(facts, number),
        _read_batch_log(run),
    )
    return explain(case)


def _last_ended(facts: Facts) -> int | None:
    """Give the newest attempt that ended badly; of a clean run the newest one."""
    ends = [event.values for event in facts.events if event.kind == "attempt_ended"]
    bad = [values for values in ends if values.get("cause") != "completed"]
    found = bad or ends
    return int(str(found[-1].get("attempt", 0))) if found else None


def _ask_accounting(
    job: ListedJob | None, program: Runner
) -> tuple[ListedJob | None, ListedJob | None]:
    """Give the job with its exit code, and how a waiting job's last start ended.

    The queue tells neither.
    """
    if job is None or job.phase not in (Phase.OVER, Phase.WAITING) or job.exit_code:
        return job, None
    counted = (ask_accounting([job.id], program) or {}).get(job.id)
    if counted is None or counted.phase is not Phase.OVER:
        return job, None
    return (counted, None) if job.phase is Phase.OVER else (job, counted)


def _newest(facts: Facts, ended: int | None) -> AttemptEvidence | None:
    """Give what the newest attempt left, if it has no end in the ledger."""
    if facts.attempt is None or facts.attempt == ended:
        return None
    found = read_evidence(facts, facts.attempt)
    return found if found.ended is None else None


def _read_batch_log(run: RunDirectory) -> tuple[str, ...]:
    logs = sorted(run.submitit.glob("*_log.out"), key=lambda path: path.stat().st_mtime)
    return read_last_lines(logs[-1]) if logs else ()
