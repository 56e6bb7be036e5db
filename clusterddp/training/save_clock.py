"""When a save by the clock is due: rank 0's clock, one step for all ranks.

Asking at every step would cost a collective each. So rank 0 estimates from its own
pace in how many steps the time will have passed, and tells all ranks at which step
they look again; towards the moment they look more often. A gap at most doubles, so
that a slow phase after a quick one is noticed.
"""

import time
from collections.abc import Callable

from clusterddp.dist import World, broadcast_json

__all__ = ["SaveClock", "next_gap"]


def next_gap(remaining_s: float, per_step_s: float, gap: int) -> int:
    """Give the number of steps until all look again; at least 1; pure.

    Args:
        remaining_s: until the save is due.
        per_step_s: what a step took lately.
        gap: the number of steps since the last look.
    """
    if per_step_s <= 0:
        return 2 * max(1, gap)
    return max(1, min(int(0.9 * remaining_s / per_step_s), 2 * max(1, gap)))


class SaveClock:
    """Says on all ranks at once that so much time has passed since the last save."""

    def __init__(
        self,
        interval_s: float | None,
        world: World,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to count.

        Args:
            interval_s: the time between two saves; None: never due.
            world: this rank among the others.
            clock: what time it is, in seconds; only rank 0's counts.
        """
        self._interval_s = interval_s
        self._is_first = world.rank == 0
        self._clock = clock
        self._saved_s = self._looked_s = clock()
        self._looked: int | None = None
        self._gap = 1

    def is_due(self, step: int) -> bool:
        """Say whether to save now; all ranks must ask after every step.

        Sends something only at the few steps at which all ranks look.
        """
        if self._interval_s is None:
            return False
        if self._looked is None:
            self._looked = step - 1
        if step < self._looked + self._gap:
            return False
        told = self._look(self._interval_s, step) if self._is_first else None
        due, self._gap = broadcast_json(told)
        self._looked = step
        return bool(due)

    def restart(self) -> None:
        """Count from now: something has been saved, for whatever reason."""
        self._saved_s = self._clock()

    def _look(self, interval_s: float, step: int) -> tuple[bool, int]:
        now, steps = self._clock(), step - (self._looked or 0)
        remaining_s = interval_s - (now - self._saved_s)
        per_step_s = (now - self._looked_s) / max(1, steps)
        self._looked_s = now
        if remaining_s <= 0:
            return True, next_gap(interval_s, per_step_s, steps)
        return False, next_gap(remaining_s, per_step_s, steps)
