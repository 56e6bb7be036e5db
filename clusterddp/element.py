"""`python -m clusterddp.element SWEEP_DIR OFFSET`: the batch task of an element.

It finds its run by its place in the sweep, and supervises it.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterddp.errors import UsageError
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.sweeps import SweepDirectory
from clusterddp.supervise import supervise
from clusterddp.terminal import run_verb, talk_to_stderr

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Supervise the run of this array element, and give its exit code."""
    talk_to_stderr()
    return run_verb(lambda: supervise(_find(*arguments).path))


def _find(directory: str, offset: str) -> RunDirectory:
    place = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if not place.isdigit():
        message = (
            f"SLURM_ARRAY_TASK_ID: found {place!r}, expected this element's place; it "
            "is started by Slurm, as an element of an array"
        )
        raise UsageError(message)
    runs = SweepDirectory(Path(directory)).read_elements()
    return runs[int(offset) + int(place)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
