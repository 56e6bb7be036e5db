"""Connecting to a store, if it is the one meant and not a stranger's.

A left-over record, or a fixed port that another step has taken, leads to a server of
somebody else; joining it mixes two trainings (measured: with `wait_for_workers` the
other one starts with a rank too many).
"""

import queue
import socket
import threading
from datetime import timedelta

from torch.distributed import DistError, TCPStore

__all__ = ["COOKIE", "connect"]

COOKIE = "clusterddp/cookie"
"""The key under which the store of rank 0 holds what proves that it is the one."""

_CONNECT_S = 3.0
_ANSWER = timedelta(seconds=5)


def connect(host: str, port: int, cookie: str, timeout: timedelta) -> TCPStore | None:
    """Connect to a store, if there is one and it holds the cookie.

    TCPStore waits without end for the answer of a server that speaks something
    else (measured on 2.13), and goes on for much longer than its timeout where
    nobody listens. So a plain connection comes first, and the rest is bounded by
    leaving the thread behind that waits.
    """
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except (OSError, UnicodeError):
        return None
    verified: queue.Queue[TCPStore | None] = queue.Queue()
    attempt = threading.Thread(
        target=lambda: verified.put(_verified(host, port, cookie)),
        name="rendezvous-connect",
        daemon=True,
    )
    attempt.start()
    try:
        store = verified.get(timeout=_ANSWER.total_seconds())
    except queue.Empty:
        return None
    if store is not None:
        store.set_timeout(timeout)
    return store


def _verified(host: str, port: int, cookie: str) -> TCPStore | None:
    try:
        store = TCPStore(
            host, port, is_master=False, timeout=_ANSWER, wait_for_workers=False
        )
        # Only asked, never waited for: a foreign store has no such key.
        if store.check([COOKIE]) and store.get(COOKIE).decode() == cookie:
            return store
    except (DistError, UnicodeError):
        return None
    return None
