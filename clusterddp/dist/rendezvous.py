"""The meeting of the ranks that srun started: one TCPStore, hosted by rank 0.

The socket is bound once and handed to the store, which closes the window in which
a "free" port is taken by somebody else, and the cookie closes the one in which a
rank talks to the store of another step. torchrun needs none of this.
"""

import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, TCPStore

from clusterddp.dist.address import (
    LOOPBACK,
    address_candidates,
    listen,
    listen_within,
)
from clusterddp.dist.arguments import PortRange
from clusterddp.dist.arrival import Arrival, node_tasks, roll_call
from clusterddp.dist.channel import (
    AddressRecord,
    channel_directory,
    fixed_address,
    publish_address,
    rendezvous_key,
    unpublish_address,
    wait_for_address,
)
from clusterddp.dist.client import COOKIE, connect, with_short_lookups
from clusterddp.dist.world import World
from clusterddp.errors import RendezvousError

__all__ = ["Meeting", "Place", "host_store", "meet", "meet_store", "meeting_place"]

_PAUSE_S = 0.2
_GRACE_S = 30.0


@dataclass(frozen=True)
class Place:
    """Where and under which name a group meets.

    `fixed` is MASTER_ADDR and MASTER_PORT, if the user gave both; `ports` are those
    that rank 0 may bind, if the site allows only some.
    """

    key: str
    directory: Path | None
    loopback: bool
    fixed: tuple[str, int] | None = None
    ports: PortRange | None = None


@dataclass(frozen=True)
class Meeting:
    """The store that all share, and the address at which this rank reaches it."""

    store: TCPStore
    address: str
    port: int
    place: Place

    def close(self) -> None:
        """Remove the published record, once everybody has arrived."""
        if self.place.directory is not None:
            unpublish_address(self.place.directory, self.place.key)


def meeting_place(
    environ: Mapping[str, str],
    num_nodes: int,
    generation: int = 0,
    ports: PortRange | None = None,
) -> Place:
    """Decide where the ranks of this step meet.

    MASTER_ADDR and MASTER_PORT are honoured where both are set; one alone is
    taken for left over.

    Raises:
        RendezvousError: MASTER_PORT is no port, or a local directory is not ours.
    """
    key = rendezvous_key(environ, generation)
    if fixed := fixed_address(environ):
        return Place(key, None, loopback=False, fixed=fixed)
    directory = channel_directory(environ, num_nodes)
    return Place(key, directory, loopback=num_nodes == 1, ports=ports)


def meet(place: Place, rank: int, world_size: int, timeout: timedelta) -> Meeting:
    """Open the store on rank 0 and connect to it on the others.

    Raises:
        RendezvousError: the port is in use, or rank 0 was not found in time.
    """
    if rank == 0:
        return _host(place, world_size, timeout)
    if place.fixed:
        return _join_fixed(place, place.fixed, timeout)
    return _join_published(place, timeout)


def meet_store(
    directory: Path,
    world: World,
    timeout: timedelta,
    *,
    name: str,
    ports: PortRange | None = None,
) -> TCPStore:
    """Give a store that one process of each task shares, found by a record.

    For launchers that start ranks of their own, such as the agent of each node.

    Args:
        directory: where rank 0 publishes, on a file system that all see.
        world: of the launchers themselves, not of the ranks that they start.
        timeout: how long they wait for one another.
        name: what meets, so that it is not taken for the ranks.
        ports: where the first may listen; None for any.

    Raises:
        RendezvousError: they did not meet; it names those missing.
    """
    key = f"{rendezvous_key(os.environ)}.{name}"
    place = Place(key, directory, loopback=world.num_nodes == 1, ports=ports)
    meeting = meet(place, world.rank, world.world_size, timeout)
    me = Arrival(
        rank=world.rank,
        world_size=world.world_size,
        node_rank=world.node_rank,
        host=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        pid=os.getpid(),
        backend=name,
    )
    roll = PrefixStore("clusterddp/roll", meeting.store)
    roll_call(roll, me, node_tasks(os.environ), timeout)
    if world.rank == 0:
        meeting.close()
    return meeting.store


def host_store(
    timeout: timedelta, *, port: int = 0, ports: PortRange | None, loopback: bool
) -> TCPStore:
    """Give a store that listens here, for whoever is told its port.

    Args:
        timeout: of its operations.
        port: where it listens; 0 for any.
        ports: where it may listen; None for anywhere.
        loopback: whether it is for this host alone.

    Raises:
        RendezvousError: the port is in use, or all of the range are.
    """
    if ports and not port:
        server = listen_within(ports, loopback=loopback)
    else:
        server = listen(port, loopback=loopback)
    return _open(server, server.getsockname()[1], timeout)


def _host(place: Place, world_size: int, timeout: timedelta) -> Meeting:
    fixed = place.fixed[1] if place.fixed else 0
    store = host_store(
        timeout, port=fixed, ports=place.ports, loopback=place.loopback
    )
    port = store.port
    # At a fixed address nothing is published: the key, known to all ranks of
    # this step and no others, takes the place of the cookie.
    cookie = place.key if place.fixed else secrets.token_hex(16)
    store.set(COOKIE, cookie)
    if place.fixed:
        return Meeting(store, place.fixed[0], port, place)
    return Meeting(store, _publish(place, world_size, port, cookie), port, place)


def _open(server: socket.socket, port: int, timeout: timedelta) -> TCPStore:
    """Give the store that listens on this socket; it owns it from here on."""

    def make() -> TCPStore:
        # The server's own client must not depend on how this host's name resolves.
        return TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=server.detach(),
        )

    # The constructor keeps to its own timeout, but not closely.
    limit = timeout.total_seconds() + _GRACE_S
    try:
        return with_short_lookups(make, limit)
    except TimeoutError as error:
        message = (
            f"rendezvous: the store of rank 0 did not answer on its own port {port} "
            f"within {limit:g} s, expected it at once; is loopback up on "
            f"{socket.gethostname()}, and does its name server answer?"
        )
        raise RendezvousError(message) from error


def _publish(place: Place, world_size: int, port: int, cookie: str) -> str:
    """Let the others know where rank 0 listens; give its preferred address."""
    addresses = address_candidates(os.environ, loopback=place.loopback)
    record = AddressRecord(
        key=place.key,
        addresses=tuple(addresses),
        port=port,
        cookie=cookie,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    publish_address(_directory(place), place.key, record)
    return addresses[0]


def _directory(place: Place) -> Path:
    return place.directory or Path()


def _join_published(place: Place, timeout: timedelta) -> Meeting:
    def accept(record: AddressRecord) -> Meeting | None:
        for address in record.addresses:
            store = connect(address, record.port, record.cookie, timeout)
            if store is not None:
                return Meeting(store, address, record.port, place)
        return None

    seconds = timeout.total_seconds()
    return wait_for_address(_directory(place), place.key, accept, seconds)


def _join_fixed(place: Place, fixed: tuple[str, int], timeout: timedelta) -> Meeting:
    host, port = fixed
    deadline = time.monotonic() + timeout.total_seconds()
    while (store := connect(host, port, place.key, timeout)) is None:
        if time.monotonic() > deadline:
            message = (
                f"rendezvous: no store of this step answered at {host}:{port} "
                f"(MASTER_ADDR, MASTER_PORT) within {timeout.total_seconds():g} s; "
                "is rank 0 on that host, and the port its own? Unset both "
                "variables and rank 0 publishes its address"
            )
            raise RendezvousError(message)
        time.sleep(_PAUSE_S)
    return Meeting(store, host, port, place)
