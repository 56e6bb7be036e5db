"""Loader workers: deaf to stop signals from their first moment on, gone with the rank.

Slurm signals every process of a step. A worker that dies of it takes down its rank
before the step boundary where the state would have been saved.
"""

import ctypes
import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

__all__ = ["DEATHS", "settle_worker", "shielded"]

DEATHS = (RuntimeError, OSError, EOFError)
"""What a loader raises when a worker has died: torch's own word for it; or, where the
worker had announced a batch and not yet handed over its memory, a broken connection."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_IGNORED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
    signal.SIGCONT,
)


@contextmanager
def shielded() -> Iterator[None]:
    """Start workers inside; only in the main thread.

    A worker that is spawned, or forked by a server, imports for seconds before it can
    ignore a signal, and the server itself never does. Blocked signals are inherited
    over fork and exec (sigprocmask(2)), so they are blocked meanwhile; other threads
    of this process still take them.
    """
    on_death = signal.getsignal(signal.SIGCHLD)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    if multiprocessing.get_start_method() != "fork":
        # It starts a helper of its own, and unblocks two signals afterwards.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _restore_quiet(on_death)


def _restore_quiet(on_death: object) -> None:
    """Keep torch's SIGCHLD handler out.

    It raises wherever the main thread happens to be when a worker dies, in the
    middle of a save too. Without it a death is found where it matters, by the next
    batch that does not come, within 5 s.
    """
    if signal.getsignal(signal.SIGCHLD) is not on_death:
        signal.signal(signal.SIGCHLD, on_death)  # type: ignore[arg-type]


def settle_worker(worker: int = 0) -> None:  # noqa: ARG001 - torch passes the number
    """Let a worker outlive the signals that ask its rank to stop, but not its rank.

    A forked worker holds copies of its rank's sockets. While it lives, the other
    ranks do not see that its rank was killed: 5 s, torch's watchdog, instead of a
    few ms (measured on gloo). So the kernel kills it with its rank.
    """
    signal.set_wakeup_fd(-1)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
