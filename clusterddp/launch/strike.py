"""Striking one rank of a live run, for drills: run once on every node of its step.

`python -m clusterddp.launch.strike RUN_DIR ATTEMPT RANK SIGNAL` prints the rank's pid
and node where it found it, and nothing elsewhere.
"""

import signal
import socket
import sys
from pathlib import Path

from clusterddp.launch.stacks import find_ranks
from clusterddp.runs.directory import AttemptDirectory, RunDirectory

__all__ = ["strike_here"]


def strike_here(
    run: RunDirectory, attempt: AttemptDirectory, rank: int, signum: int
) -> str | None:
    """Send a signal to a rank if it runs on this node.

    Returns:
        Who was struck; None if the rank is not here.
    """
    for number, process in find_ranks(run, attempt):
        if number == rank:
            process.send_signal(signum)
            return f"rank {rank}, process {process.pid} on {socket.gethostname()}"
    return None


if __name__ == "__main__":
    _run = RunDirectory(Path(sys.argv[1]))
    _struck = strike_here(
        _run,
        _run.attempt(int(sys.argv[2])),
        int(sys.argv[3]),
        signal.Signals[sys.argv[4]],
    )
    if _struck is not None:
        sys.stdout.write(f"{_struck}\n")
