"""What init_dist has set up in this process, for the other modules to read."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torch.distributed import HashStore, PrefixStore, Store, TCPStore

from clusterddp.dist.exports import Exports
from clusterddp.dist.world import World
from clusterddp.errors import LaunchError

__all__ = [
    "Session",
    "clone_store",
    "close_session",
    "current_session",
    "default_store",
    "is_open",
    "open_session",
    "reconnect",
]


@dataclass(frozen=True)
class Session:
    """One initialised process group: its world, stores, device, exports, limit."""

    world: World
    base: Store
    prefix: str
    device: torch.device
    exports: Exports
    timeout: timedelta
    calls: Iterator[int] = field(default_factory=itertools.count)
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "store", PrefixStore(self.prefix, self.base))


_open: list[Session] = []


def open_session(session: Session) -> None:
    """Make a session the current one."""
    _open[:] = [session]


def is_open() -> bool:
    """Tell whether init_dist was called, and shutdown was not."""
    return bool(_open)


def current_session() -> Session:
    """Give the session of this process.

    Raises:
        LaunchError: init_dist was not called, or shutdown was.
    """
    if not _open:
        message = (
            "clusterddp.dist: found no process group, expected init_dist() to have "
            "been called before; call it first"
        )
        raise LaunchError(message)
    return _open[0]


def close_session() -> Session | None:
    """Forget the current session and give it; None if there is none."""
    return _open.pop() if _open else None


def default_store() -> Store:
    """Give the store that all ranks share; its keys live under a prefix of ours.

    Anything may write to it, it is not authenticated: read JSON, never pickles.

    Raises:
        LaunchError: init_dist was not called.
    """
    return current_session().store


def clone_store(store: Store) -> Store:
    """Give an independent connection to the same store.

    A TCPStore client that waits blocks every other call on the same object, so a
    thread that waits needs one of its own. A store without a server (a world of
    one) is given back as it is.
    """
    session = current_session()
    if isinstance(session.base, HashStore):
        return store
    clone = getattr(store, "clone", None)
    result: Store = clone() if clone else reconnect(session)
    return result


def reconnect(session: Session) -> Store:
    """Give a new connection to the default store, for a torch without `clone`."""
    base = session.base
    if not isinstance(base, TCPStore):
        message = (
            f"clusterddp.dist: found a {type(base).__name__}, expected a TCPStore to "
            "connect to anew; use a newer torch, whose stores can be cloned"
        )
        raise LaunchError(message)
    client = TCPStore(
        base.host,
        base.port,
        is_master=False,
        timeout=base.timeout,  # type: ignore[attr-defined]
        wait_for_workers=False,
    )
    return PrefixStore(session.prefix, client)
