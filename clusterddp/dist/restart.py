"""A name for this start of the ranks, where they meet in a store that outlives them.

torchrun 2.13 keeps one store for all restarts (pytorch#135712): what dead ranks left
there, arrivals and gloo's addresses, would be taken for the new ones'. Its own count of
restarts is no name for them: each node has its own. So the ranks agree on a new one.
"""

import secrets
import time
from collections.abc import Mapping
from datetime import timedelta

from torch.distributed import DistError, Store

from clusterddp.dist.world import World
from clusterddp.errors import RendezvousError

__all__ = ["agree_on_start", "outlives_ranks"]

_PAUSE_S = 0.02


def outlives_ranks(environ: Mapping[str, str]) -> bool:
    """Say whether the ranks may be started again, and find the store of the dead."""
    restarts = environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    is_shared = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return is_shared and restarts != "0"


def agree_on_start(store: Store, world: World, timeout: timedelta) -> str:
    """Give a word that all ranks of this start have, and those of no other.

    Each rank asks with a number that nobody had before, so only a rank 0 that lives
    can have answered it. Rank 0 answers whatever question it finds, an old one too,
    until all have thanked it for this start's word.

    Raises:
        RendezvousError: somebody did not come in time.
    """
    try:
        if world.rank == 0:
            return _answer(store, world.world_size, timeout)
        return _ask(store, world.rank, timeout)
    except DistError as error:
        reason = str(error).splitlines()[0]
        message = (
            f"rendezvous: rank {world.rank} got no answer from rank 0 within "
            f"{timeout.total_seconds():g} s ({reason}); see the log of rank 0 for the "
            "reason"
            if world.rank
            else f"rendezvous: rank 0 lost torchrun's store while it waited for the "
            f"others ({reason}); see what torchrun says on its first node"
        )
        raise RendezvousError(message) from error


def _ask(store: Store, rank: int, timeout: timedelta) -> str:
    question = secrets.token_hex(8)
    store.set(f"questions/{rank}", question)
    store.wait([f"answers/{question}"], timeout)
    word = store.get(f"answers/{question}").decode()
    store.set(f"thanks/{word}/{rank}", "")
    return word


def _answer(store: Store, world_size: int, timeout: timedelta) -> str:
    word, answered = secrets.token_hex(8), dict[int, str]()
    missing = set(range(1, world_size))
    deadline = time.monotonic() + timeout.total_seconds()
    while missing:
        for rank in missing:
            question = _read(store, f"questions/{rank}")
            if question and answered.get(rank) != question:
                store.set(f"answers/{question}", word)
                answered[rank] = question
        missing = {r for r in missing if not store.check([f"thanks/{word}/{r}"])}
        if missing and time.monotonic() > deadline:
            raise RendezvousError(_describe(missing, world_size, timeout))
        time.sleep(_PAUSE_S)
    return word


def _read(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def _describe(missing: set[int], world_size: int, timeout: timedelta) -> str:
    ranks = ", ".join(map(str, sorted(missing)))
    return (
        f"rendezvous: {world_size - len(missing)} of {world_size} ranks came within "
        f"{timeout.total_seconds():g} s; missing: rank {ranks}; see their logs, and "
        "whether torchrun runs on every node"
    )
