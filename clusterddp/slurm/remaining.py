"""How long the job may still run, asked for when it matters: at a stop."""

from collections.abc import Callable, Mapping, Sequence

from clusterddp.errors import SlurmError
from clusterddp.slurm.environment import job_address
from clusterddp.slurm.jobs import query_job
from clusterddp.slurm.programs import Completed, Runner, run_program

__all__ = ["seconds_left"]

_ANSWER_S = 3.0


def seconds_left(
    environ: Mapping[str, str],
    clock: Callable[[], float],
    run: Runner | None = None,
) -> float | None:
    """Give the seconds until Slurm ends this process's job.

    The controller knows best: somebody may have changed the limit, and a preemption
    with a grace time moves the end. Where scontrol is not at hand (a container), what
    the job was started with has to do, which Slurm tells since 23.02.

    Args:
        environ: the process's environment.
        clock: gives the seconds since the epoch.
        run: what runs scontrol; a short patience when None.

    Returns:
        None outside a job, or where nobody says.
    """
    job = job_address(environ)
    if job is None:
        return None
    end: float | None = None
    try:
        info = query_job(job, run or _run_briefly)
        end = None if info is None else info.end_time
    except SlurmError:
        told = environ.get("SLURM_JOB_END_TIME", "")
        end = float(told) if told.isdigit() else None
    return None if end is None else end - clock()


def _run_briefly(arguments: Sequence[str]) -> Completed:
    return run_program(arguments, timeout_s=_ANSWER_S)
