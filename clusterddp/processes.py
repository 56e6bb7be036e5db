"""Processes by pid and creation time, so that a reused pid is never mistaken."""

import signal
import time
from collections.abc import Sequence

import psutil

__all__ = ["GRACE_S", "creation_time", "end_process_tree", "is_same_process"]

GRACE_S = 10.0
_LOOK_S = 0.02


def creation_time(pid: int) -> float:
    """Give when a process was made, in seconds since the epoch; 0 if it is gone."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def is_same_process(pid: int, created: float) -> bool:
    """Say whether a pid still names the process that was made at that time."""
    try:
        process = psutil.Process(pid)
        is_alive = process.status() != psutil.STATUS_ZOMBIE
        return is_alive and abs(process.create_time() - created) < 1.0
    except psutil.NoSuchProcess:
        return False


def end_process_tree(pid: int, grace_s: float = GRACE_S) -> None:
    """End a process and its descendants: TERM, and KILL after a grace in seconds.

    Exit codes are left to whoever started them: psutil.wait_procs would take them, and
    subprocess then says 0 (measured).
    """
    try:
        parent = psutil.Process(pid)
        processes = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    _signal_all(processes, signal.SIGTERM)
    alive = _wait(processes, grace_s)
    _signal_all(alive, signal.SIGKILL)
    _wait(alive, grace_s)


def _wait(
    processes: Sequence[psutil.Process], timeout_s: float
) -> list[psutil.Process]:
    """Give those that are still there after a time."""
    deadline = time.monotonic() + timeout_s
    alive = list(filter(_is_alive, processes))
    while alive and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        alive = list(filter(_is_alive, alive))
    return alive


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal_all(processes: Sequence[psutil.Process], signum: int) -> None:
    for process in processes:
        try:
            process.send_signal(signum)
        except psutil.NoSuchProcess:
            continue
