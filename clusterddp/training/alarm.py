"""Failing together: a rank that fails tells the others, outside of any collective.

A peer that waits in a collective of NCCL, or for its data, does not see that a rank is
gone: it would stay until the timeout, or until the launcher kills it. So a thread of
every rank waits in the store for the word of one that fails. Ranks that die without a
word (kill -9, os._exit) are the business of gloo and of the launcher.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import Store

from clusterddp.dist import World, clone_store

__all__ = ["Alarm"]

_LONG = timedelta(days=365)
_TELLING_S = 2.0
_POLL_S = 0.01
_PREFIX = "alarm"


class Alarm:
    """Rings on all ranks when one sounds it, and then ends those that stay."""

    def __init__(
        self,
        store: Store,
        world: World,
        follow: Callable[[str], None],
        *,
        grace_s: float = 1.0,
    ) -> None:
        """Begin to wait, in a thread; nothing is done in a world of one.

        Args:
            store: the store that all ranks share.
            world: this rank among the others.
            follow: called in the thread with words on who failed and why; it should
                end this process.
            grace_s: how long a rank may take to fail by itself, with a word of its
                own: an error that all ranks have is told by all.
        """
        self._store, self._world = store, world
        self._follow, self._grace_s = follow, grace_s
        self._closed = threading.Event()
        if world.world_size > 1:
            client = clone_store(store)
            threading.Thread(
                target=self._wait, args=(client,), name="alarm", daemon=True
            ).start()

    def sound(self, text: str) -> None:
        """Tell all others; returns when they have heard it, or after 2 s.

        Rank 0 holds the store: were it gone at once, nobody would hear it.
        """
        self._closed.set()
        if self._world.world_size > 1:
            teller = threading.Thread(target=self._tell, args=(text,), daemon=True)
            teller.start()
            teller.join(_TELLING_S)

    def close(self) -> None:
        """Stay, whatever comes: this rank has nothing to lose any more."""
        self._closed.set()

    def _tell(self, text: str) -> None:
        # A dead store means a dead rank 0; whoever waits for that one sees it.
        with contextlib.suppress(RuntimeError):
            words = f"left because rank {self._world.rank} failed: {text}"
            self._store.set(f"{_PREFIX}/words", words)
            # The thread of this rank hears it too.
            while self._store.add(f"{_PREFIX}/heard", 0) < self._world.world_size:
                time.sleep(_POLL_S)

    def _wait(self, store: Store) -> None:
        with contextlib.suppress(RuntimeError):
            store.wait([f"{_PREFIX}/words"], _LONG)
            words = store.get(f"{_PREFIX}/words").decode()
            store.add(f"{_PREFIX}/heard", 1)
            if not self._closed.wait(self._grace_s):
                self._follow(words)
