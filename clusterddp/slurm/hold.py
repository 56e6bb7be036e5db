"""The holds of a requeued job, which a user may shorten or lift.

The ordinary one is about two minutes by default. From inside it cannot be shortened: a
StartTime set right after the requeue is overwritten when the job has completed; on the
truly pending job it works. The other is for good: a node could not start the job. That
happens when a node's disk is full, and when a node that was out of reach comes back in
the very second in which the job is to start there again ("Duplicate jobid on nodes"):
Slurm drains the node and holds the job until somebody releases it, as its owner may
(all of it measured on 22.05).
"""

import re

from clusterddp.slurm.programs import Runner, run_program

__all__ = ["is_held", "lift_hold", "was_not_started"]

# In the second of its requeue a job's nodes take its start for a left-over of the one
# before. Also those of a slow network, or with a clock that is some seconds off.
_SETTLED_S = 10


def is_held(state: str, reason: str) -> bool:
    """Say whether a job waits for nothing but the end of its hold."""
    return state == "PENDING" and (reason == "BeginTime" or was_not_started(reason))


def was_not_started(reason: str) -> bool:
    """Say whether a node could not start it; squeue and scontrol spell it apart."""
    return reason.replace("_", " ") == "launch failed requeued held"


def lift_hold(job_id: str, run: Runner = run_program) -> bool:
    """Let a held job start ten seconds after its requeue; may be called again.

    One that a node could not start is released, which is all that it waits for.

    The others do not start at once: slurmd says "Job 1 already killed, do not launch
    batch job", and the job is FAILED for good (seen on 22.05, lifted 0.3 s after the
    requeue). All times are the controller's, whatever the clock here says.

    Returns:
        False if Slurm refuses, or does not say when the job was requeued.
    """
    shown = run(["scontrol", "--oneliner", "show", "job", job_id]).out
    reason = re.search(r"\bReason=(\S+)", shown)
    if reason is not None and was_not_started(reason[1]):
        return run(["scontrol", "release", job_id]).code == 0
    requeued, eligible = (
        re.search(rf"\b{name}=(\d+)", shown) for name in ("SubmitTime", "EligibleTime")
    )
    if requeued is None:
        return False
    start = int(requeued[1]) + _SETTLED_S
    if eligible is not None and int(eligible[1]) <= start:
        return True
    done = run(["scontrol", "update", f"JobId={job_id}", f"StartTime=uts{start}"])
    return done.code == 0
