"""Which device a rank uses, right for every way in which Slurm binds GPUs.

CUDA_VISIBLE_DEVICES is never written: it is Slurm's word on what belongs to this
job, its entries may be UUIDs, and re-indexing it from 0 takes GPUs of other jobs.
"""

from collections.abc import Mapping

import torch

from clusterddp.dist.session import current_session
from clusterddp.dist.world import World
from clusterddp.errors import LaunchError

__all__ = ["choose_device", "choose_index", "device"]


def device() -> torch.device:
    """Give the device of this rank.

    Raises:
        LaunchError: init_dist was not called.
    """
    return current_session().device


def choose_index(visible: int, on_node: int, local_rank: int) -> int:
    """Give the index of this rank's GPU among those it sees.

    Args:
        visible: GPUs that this process sees.
        on_node: GPUs of the step on this node, `SLURM_GPUS_ON_NODE`.
        local_rank: rank on this node.

    Raises:
        LaunchError: no GPU is visible, or fewer than ranks on this node.
    """
    if visible == 0:
        message = (
            "device: found no visible GPU, expected one for backend nccl; ask Slurm "
            "for GPUs (--gpus-per-node), or use the backend gloo"
        )
        raise LaunchError(message)
    # Fewer than the node has: Slurm bound GPUs to this task alone
    # (--gpus-per-task, --gpu-bind), and its first is index 0 whatever the rank.
    if visible < on_node:
        return 0
    if local_rank < visible:
        return local_rank
    message = (
        f"device: local rank {local_rank} needs {local_rank + 1} GPUs, but "
        f"{visible} are visible; start as many ranks on a node as it has GPUs"
    )
    raise LaunchError(message)


def choose_device(
    backend: str, world: World, environ: Mapping[str, str]
) -> torch.device:
    """Give the device for a backend: a GPU, or the CPU for gloo and mpi.

    Raises:
        LaunchError: there is no GPU for this rank.
    """
    if backend in {"gloo", "mpi"} or not ("nccl" in backend or _visible()):
        return torch.device("cpu")
    visible = _visible()
    text = environ.get("SLURM_GPUS_ON_NODE", "")
    # Under torchrun the variable describes the task of the agent, not the rank.
    told = world.launcher == "slurm" and text.isascii() and text.isdigit()
    on_node = int(text) if told else visible
    return torch.device("cuda", choose_index(visible, on_node, world.local_rank))


def _visible() -> int:
    return torch.cuda.device_count()
