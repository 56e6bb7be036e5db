"""Pace: where the time of the steps goes, and which rank is the slowest."""

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Pace", "Window", "read_train_seconds"]


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

    def window(self) -> "Window":
        """Give the time between two log points up to now, and begin anew."""
        self._train_s += self._busy_s
        wall = max(time.time() - self._began, self._train_s)
        steps = max(1, self._steps)
        own = (self._data_s / steps, self._own_s / steps, self._busy_s / steps)
        rate = self._samples / self._busy_s if self._steps else None
        self._clear()
        return Window(own, rate, self._train_s, self._train_s / (wall or 1.0))

    def _clear(self) -> None:
        self._steps = self._samples = 0
        self._data_s = self._own_s = self._busy_s = 0.0


@dataclass(frozen=True)
class Window:
    """Where the time went between two log points.

    Attributes:
        own: this rank's mean seconds a step: for data, all but waiting, everything.
        samples_per_s: of all ranks; None without a step.
        train_s: seconds in steps since the run began.
        ettr: these, of the time since it was submitted.
    """

    own: tuple[float, float, float]
    samples_per_s: float | None
    train_s: float
    ettr: float

    def values(self, ranks: Sequence[Sequence[float]]) -> dict[str, float]:
        """Give what a log point says of time.

        Args:
            ranks: what `own` is on each rank.
        """
        if self.samples_per_s is None:
            return {}
        data, own, busy = (statistics.fmean(part) for part in zip(*ranks, strict=True))
        alone = [rank[1] for rank in ranks]
        slowest = max(range(len(alone)), key=alone.__getitem__)
        median = statistics.median(alone) or own or 1.0
        return {
            "samples_per_s": round(self.samples_per_s, 2),
            "time/data_s": round(data, 6),
            "time/compute_s": round(busy - data, 6),
            "time/train_s": round(self.train_s, 3),
            "ranks/slowest": slowest,
            "ranks/slowest_over_median": round(alone[slowest] / median, 3),
            "ettr": round(self.ettr, 4),
        }


def read_train_seconds(metrics: Path) -> float:
    """Give the seconds in steps that the last line of a metrics file knows of."""
    try:
        lines = metrics.read_bytes().splitlines()
        value = json.loads(lines[-1]).get("time/train_s") if lines else 0.0
    except (OSError, ValueError):
        return 0.0
    return float(value or 0.0)
