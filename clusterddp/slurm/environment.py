"""The environment around sbatch: what must not leak into a new job."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "CleanEnvironment",
    "clean_environment",
    "job_address",
    "restart_count",
]

_KEPT = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CLUSTER_NAME", "SLURM_JWT"}
_INHERITED = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "PMI2_")
_RANK_VARIABLES = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
}
_RANK_PREFIXES = ("TORCHELASTIC_", "CLUSTERDDP_")
_OURS_TO_KEEP = {"CLUSTERDDP_RUNS", "CLUSTERDDP_SHARED_TMP", "CLUSTERDDP_TEMPLATES"}
# Options that the script always writes: the environment would beat the #SBATCH
# lines (measured: SBATCH_TIMELIMIT gave another limit, SBATCH_SIGNAL=B:... killed
# the shell).
_ALWAYS_WRITTEN = {
    "SBATCH_SIGNAL",
    "SBATCH_REQUEUE",
    "SBATCH_NO_REQUEUE",
    "SBATCH_OPEN_MODE",
    "SBATCH_EXPORT",
    "SBATCH_OUTPUT",
    "SBATCH_ERROR",
    "SBATCH_JOB_NAME",
    "SBATCH_TIMELIMIT",
    "SBATCH_ARRAY_INX",
    "SBATCH_WCKEY",
}
_WRITTEN_WITH = {
    "partition": "SBATCH_PARTITION",
    "account": "SBATCH_ACCOUNT",
    "qos": "SBATCH_QOS",
    "constraint": "SBATCH_CONSTRAINT",
    "exclude": "SBATCH_EXCLUDE",
    "gpus_per_node": "SBATCH_GPUS_PER_NODE",
    "mem": "SBATCH_MEM_PER_NODE",
}


@dataclass(frozen=True)
class CleanEnvironment:
    """What sbatch is given, and the names that were dropped for it."""

    variables: dict[str, str]
    dropped: tuple[str, ...]


def clean_environment(
    environ: Mapping[str, str], written: frozenset[str]
) -> CleanEnvironment:
    """Give the environment for sbatch; pure.

    Args:
        environ: the environment of the submitting shell.
        written: the keys of the `slurm:` section that the script has lines for.

    A `SBATCH_*` variable whose option the script writes is dropped, the rest are
    the site's defaults and stay; inside a job everything that belongs to that job
    goes.
    """
    is_in_job = "SLURM_JOB_ID" in environ
    ours = _ALWAYS_WRITTEN | {
        variable for key, variable in _WRITTEN_WITH.items() if key in written
    }
    dropped = {
        name
        for name in environ
        if name in ours
        or name in _RANK_VARIABLES
        or (name.startswith(_RANK_PREFIXES) and name not in _OURS_TO_KEEP)
        or (is_in_job and name.startswith(_INHERITED) and name not in _KEPT)
    }
    kept = {name: value for name, value in environ.items() if name not in dropped}
    return CleanEnvironment(kept, tuple(sorted(dropped)))


def job_address(environ: Mapping[str, str]) -> str | None:
    """Give the id by which this process's job is addressed; None outside a job.

    An array element is `<array>_<task>`: its own job id may be the whole array's
    (measured: `scontrol requeue $SLURM_JOB_ID` requeued all three elements).
    """
    array = environ.get("SLURM_ARRAY_JOB_ID")
    task = environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return environ.get("SLURM_JOB_ID") or None


def restart_count(environ: Mapping[str, str]) -> int:
    """Give how often this process's job had been requeued when it was started."""
    return int(environ.get("SLURM_RESTART_COUNT") or 0)
