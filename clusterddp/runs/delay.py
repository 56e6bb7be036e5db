"""How long before the time limit a run's next job asks to be told: learned.

`sbatch --signal` is the job's for its whole life: a requeue keeps it, and scontrol
refuses to change it ("Update of this parameter is not supported", 22.05). So what was
measured counts from the next submission on.
"""

import math
from dataclasses import dataclass

from clusterddp.config.schema import FIRST_DELAY_S, Job
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import read_events
from clusterddp.runs.timing import Timing, read_timing

__all__ = ["Delay", "choose_delay", "delay_in_force", "learn_delay", "with_delay"]

_MARGIN = 1.5
_LEAVE_S = 10.0
_ROUND_S = 10.0


@dataclass(frozen=True)
class Delay:
    """Seconds between the signal and the time limit, and why so many."""

    seconds: float
    reason: str


def learn_delay(timing: Timing, limit_s: float) -> Delay | None:
    """Give the delay that two steps and a save need; pure.

    Half as much again and 10 s to leave in, in tens of seconds; never below the fixed
    default, which the first job had, and never above half of the limit.

    Args:
        timing: what the run has needed so far.
        limit_s: the time limit of the job, in seconds.

    Returns:
        None where no step or no save was measured.
    """
    step, save = timing.step_s, timing.save_s
    if step is None or save is None:
        return None
    needed = (2 * step + save) * _MARGIN + _LEAVE_S
    rounded = math.ceil(needed / _ROUND_S) * _ROUND_S
    reason = f"two steps of {step:.3g} s and a save of {save:.3g} s, with margin"
    if rounded <= FIRST_DELAY_S:
        rounded = FIRST_DELAY_S
        reason = f"{reason}, fit into the default"
    if rounded > limit_s / 2:
        rounded = limit_s / 2
        reason = f"{reason}, but no more than half of slurm.time"
    return Delay(rounded, reason)


def choose_delay(run: RunDirectory, job: Job) -> Delay:
    """Give the delay for a run's next job: the job file's, else what was learned."""
    if job.slurm.signal_delay != "auto":
        return Delay(job.slurm.signal_delay, "slurm.signal_delay")
    learned = learn_delay(read_timing([run]), job.slurm.time)
    if learned is not None:
        return learned
    return Delay(job.slurm.first_delay_s, "the default: nothing was measured yet")


def delay_in_force(run: RunDirectory, job: Job) -> float:
    """Give the delay that the run's newest job was sent with, requeued or not."""
    if job.slurm.signal_delay != "auto":
        return job.slurm.signal_delay
    for event in reversed(read_events(run)):
        told = event.values.get("signal_delay")
        if event.kind == "submitted" and isinstance(told, int | float):
            return float(told)
    return job.slurm.first_delay_s


def with_delay(job: Job, delay: Delay) -> Job:
    """Give the same job with a delay of so many seconds; pure."""
    slurm = job.slurm.model_copy(update={"signal_delay": delay.seconds})
    return job.model_copy(update={"slurm": slurm})
