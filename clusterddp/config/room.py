"""Whether a time limit leaves room for training between start and signal; pure."""

from clusterddp.config.schema import Job

__all__ = ["EARLY_S", "judge_room"]

EARLY_S = 60.0
"""Slurm may send the signal so much earlier than asked for (sbatch(1), --signal)."""

_START_S = 30.0
_START_WORDS = "about 30s to start"


def judge_room(
    job: Job, start_s: float | None = None, interval_s: float | None = None
) -> str | None:
    """Give what is wrong with `slurm.time`; None if nothing.

    What leaves no room at all is refused when the file is read; this is what can work
    but makes little or no headway in each job.

    Args:
        job: the job.
        start_s: what earlier runs needed until their first step, in seconds.
        interval_s: the time between two saves of earlier runs, where the job file
            gives it in steps or epochs.
    """
    if job.where != "slurm":
        return None
    limit, delay = job.slurm.time, job.slurm.first_delay_s
    start = _START_S if start_s is None else start_s
    words = _START_WORDS if start_s is None else f"{start_s:.0f}s to start (measured)"
    room = limit - delay - EARLY_S - start
    spent = f"{words}, and the signal {delay:g}s before the end or {EARLY_S:g}s earlier"
    if room <= 0:
        return (
            f"found {limit:g}s, expected more than {words} and {delay + EARLY_S:g}s "
            "before the end, when the ranks may be asked to stop: a job may not finish "
            "a step; raise slurm.time"
        )
    interval = job.checkpoint.every.seconds or interval_s
    if interval is None or room >= interval:
        return None
    return (
        f"found {limit:g}s, of which {room:.0f}s are left to train ({spent}), expected "
        f"room for a checkpoint every {interval:.0f}s: a job that fails has saved "
        "nothing; raise slurm.time or save more often (checkpoint.every)"
    )
