"""Metrics: weighted by samples, reduced rarely, and each step once in the files."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from clusterddp.dist import World, init_dist, shutdown
from clusterddp.runs.directory import RunDirectory
from clusterddp.training import MetricLog, reduce_mean
from clusterddp.training.metrics import cut_lines
from tests import training_ranks as ranks

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Give a world of one."""
    yield init_dist("none")
    shutdown()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def lines(run: RunDirectory) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def three_and_one(world: World, run: Path) -> dict[str, Any]:
    """Rank 0 has 3 samples of mean 2, rank 1 one of 9: the mean of 4 is 3.75."""
    value, count = (2.0, 3) if world.rank == 0 else (9.0, 1)
    log = MetricLog(RunDirectory(run), world, CPU)
    log.note(torch.tensor(value), count, {"hits": torch.tensor(value / 2)})
    mean = log.reduce()
    log.write(1, 1, mean)
    log.close()
    empty = reduce_mean(math.nan, 0) if world.rank else reduce_mean(4.0, 2)
    return {"log": mean, "mean": reduce_mean(value, count), "one empty": empty}


def test_ranks_with_3_and_1_samples(tmp_path: Path) -> None:
    """A mean of means would be 5.5; rank 1, without a sample, has no say."""
    directory = tmp_path / "out"
    started = ranks.start(2, directory, ranks.with_world, three_and_one, tmp_path)
    for value in started.values():
        assert value["log"] == {"hits": 1.875, "loss": 3.75}
        assert value["mean"] == 3.75
        assert value["one empty"] == 4.0
    (line,) = lines(RunDirectory(tmp_path))
    assert line["loss"] == 3.75


def test_no_samples_at_all_have_no_mean(world: World) -> None:
    """The mean of nothing is not a number."""
    assert world.world_size == 1
    assert math.isnan(reduce_mean(1.0, 0))


def test_a_filler_leaves_no_trace(world: World, run: RunDirectory) -> None:
    """A value of weight 0 is not added, not even when it is NaN."""
    log = MetricLog(run, world, CPU)
    log.note(torch.tensor(2.0), 4)
    log.note(torch.tensor(math.nan), 0)
    assert log.reduce() == {"loss": 2.0}
    assert log.reduce() == {}
    log.close()


def test_sums_between_log_points_survive(world: World, run: RunDirectory) -> None:
    """A log that takes over a state gives the bits of one that went on."""
    values = torch.rand(9, generator=torch.Generator().manual_seed(3))
    straight = MetricLog(run, world, CPU)
    first, second = MetricLog(run, world, CPU), MetricLog(run, world, CPU)
    for index, value in enumerate(values):
        straight.note(value, 3)
        (first if index < 5 else second).note(value, 3)
        if index == 4:
            second.load([json.loads(json.dumps(first.state()))])
    assert second.reduce() == straight.reduce()


def test_sums_of_another_number_of_ranks_keep_their_total(
    world: World, run: RunDirectory
) -> None:
    """Rank 0 takes what all former ranks had."""
    log = MetricLog(run, world, CPU)
    log.load([{"count": 3, "sums": {"loss": 6.0}}, {"count": 1, "sums": {"loss": 9.0}}])
    assert log.reduce() == {"loss": 3.75}
    log.close()


def test_a_state_that_is_none_is_refused(world: World, run: RunDirectory) -> None:
    """The message shows what was found."""
    log = MetricLog(run, world, CPU)
    with pytest.raises(TypeError, match=r"'count': 'x'.* is not what state\(\) gave"):
        log.load([{"count": "x", "sums": {}}])
    log.close()


def test_lines_beyond_the_step_are_cut(tmp_path: Path) -> None:
    """So are lines that a killed process left unfinished, and only those."""
    path = tmp_path / "metrics.jsonl"
    cut_lines(path, 3)
    assert not path.exists()
    path.write_text('{"step": 2}\n{"step": 4}\nrubbish\n[1]\n{"step": 3}\n{"step": 3')
    cut_lines(path, 3)
    assert path.read_text() == '{"step": 2}\n{"step": 3}\n'


def test_nothing_to_cut_leaves_the_file_alone(tmp_path: Path) -> None:
    """A file that is right is not written again."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2}\n')
    before = path.stat()
    cut_lines(path, 2)
    assert path.stat().st_ino == before.st_ino


def test_steps_stand_once_after_a_resume(world: World, run: RunDirectory) -> None:
    """In metrics.jsonl, and in what TensorBoard shows."""
    for resume_step, steps in ((0, range(1, 9)), (5, range(6, 12))):
        log = MetricLog(run, world, CPU, resume_step=resume_step)
        for step in steps:
            log.write(step, 1, {"loss": step / 10})
        log.close()
    assert [line["step"] for line in lines(run)] == [*range(1, 12)]
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    shown = [event.step for event in events.Scalars("loss")]
    assert shown == [*range(1, 12)]
