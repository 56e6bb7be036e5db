"""Bring the ranks together under any launcher: one store, and everybody there."""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch.distributed import HashStore, PrefixStore, Store

from clusterddp.dist.address import (
    LOOPBACK,
    interface_of,
    is_hostname_loopback,
    source_address,
)
from clusterddp.dist.arguments import PortRange
from clusterddp.dist.arrival import Arrival, node_tasks, roll_call
from clusterddp.dist.env_store import open_env_store
from clusterddp.dist.rendezvous import Meeting, meet, meeting_place
from clusterddp.dist.restart import agree_on_start, outlives_ranks
from clusterddp.dist.world import World

__all__ = ["Terms", "Variables", "assemble"]

Variables = dict[str, str | None]


@dataclass(frozen=True)
class Terms:
    """How the ranks are to meet.

    Attributes:
        timeout: how long they wait for one another.
        generation: the how manieth meeting of this process it is.
        ports: where rank 0 may listen; None for any.
    """

    timeout: timedelta
    generation: int = 0
    ports: PortRange | None = None


def assemble(
    world: World,
    backend: str,
    device: torch.device,
    terms: Terms,
) -> tuple[Store, str, Variables]:
    """Open the store that all ranks share, and see that all of them are there.

    Gives the store, what to append to names in it that are for this meeting alone,
    and the environment variables to set (None: to remove).

    Raises:
        RendezvousError: the ranks did not meet; it names those missing.
    """
    variables: Variables = {}
    base, master, meeting = _open_store(world, terms)
    suffix = f".{terms.generation}" if terms.generation else ""
    try:
        if world.world_size > 1:
            if world.launcher == "pytorch" and outlives_ranks(os.environ):
                store = PrefixStore(f"clusterddp/start{suffix}", base)
                suffix += f".{agree_on_start(store, world, terms.timeout)}"
            me = _introduce(world, backend, device, master)
            roll = PrefixStore(f"clusterddp/roll{suffix}", base)
            came = _call_roll(roll, me, world.launcher, terms.timeout)
            variables |= _gloo_interface(me, world, came)
    finally:
        # Also where somebody is missing: a record must not outlive its server.
        if meeting and world.rank == 0:
            meeting.close()
    if world.launcher == "slurm":
        variables |= _usual_variables(world, master, meeting.port if meeting else 0)
    return base, suffix, variables


def _open_store(world: World, terms: Terms) -> tuple[Store, str, Meeting | None]:
    if world.launcher == "pytorch":
        store = open_env_store(world, terms.generation, terms.timeout)
        return store, os.environ["MASTER_ADDR"], None
    if world.world_size == 1:
        return HashStore(), LOOPBACK, None
    generation, ports = terms.generation, terms.ports
    place = meeting_place(os.environ, world.num_nodes, generation, ports)
    meeting = meet(place, world.rank, world.world_size, terms.timeout)
    return meeting.store, meeting.address, meeting


def _call_roll(
    roll: Store, me: Arrival, launcher: str, timeout: timedelta
) -> list[Arrival]:
    # torchrun numbers its groups in an order of its own, not that of the nodes.
    nodes = node_tasks(os.environ) if launcher == "slurm" else []
    return roll_call(roll, me, nodes, timeout)


def _introduce(
    world: World, backend: str, device: torch.device, master: str
) -> Arrival:
    several = world.num_nodes > 1
    nccl = device.type == "cuda" and "nccl" in backend
    uuid = torch.cuda.get_device_properties(device).uuid if nccl else ""
    return Arrival(
        rank=world.rank,
        world_size=world.world_size,
        node_rank=world.node_rank,
        host=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        pid=os.getpid(),
        backend=backend,
        address=(source_address(master) if several else None) or "",
        gpu=str(uuid),
    )


def _gloo_interface(me: Arrival, world: World, came: list[Arrival]) -> Variables:
    """Name the interface for gloo where it would bind to loopback by itself."""
    needed = "gloo" in me.backend and world.num_nodes > 1 and is_hostname_loopback()
    if not needed or os.environ.get("GLOO_SOCKET_IFNAME"):
        return {}
    # Rank 0 looks towards a rank of another node, the others towards rank 0.
    peers = [other.address for other in came if other.node_rank != me.node_rank]
    source = source_address(peers[0]) if peers else me.address
    interface = interface_of(source) if source else None
    return {"GLOO_SOCKET_IFNAME": interface} if interface else {}


def _usual_variables(world: World, host: str, port: int) -> Variables:
    """Give what torchrun would have set; deepspeed and others read it."""
    return {
        # Left over from a torchrun around srun it makes every rank a client.
        "TORCHELASTIC_USE_AGENT_STORE": None,
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.world_size),
        "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_world_size),
        "NODE_RANK": str(world.node_rank),
        "GROUP_RANK": str(world.node_rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }
