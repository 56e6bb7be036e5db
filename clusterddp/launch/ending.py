"""All that is known when the ranks of an attempt are gone, put together."""

import re
import time
from typing import TypedDict

from clusterddp.errors import SlurmError
from clusterddp.files import read_json
from clusterddp.launch.stacks import find_silent
from clusterddp.launch.watch import Seen, read_last_words
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.history import is_cancel_requested
from clusterddp.runs.ledger import read_events
from clusterddp.runs.verdict import Ending, read_summary, read_verdicts
from clusterddp.slurm.allocation import Allocation
from clusterddp.slurm.jobs import JobInfo, Phase
from clusterddp.slurm.nodes import lost_nodes
from clusterddp.slurm.patience import patiently

__all__ = ["collect_ending", "describe_job"]


class JobFacts(TypedDict, total=False):
    """What the state of a job says about an attempt's end; fields of `Ending`."""

    is_interrupted: bool
    is_cancelled: bool
    is_requeued: bool
    is_preempted: bool
    seconds_left: float | None
    lost_nodes: tuple[str, ...]


_AT_THE_LIMIT = JobFacts(seconds_left=0.0)


def collect_ending(
    run: RunDirectory,
    attempt: AttemptDirectory,
    seen: Seen,
    allocation: Allocation | None,
    *,
    is_interrupted: bool,
) -> Ending:
    """Read verdicts and logs, and ask Slurm, once the ranks are gone.

    Args:
        run: the run.
        attempt: the attempt that has ended.
        seen: what was seen while it ran.
        allocation: the job; None for a local run.
        is_interrupted: whether this process was asked to stop.
    """
    said = read_last_words(attempt.step_errors)
    summary = read_summary(attempt)
    facts = JobFacts(is_interrupted=is_interrupted)
    if allocation is not None:
        facts = _ask(run, allocation, said)
        if summary is not None and summary.cause == "stopped":
            facts.update(_rehearse(run, attempt))
    return Ending(
        seen.code,
        read_verdicts(attempt),
        summary,
        has_progress=bool((read_json(run.progress) or {}).get("step")),
        is_stalled=seen.is_stalled,
        was_suspended=seen.was_suspended,
        never_started=seen.never_started,
        silent=find_silent(attempt) if seen.is_stalled else None,
        said=said,
        **facts,
    )


def _ask(run: RunDirectory, allocation: Allocation, said: str) -> JobFacts:
    """Ask how the job stands, for two minutes while the controller is unwell.

    Without an answer nothing is known: then nothing is requeued, and the ranks are
    started again in the allocation.
    """
    try:
        info = patiently(allocation.query)
    except SlurmError:
        return JobFacts()
    facts = describe_job(info, allocation)
    if is_cancel_requested(run, allocation.address):
        facts["is_cancelled"] = True
    if not facts.get("is_cancelled") and not facts.get("is_preempted"):
        facts["lost_nodes"] = _find_lost(allocation, said)
    return facts


def _rehearse(run: RunDirectory, attempt: AttemptDirectory) -> JobFacts:
    """Take the stop that a drill has asked for as the cause it rehearses."""
    for event in read_events(run):
        is_drill = event.kind == "drill"
        if is_drill and event.values.get("attempt") == attempt.number:
            is_preemption = event.values.get("what") == "preempt"
            return JobFacts(is_preempted=True) if is_preemption else _AT_THE_LIMIT
    return JobFacts()


def describe_job(info: JobInfo, allocation: Allocation) -> JobFacts:
    """Say what the state of the job tells about an attempt's end.

    EndTime is the limit only while the job runs; after scancel it is the time of the
    cancellation (measured on 22.05), so the reason tells a time limit from a cancel.
    """
    is_over = info.phase is Phase.OVER or info.state == "COMPLETING"
    is_requeued = info.phase is Phase.WAITING or info.restarts > allocation.restarts
    is_timeout = info.state == "TIMEOUT" or info.reason == "TimeLimit"
    word = _final_word(info, allocation) if is_over and not is_requeued else ""
    is_preempted = info.preempt_time is not None and not is_requeued
    is_own_end = is_timeout or is_requeued or word.startswith(_NOT_CANCELLED)
    left = 0.0 if is_timeout else None
    if not is_over and info.end_time is not None:
        left = info.end_time - time.time()
    return JobFacts(
        is_cancelled=is_over and not is_own_end,
        is_requeued=is_requeued,
        is_preempted=is_preempted and (not is_over or word.startswith("PREEMPTED")),
        seconds_left=left,
    )


_NOT_CANCELLED = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT", "DEADLINE")


def _final_word(info: JobInfo, allocation: Allocation) -> str:
    """Tell a scancel from another end of the job.

    While the job is COMPLETING they look alike to the controller, also with a
    PreemptTime (measured); the accounting knows at once. Where it says nothing the job
    counts as cancelled: a run that somebody wants back can be named, one that rises
    from the dead cannot.
    """
    is_settled = info.phase is Phase.OVER
    return info.state if is_settled else allocation.query_accounting()


# srun of 22.05: `srun: error: Node failure on n3`, and it may still exit with 0.
_NODE_FAILURE = re.compile(r"Node failure on (\S+)")


def _find_lost(allocation: Allocation, said: str) -> tuple[str, ...]:
    """Give the nodes that Slurm or srun has given up."""
    named = {name.rstrip(",.") for name in _NODE_FAILURE.findall(said)}
    lost = lost_nodes(allocation.nodes, allocation.run)
    return tuple(node for node in allocation.nodes if node in named or node in lost)
