"""Processes by pid and creation time, so that a reused pid is never mistaken."""

import signal
from collections.abc import Sequence

import psutil

__all__ = ["GRACE_S", "creation_time", "end_process_tree", "is_same_process"]

GRACE_S = 10.0


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
    """End a process and its descendants: TERM, and KILL after a grace in seconds."""
    try:
        parent = psutil.Process(pid)
        processes = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    _signal_all(processes, signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    _signal_all(alive, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=grace_s)


def _signal_all(processes: Sequence[psutil.Process], signum: int) -> None:
    for process in processes:
        try:
            process.send_signal(signum)
        except psutil.NoSuchProcess:
            continue
