"""Pace: where the time of the steps goes, and which rank is the slowest."""

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Pace", "read_train_seconds"]


class Pace:
    """Adds up the seconds of this rank's steps between two log points."""

    def __init__(self, train_s: float, began: float) -> None:
        """Begin.

        Args:
            train_s: seconds in steps that former attempts have brought to stay.
            began: when the run was submitted, in seconds since the epoch.
        """
        self._train_s, self._began = train_s, began
        self._clear()

    def note(self, started: float, fetched: float, ready: float, samples: int) -> None:
        """Take in one finished step.

        Args:
            started: when it began, by time.perf_counter().
            fetched: when its batch was there.
            ready: when this rank began its last backward pass, in which it meets the
                others; until then nobody made it wait. On a GPU all that is when
                the work was handed over, not when it was done.
            samples: of the global batch.
        """
        now = time.perf_counter()
        self._steps += 1
        self._samples += samples
        self._data_s += fetched - started
        self._own_s += ready - started
        self._busy_s += now - started

    def own(self) -> tuple[float, float, float]:
        """Give this rank's mean seconds a step: data, all but waiting, everything."""
        steps = max(1, self._steps)
        return self._data_s / steps, self._own_s / steps, self._busy_s / steps

    def values(self, ranks: Sequence[Sequence[float]]) -> dict[str, float]:
        """Give what a log point says of time, and begin anew.

        Args:
            ranks: what `own` gave on each rank.
        """
        if not self._steps:
            return {}
        data, own, busy = (statistics.fmean(part) for part in zip(*ranks, strict=True))
        alone = [rank[1] for rank in ranks]
        slowest = max(range(len(alone)), key=alone.__getitem__)
        median = statistics.median(alone) or own or 1.0
        self._train_s += self._busy_s
        wall = max(time.time() - self._began, self._train_s)
        values = {
            "samples_per_s": round(self._samples / self._busy_s, 2),
            "time/data_s": round(data, 6),
            "time/compute_s": round(busy - data, 6),
            "time/train_s": round(self._train_s, 3),
            "ranks/slowest": slowest,
            "ranks/slowest_over_median": round(alone[slowest] / median, 3),
            "ettr": round(self._train_s / wall, 4),
        }
        self._clear()
        return values

    def _clear(self) -> None:
        self._steps = self._samples = 0
        self._data_s = self._own_s = self._busy_s = 0.0


def read_train_seconds(metrics: Path) -> float:
    """Give the seconds in steps that the last line of a metrics file knows of."""
    try:
        lines = metrics.read_bytes().splitlines()
        value = json.loads(lines[-1]).get("time/train_s") if lines else 0.0
    except (OSError, ValueError):
        return 0.0
    return float(value or 0.0)
