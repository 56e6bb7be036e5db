"""A process that must not outlive its parent, whatever ends the parent."""

import ctypes
import os
import signal

__all__ = ["end_with_parent"]

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, signum: int = signal.SIGTERM) -> None:
    """Ask the kernel for a signal when the parent is gone (prctl(2)).

    Args:
        parent: the parent's pid as it was known when this process was started; if
            it has gone already, the signal is sent at once.
        signum: which signal; SIGTERM lets ranks save and leave.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)
