"""One all-reduce per log point: of sums by name, and of the times of all ranks."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clusterddp.dist import World, init_dist, shutdown
from clusterddp.errors import UsageError
from clusterddp.training import Experiment
from clusterddp.training.pace import Pace, read_train_seconds
from clusterddp.training.reduction import Reduction
from tests import training_ranks as ranks
from tests.training_ranks import build_noisy

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Give a world of one."""
    yield init_dist("none")
    shutdown()


def reduce(world: World, names: Mapping[str, list[str]]) -> object:
    """Give what the ranks have together of the names that each has."""
    given = dict.fromkeys(names[str(world.rank)], 1.0 + world.rank)
    try:
        own = [world.rank, 0.5]
        return Reduction(given, world, CPU, own=own).finish()._asdict()
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_sums_and_times_of_all_ranks(tmp_path: Path, world_size: int) -> None:
    """On each rank, in the order of ranks."""
    names = {str(rank): ["b", "a"] for rank in range(world_size)}
    started = ranks.start(world_size, tmp_path, ranks.with_world, reduce, names)
    total = world_size * (world_size + 1) / 2
    for value in started.values():
        assert value["sums"] == {"a": total, "b": total}
        assert value["ranks"] == [[rank, 0.5] for rank in range(world_size)]


@pytest.mark.parametrize(
    "theirs", [["a"], ["a", "c"], [], [f"x{i}" for i in range(100)]], ids=len
)
def test_other_names_are_an_error_on_all_ranks(
    tmp_path: Path, theirs: list[str]
) -> None:
    """Fewer, more or different ones: never a hang, never a wrong sum."""
    names = {"0": ["a", "b"], "1": ["a", "b"], "2": theirs}
    started = ranks.start(3, tmp_path, ranks.with_world, reduce, names)
    for said in started.values():
        expected = f"Experiment.loss: rank 2 gave {sorted(theirs)}, rank 0 ['a', 'b']"
        assert said.startswith(expected)


def test_too_many_values_are_refused(world: World) -> None:
    """The message says how many there may be."""
    values = dict.fromkeys(map(str, range(129)), 0.0)
    with pytest.raises(UsageError, match="gave 129 values, expected at most 128"):
        Reduction(values, world, CPU)


def build_talkative(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; rank 1 logs a value of its own."""

    def loss(
        model: nn.Module, batch: list[Tensor]
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        mean = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return mean, {"extra": mean} if params["rank"] == 1 else {}

    return replace(build_noisy(params), loss=loss)


def test_a_rank_that_logs_more_than_others(tmp_path: Path) -> None:
    """Ends the training at the first log point, with both lists, on all ranks."""
    chosen = {"params": {}, "train": {"global_batch_size": 24}, "log": {"every": 2}}
    started = ranks.start_training(tmp_path, 0, 2, build_talkative, chosen)
    assert started.wait(20) == [1, 1]
    for rank in (0, 1):
        words = "Experiment.loss: rank 1 gave ['extra', 'loss'], rank 0 ['loss']"
        assert words in started.output(rank)


def test_the_slowest_rank_is_named() -> None:
    """By the time in which it waited for nobody."""
    pace = Pace(0.0, 0.0)
    pace.note(0.0, 0.0, 0.0, 10)
    ranks_own = [[0.1, 0.2, 1.0], [0.1, 0.9, 1.0], [0.4, 0.3, 1.0]]
    values = pace.window().values(ranks_own)
    assert values["ranks/slowest"] == 1
    assert values["ranks/slowest_over_median"] == 3.0
    assert values["time/data_s"] == 0.2
    assert values["time/compute_s"] == 0.8
    assert pace.window().values([[0.0, 0.0, 0.0]]) == {}


def build_failing(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; its loss changes a buffer, and fails at step 5."""
    seen, calls = torch.zeros(()), iter(range(100))

    def loss(
        model: nn.Module, batch: list[Tensor]
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        if next(calls) == params["fails"]:
            raise ArithmeticError("this one")
        seen.add_(1)
        return nn.functional.cross_entropy(model(batch[0]), batch[1]), {"seen": seen}

    return replace(build_noisy(params), loss=loss)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_failing_step_does_not_lose_the_point_before(
    tmp_path: Path, world_size: int
) -> None:
    """Which was still on its way; and a value is the one of its own step."""
    looks = 2  # before the first step: preflight and warm-up
    chosen = {
        "params": {"fails": looks + 4},
        "train": {"global_batch_size": 24},
        "log": {"every": 1},
    }
    started = ranks.start_training(tmp_path, 0, world_size, build_failing, chosen)
    assert set(started.wait(30)) == {1}
    assert "this one" in started.output(0)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in lines]
    assert [point["step"] for point in points] == [1, 2, 3, 4]
    assert [point["seen"] - looks for point in points] == [1, 2, 3, 4]


def build_slow(params: Mapping[str, Any]) -> Experiment:
    return build_noisy({**params, "sleep": 0.03 if params["rank"] == 2 else 0.0})


def test_metrics_say_where_the_time_goes(tmp_path: Path) -> None:
    """On every line; the seconds in steps go on where a former attempt ended."""
    chosen = {
        "params": {"stop_at": 9},
        "train": {"epochs": 2, "global_batch_size": 24},
        "log": {"every": 2},
    }
    codes = ranks.start_training(tmp_path, 0, 3, build_slow, chosen).wait()
    assert set(codes) == {ranks.STOPPED}
    before = read_train_seconds(tmp_path / "metrics.jsonl")
    assert ranks.start_training(tmp_path, 1, 3, build_slow, chosen).wait() == [0] * 3
    lines = ranks.raw_lines(tmp_path)
    slowest = [line["ranks/slowest"] for line in lines]
    assert slowest.count(2) > len(slowest) / 2
    spent = [line["time/train_s"] for line in lines]
    assert spent == sorted(spent)
    assert spent[-1] > before > 0
    assert all(0 < line["ettr"] <= 1 for line in lines)
    assert all(line["grad_norm"] > 0 for line in lines)


def test_seconds_of_a_file_without_them_are_none(tmp_path: Path) -> None:
    """Of an older version, of no file, or of a broken one."""
    path = tmp_path / "metrics.jsonl"
    assert read_train_seconds(path) == 0
    for text in ("", '{"step": 1}\n', "rubbish\n"):
        path.write_text(text)
        assert read_train_seconds(path) == 0
