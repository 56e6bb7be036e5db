"""Connecting to a store, if it is the one meant and not a stranger's.

A left-over record, or a fixed port that another step has taken, leads to a server of
somebody else; joining it mixes two trainings (measured: with `wait_for_workers` the
other one starts with a rank too many).
"""

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TypeVar

from torch.distributed import DistError, TCPStore

__all__ = ["COOKIE", "connect", "with_short_lookups"]

T = TypeVar("T")

COOKIE = "clusterddp/cookie"
"""The key under which the store of rank 0 holds what proves that it is the one."""

_CONNECT_S = 3.0
_ANSWER = timedelta(seconds=15)
_RESOLVER = "RES_OPTIONS"


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
    limit = _ANSWER.total_seconds()
    try:
        store = with_short_lookups(lambda: _verified(host, port, cookie), limit)
    except TimeoutError:
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


def with_short_lookups(make: Callable[[], T], limit_s: float) -> T:
    """Give what `make` gives, in a thread that waits for name servers briefly.

    TCPStore's client looks up the name of the very address that it was given, for a
    log line. Where the name server does not answer that takes 10 s and more, and its
    own timeout runs meanwhile (measured on 2.13; 64 clients of one node at once lose
    some of the answers even of a good server). The C library reads RES_OPTIONS once in
    each thread (resolv.conf(5)), so a new thread can be told.

    Raises:
        TimeoutError: it took longer than `limit_s`; the thread is left behind.
    """
    done: queue.Queue[tuple[T, None] | tuple[None, BaseException]] = queue.Queue()

    def work() -> None:
        try:
            done.put((make(), None))
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            done.put((None, error))

    with _short_lookups():
        threading.Thread(target=work, name="store-client", daemon=True).start()
        try:
            made = done.get(timeout=limit_s)
        except queue.Empty:
            raise TimeoutError from None
    if made[1] is not None:
        raise made[1]
    return made[0]


@contextlib.contextmanager
def _short_lookups() -> Iterator[None]:
    if _RESOLVER in os.environ:
        yield
        return
    os.environ[_RESOLVER] = "timeout:1 attempts:1"
    try:
        yield
    finally:
        os.environ.pop(_RESOLVER, None)
