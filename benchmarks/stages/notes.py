"""Notes of the time, in the file that `$BENCH_STAGES` names; loads nothing."""

import os
import time


def note(stage: str) -> None:
    """Enter that a rank has reached a stage."""
    path = os.environ.get("BENCH_STAGES")
    if path:
        rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - loads less
            file.write(f"{rank} {stage} {time.time():.4f}\n")
