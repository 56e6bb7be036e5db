"""The hold of a requeued job: about two minutes by default, and a user may lift it.

From inside it cannot be lifted: `StartTime=now` right after the requeue is overwritten
when the job has completed; on the truly pending job it works (measured on 22.05).
"""

from clusterddp.slurm.programs import Runner, run_program

__all__ = ["is_held", "lift_hold"]


def is_held(state: str, reason: str) -> bool:
    """Say whether a job waits for nothing but the end of its hold."""
    return state == "PENDING" and reason == "BeginTime"


def lift_hold(job_id: str, run: Runner = run_program) -> bool:
    """Let a held job start now; False if Slurm refuses."""
    done = run(["scontrol", "update", f"JobId={job_id}", "StartTime=now"])
    return done.code == 0
