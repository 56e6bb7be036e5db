"""Prefetching: in order, one batch ahead, and not at all on a CPU.

The CUDA stream itself cannot run here; what is sent when is the same for any lane.
"""

from typing import Any

import pytest
import torch

from clusterddp.config.schema import Job
from clusterddp.dist import World
from clusterddp.training.prefetch import Prefetcher, lane_to
from clusterddp.training.sampler import Span
from clusterddp.training.schedule import Schedule, Standing

ALONE = World(0, 1, 0, 1, 0, 1, "none")


class RecordingLane:
    """A lane that copies nothing and writes down what it is asked."""

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def send(self, batch: object) -> object:
        self.notes.append(("send", batch))
        return f"copy of {batch}"

    def arrive(self) -> None:
        self.notes.append("arrive")


def make(*, accumulate: int = 1) -> Schedule:
    train = {"epochs": 2, "global_batch_size": 4, "accumulate": accumulate}
    return Schedule(Job(name="test", train=train), 10, ALONE)  # type: ignore[arg-type]


def spans(schedule: Schedule, position: int = 0) -> list[Span]:
    return list(schedule.sampler.spans(position, schedule.end))


@pytest.mark.parametrize("position", [0, 8, 16])
def test_the_batch_after_one_is_known(position: int) -> None:
    """Over the edge of an epoch too, wherever a run goes on; then there is none."""
    schedule = make()
    chosen = spans(schedule, position)
    following = [schedule.following(span) for span in chosen]
    assert following == [*chosen[1:], None]
    assert schedule.is_over(Standing(position=schedule.end))


def test_the_next_batch_is_sent_before_this_one_is_used() -> None:
    """And after this one was waited for; each once, its parts together."""
    schedule = make(accumulate=2)
    notes: list[Any] = []

    def load(span: Span) -> list[object]:
        return [f"{span.epoch}/{span.start}/{part}" for part in (0, 1)]

    prefetcher = Prefetcher(load, schedule.following, RecordingLane(notes))
    for span in spans(schedule):
        taken = prefetcher.take(span)
        assert taken == [f"copy of {each}" for each in load(span)]
        notes.append(("use", span.epoch, span.start))
    sent = [batch for word, batch, *_ in notes if word == "send"]
    assert sent == [each for span in spans(schedule) for each in load(span)]
    first = ["send", "send", "arrive", "send", "send", "use", "arrive", "send", "send"]
    assert [note if note == "arrive" else note[0] for note in notes[:9]] == first
    assert notes[-2:] == ["arrive", ("use", 1, 8)]


def test_on_a_cpu_nothing_is_loaded_ahead() -> None:
    """There is nothing to copy, and a stop would have loaded in vain."""
    assert lane_to(torch.device("cpu")) is None
    schedule = make()
    loaded: list[Span] = []

    def load(span: Span) -> list[object]:
        loaded.append(span)
        return ["batch"]

    prefetcher = Prefetcher(load, schedule.following, None)
    for count, span in enumerate(spans(schedule), start=1):
        assert prefetcher.take(span) == ["batch"]
        assert len(loaded) == count
