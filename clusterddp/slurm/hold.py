"""The hold of a requeued job: about two minutes by default, and a user may shorten it.

From inside it cannot be: a StartTime set right after the requeue is overwritten when
the job has completed; on the truly pending job it works (measured on 22.05).
"""

import re

from clusterddp.slurm.programs import Runner, run_program

__all__ = ["is_held", "lift_hold"]

# In the second of its requeue a job's nodes take its start for a left-over of the one
# before. Also those of a slow network, or with a clock that is some seconds off.
_SETTLED_S = 10


def is_held(state: str, reason: str) -> bool:
    """Say whether a job waits for nothing but the end of its hold."""
    return state == "PENDING" and reason == "BeginTime"


def lift_hold(job_id: str, run: Runner = run_program) -> bool:
    """Let a held job start ten seconds after its requeue; may be called again.

    Not at once: slurmd says "Job 1 already killed, do not launch batch job", and the
    job is FAILED for good (seen on 22.05, lifted 0.3 s after the requeue). All times
    are the controller's, whatever the clock here says.

    Returns:
        False if Slurm refuses, or does not say when the job was requeued.
    """
    shown = run(["scontrol", "--oneliner", "show", "job", job_id]).out
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
