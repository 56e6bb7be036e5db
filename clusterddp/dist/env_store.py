"""The store of torch's own `env://`, at MASTER_ADDR and MASTER_PORT.

All meetings of a process have the same address there. A rank that comes to the next one
while rank 0 still leaves the last finds a store that is about to close.
"""

import os
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import DistError, Store

from clusterddp.dist.world import World
from clusterddp.errors import RendezvousError

__all__ = ["open_env_store"]

_PAUSE_S = 0.05


def open_env_store(world: World, generation: int, timeout: timedelta) -> Store:
    """Open it, and where it is not the first of this process, see that it is the new.

    Args:
        world: this rank among the others.
        generation: the how manieth meeting of this process it is.
        timeout: how long the ranks wait for one another.

    Raises:
        RendezvousError: nobody was there, or not all came.
    """
    if generation == 0:
        return _open(timeout)
    sign = f"clusterddp/meeting.{generation}"
    if world.rank == 0:
        store = _open(timeout)
        store.set(sign, "")
        return store
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        rest = timedelta(seconds=max(1.0, deadline - time.monotonic()))
        try:
            store = _open(rest)
            store.wait([sign], rest)
        except (RendezvousError, DistError) as error:
            if time.monotonic() > deadline:
                raise _alone(world, generation, timeout) from error
            time.sleep(_PAUSE_S)
        else:
            return store


def _alone(world: World, generation: int, timeout: timedelta) -> RendezvousError:
    return RendezvousError(
        f"rendezvous: rank {world.rank} did not find rank 0 at meeting "
        f"{generation + 1} of this process within {timeout.total_seconds():g} s; see "
        "the log of rank 0 for the reason"
    )


def _open(timeout: timedelta) -> Store:
    try:
        store: Store = next(iter(dist.rendezvous("env://", timeout=timeout)))[0]
    except DistError as error:
        where = ":".join(os.environ[f"MASTER_{name}"] for name in ("ADDR", "PORT"))
        message = (
            f"rendezvous: env:// at {where} failed on rank {os.environ['RANK']} of "
            f"{os.environ['WORLD_SIZE']}: {str(error).splitlines()[0]}; are all "
            "ranks started, and is MASTER_PORT free on the host of rank 0?"
        )
        raise RendezvousError(message) from error
    return store
