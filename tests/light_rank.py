"""One light rank: the real world, channel and addresses, without torch.

    srun --label python -m tests.light_rank DIRECTORY [leave]

Rank 0 listens and publishes; each other rank finds it, checks the cookie and signs in.
Then every rank prints one line of JSON: what it takes itself for, the address of the
machine that it really runs on, who met, and what the doctor says. With `leave`, rank 0
goes without taking its record away, as a rank that was killed.
"""

import json
import os
import secrets
import socket
import sys
from dataclasses import asdict
from pathlib import Path

import psutil

from clusterddp.dist.address import LOOPBACK, address_candidates, listen
from clusterddp.dist.channel import (
    AddressRecord,
    channel_directory,
    publish_address,
    rendezvous_key,
    unpublish_address,
    wait_for_address,
)
from clusterddp.dist.diagnosis import diagnose
from clusterddp.dist.world import World, world_from_environment

TIMEOUT_S = 60


def main() -> None:
    """Meet the others and print what came of it."""
    if len(sys.argv) > 1:
        os.environ["CLUSTERDDP_RDZV_DIR"] = sys.argv[1]
    world = world_from_environment(None, os.environ)
    met = host(world) if world.rank == 0 else join(world)
    found = diagnose(os.environ)
    print(  # noqa: T201 - data for the test
        json.dumps(
            {
                **asdict(world),
                "address": own_address(),
                "met": met,
                "key": rendezvous_key(os.environ),
                "in_step": found.in_step,
                "problems": [problem.code for problem in found.problems],
                "diagnosed": asdict(found.world) if found.world else None,
                "torch": "torch" in sys.modules,
            }
        )
    )


def own_address() -> str:
    """Give the address of this machine: what Slurm says plays no part in it."""
    addresses = [
        entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name == "eth0"
    ]
    return addresses[0] if addresses else LOOPBACK


def host(world: World) -> list[int]:
    """Let the others sign in; give them all the list of those who did."""
    loopback = world.num_nodes == 1
    directory = channel_directory(os.environ, world.num_nodes)
    key, cookie = rendezvous_key(os.environ), secrets.token_hex(16)
    with listen(loopback=loopback) as server:
        record = AddressRecord(
            key=key,
            addresses=tuple(address_candidates(os.environ, loopback=loopback)),
            port=server.getsockname()[1],
            cookie=cookie,
            world_size=world.world_size,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        publish_address(directory, key, record)
        server.settimeout(TIMEOUT_S)
        guests: list[tuple[int, socket.socket]] = []
        while len(guests) < world.world_size - 1:
            guest = server.accept()[0]
            guest.sendall(f"{cookie}\n".encode())
            rank = guest.makefile().readline()
            if rank:
                guests.append((int(rank), guest))
        met = [0, *sorted(rank for rank, _ in guests)]
        for _, guest in guests:
            guest.sendall(f"{json.dumps(met)}\n".encode())
            guest.close()
    if "leave" not in sys.argv:
        unpublish_address(directory, key)
    return met


def join(world: World) -> list[int]:
    """Find rank 0, see that it is the one, sign in, and hear who came."""

    def accept(record: AddressRecord) -> list[int] | None:
        for address in record.addresses:
            try:
                with socket.create_connection((address, record.port), 3) as server:
                    lines = server.makefile()
                    if lines.readline().strip() != record.cookie:
                        continue
                    server.settimeout(TIMEOUT_S)
                    server.sendall(f"{world.rank}\n".encode())
                    met: list[int] = json.loads(lines.readline())
                    return met
            except OSError:
                continue
        return None

    directory = channel_directory(os.environ, world.num_nodes)
    key = rendezvous_key(os.environ)
    return wait_for_address(Path(directory), key, accept, TIMEOUT_S)


if __name__ == "__main__":
    main()
