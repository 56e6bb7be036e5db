"""Leaving a process that has loaded torch, without taking it to pieces first.

Taking down the modules of torch and torch._dynamo keeps a core busy for most of a
second (measured, torch 2.13), and whoever waits for the process waits for that: the
next attempt, and Slurm at a preemption. The kernel frees the memory in no time.
"""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

__all__ = ["leave"]


def leave(code: int) -> NoReturn:
    """End this process as Python does, but for the modules.

    Other threads end first, then what libraries have registered with atexit runs,
    and what was printed goes out: as multiprocessing ends its children.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader is gone
            stream.flush()
    os._exit(code)
