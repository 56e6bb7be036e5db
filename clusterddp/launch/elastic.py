"""The rendezvous that torch's elastic agent is given: its nodes have met already."""

from collections.abc import Callable
from dataclasses import dataclass

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

__all__ = ["NAME", "Agents", "register"]

NAME = "clusterddp"
_ADDRESS, _PORT = "ranks/address", "ranks/port"


@dataclass(frozen=True)
class Agents:
    """How the agents of an attempt meet, one on each node.

    Attributes:
        rank: this agent's among them, which is its node's.
        count: how many there are.
        address: at which the others reach this node.
        meet: gives the store of all agents.
        host: gives a store for the ranks of all nodes; called by agent 0.
    """

    rank: int
    count: int
    address: str
    meet: Callable[[], TCPStore]
    host: Callable[[], TCPStore]


def register(agents: Agents) -> None:
    """Let torch's launcher find this meeting under `NAME`."""

    def make(parameters: RendezvousParameters) -> RendezvousHandler:
        return _Rendezvous(agents, parameters.run_id)

    rendezvous_handler_registry.register(NAME, make)


class _Rendezvous(RendezvousHandler):
    """One round among nodes that are known; nobody joins later, and none comes back.

    torch's own c10d rendezvous finds out who is there, sleeps up to 0.3 s first, and
    numbers the nodes by their addresses. Its server for the ranks, which they know as
    MASTER_ADDR and MASTER_PORT, takes any port.
    """

    def __init__(self, agents: Agents, run_id: str) -> None:
        self._agents, self._run_id = agents, run_id
        self._for_ranks: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        agents, store = self._agents, PrefixStore(self._run_id, self._agents.meet())
        if agents.rank == 0:
            self._for_ranks = agents.host()
            store.set(_ADDRESS, agents.address)
            store.set(_PORT, str(self._for_ranks.port))
        address, port = store.get(_ADDRESS).decode(), int(store.get(_PORT))
        place = RendezvousStoreInfo(address, port)
        return RendezvousInfo(store, agents.rank, agents.count, place)

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return NAME

    def get_run_id(self) -> str:
        return self._run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nothing: there is no other round."""

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True
