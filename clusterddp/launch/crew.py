"""Which nodes of a job its ranks get, when some of them are lost; pure functions."""

from clusterddp.config.schema import Job
from clusterddp.runs.decision import Place
from clusterddp.slurm.allocation import Allocation

__all__ = ["count_nodes", "find_place", "say_shrunk"]


def count_nodes(job: Job, allocation: Allocation | None) -> int:
    """Give how many nodes the ranks get: fewer than asked for where some are lost.

    Only a job that may shrink takes what is left; any other fails aloud.
    """
    wanted = job.slurm.nodes
    left = len(allocation.nodes) if allocation is not None else 0
    return min(wanted, left) if left and job.retry.shrink else wanted


def say_shrunk(job: Job, allocation: Allocation | None) -> dict[str, int]:
    """Give how many ranks there are, and of how many; empty where all are there."""
    nodes, slurm = count_nodes(job, allocation), job.slurm
    if nodes == slurm.nodes:
        return {}
    return {"ranks": nodes * slurm.tasks_per_node, "of": job.world_size}


def find_place(job: Job, allocation: Allocation | None, *, is_requeued: bool) -> Place:
    """Say where a run is, and with which nodes it could go on there.

    Args:
        job: the job file's value.
        allocation: the job, without the nodes that were given up; None: local.
        is_requeued: whether Slurm has taken the allocation away already.
    """
    if allocation is None:
        return Place(on_slurm=False)
    is_ours = job.outlives_nodes and not is_requeued
    nodes = allocation.nodes if is_ours else ()
    return Place(on_slurm=True, nodes=nodes, wanted=job.slurm.nodes)
