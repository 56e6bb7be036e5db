"""Saves by the clock: at one step on all ranks, and nothing sent at most steps."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from clusterddp.dist import World, broadcast_json, init_dist, shutdown
from clusterddp.training import save_clock
from clusterddp.training.save_clock import SaveClock, next_gap
from tests import training_ranks as ranks


@pytest.mark.parametrize(
    ("remaining_s", "per_step_s", "gap", "expected"),
    [
        (600, 0.1, 1, 2),
        (600, 0.1, 4096, 5400),
        (60, 0.1, 4096, 540),
        (0.2, 0.1, 1000, 1),
        (0.0, 0.1, 1000, 1),
        (600, 0.0, 0, 2),
        (600, 1000.0, 1, 1),
    ],
)
def test_gap(remaining_s: float, per_step_s: float, gap: int, expected: int) -> None:
    """Towards the moment they look more often; a gap at most doubles."""
    assert next_gap(remaining_s, per_step_s, gap) == expected


class Simulation:
    """Steps of given lengths; counts what is sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, interval_s: float) -> None:
        self.now, self.sent = 0.0, 0

        def counting(value: Any) -> Any:  # noqa: ANN401
            self.sent += 1
            return broadcast_json(value)

        monkeypatch.setattr(save_clock, "broadcast_json", counting)
        world = init_dist("none")
        self.clock = SaveClock(interval_s, world, clock=lambda: self.now)

    def run(self, *lengths: float) -> list[float]:
        """Give the times of the saves."""
        saves = []
        for step, length in enumerate(lengths, 1):
            self.now += length
            if self.clock.is_due(step):
                self.clock.restart()
                saves.append(self.now)
        shutdown()
        return saves


def test_even_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each save is a step late at most, and few of 60,000 steps ask."""
    simulation = Simulation(monkeypatch, 600.0)
    saves = simulation.run(*itertools.repeat(0.1, 60_000))
    assert len(saves) == 9
    assert all(600.0 <= b - a <= 600.3 for a, b in itertools.pairwise([0.0, *saves]))
    assert simulation.sent < 300


def test_steps_that_become_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save comes late by no more than the time that has passed."""
    simulation = Simulation(monkeypatch, 600.0)
    saves = simulation.run(*itertools.repeat(0.1, 500), *itertools.repeat(2.0, 1000))
    assert saves[0] < 1800
    assert all(600 <= b - a < 610 for a, b in itertools.pairwise(saves[1:]))


def test_no_interval_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is never due."""
    simulation = Simulation(monkeypatch, 600.0)
    simulation.clock._interval_s = None  # noqa: SLF001
    assert simulation.run(*itertools.repeat(1000.0, 10)) == []
    assert simulation.sent == 0


def count_with_own_clock(world: World) -> list[int]:
    now = 100.0 * world.rank
    clock = SaveClock(5.0, world, clock=lambda: now)
    saves = []
    for step in range(1, 31):
        now += 0.5 * (world.rank + 1)
        if clock.is_due(step):
            clock.restart()
            saves.append(step)
    return saves


def test_one_clock_counts_for_all(tmp_path: Path) -> None:
    """Rank 0's; the others' run at other speeds."""
    started = ranks.start(3, tmp_path, ranks.with_world, count_with_own_clock)
    first, *others = started.values()
    assert first == [10, 20, 30]
    assert others == [first, first]
