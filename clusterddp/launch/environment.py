"""The environment that the ranks of an attempt start with; a pure function."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from clusterddp.runs.directory import AttemptDirectory, RunDirectory

if TYPE_CHECKING:  # pydantic's part of the house, which agents do without
    from clusterddp.config.schema import Job

__all__ = ["AGENT", "ATTEMPT", "LAUNCHER", "OUTPUT", "RUN_DIR", "rank_environment"]

RUN_DIR = "CLUSTERDDP_RUN_DIR"
ATTEMPT = "CLUSTERDDP_ATTEMPT"
LAUNCHER = "CLUSTERDDP_LAUNCHER"
AGENT = "CLUSTERDDP_AGENT"
"""The pid of our agent, for the ranks that it started."""
OUTPUT = "CLUSTERDDP_OUTPUT"
"""Whose output is kept, for the ranks of our agent: `Job.kept_output`."""

# Both carry what sbatch was told per task. One agent per node asks for other
# numbers, and srun refuses to start where SLURM_CPUS_PER_TASK and
# SLURM_TRES_PER_TASK differ (measured).
_PER_TASK = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")
_FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def rank_environment(
    environ: Mapping[str, str],
    job: "Job",
    run: RunDirectory,
    attempt: AttemptDirectory,
) -> dict[str, str]:
    """Give what srun, or the local agent, is started with.

    The snapshot of the user's code comes first on PYTHONPATH; the thread count is
    the same under every launcher, because it changes bits (facts: a small CNN gave
    three digests at 1, 2 and 4 threads).
    """
    dropped = {*_PER_TASK, *_FOREIGN}
    kept = {
        name: value
        for name, value in environ.items()
        if name not in dropped and not name.startswith("TORCHELASTIC_")
    }
    code = [str(run.code.resolve())] if run.code.is_dir() else []
    path = [*code, *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **kept,
        "PYTHONUNBUFFERED": "1",
        **({"PYTHONPATH": ":".join(path)} if path else {}),
        "OMP_NUM_THREADS": str(job.threads),
        **job.slurm.env,
        RUN_DIR: str(run.path),
        ATTEMPT: attempt.path.name,
        LAUNCHER: job.launcher,
    }
