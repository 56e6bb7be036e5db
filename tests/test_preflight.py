"""Bad experiments get a clear word on every rank, before step 1."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clusterddp.training import Experiment
from clusterddp.training.preflight import describe_batch
from tests import training_ranks as ranks
from tests.training_ranks import build_noisy


@pytest.mark.parametrize(("world_size", "victim"), [(1, 0), (3, 2), (4, 1)])
def test_it_is_said_at_every_size(tmp_path: Path, world_size: int, victim: int) -> None:
    """By all ranks, whichever it is that cannot go on."""
    chosen = {
        "params": {"bad": "nan", "victim": victim},
        "train": {"epochs": 1, "global_batch_size": 24},
    }
    started = ranks.start_training(tmp_path, 0, world_size, build_bad, chosen)
    assert set(started.wait(20)) == {1}
    for rank in range(world_size):
        said = f"rank {victim}: the loss of the first batch is nan"
        assert said in started.output(rank)


def build_bad(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment with a loss or a collate that is wrong on rank 1."""
    experiment = build_noisy(params)
    if params["rank"] != params.get("victim", 1) and params["bad"] != "short":
        return experiment
    return replace(experiment, **_BAD[params["bad"]])


def _nan(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1]) * math.nan


def _per_sample(model: nn.Module, batch: list[Tensor]) -> Tensor:
    values: Tensor = model(batch[0]).sum(1)
    return values


def _raise(_model: nn.Module, _batch: list[Tensor]) -> Tensor:
    message = "the user's own mistake"
    raise KeyError(message)


def _narrow(samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    rows, labels = torch.utils.data.default_collate(samples)
    return [rows[:, :4], labels]


def _floats(samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    rows, labels = torch.utils.data.default_collate(samples)
    return [rows, labels, torch.ones(len(labels))]


_BAD: dict[str, dict[str, Any]] = {
    "nan": {"loss": _nan},
    "not scalar": {"loss": _per_sample},
    "raises": {"loss": _raise},
    "narrow": {"collate": _narrow},
    "floats": {"collate": _floats},
    "short": {"train_data": ranks.NoisyRows(20)},
}


@pytest.mark.parametrize(
    ("bad", "on_rank_0", "on_rank_1"),
    [
        ("nan", "Experiment.loss: rank 1: the loss of the first batch is nan", "same"),
        ("not scalar", "rank 1: UsageError: Experiment.loss: gave shape (12,)", "gave"),
        ("raises", 'rank 1: KeyError: "the user\'s own mistake"', "in _raise"),
        ("narrow", "rank 1: RuntimeError: mat1 and mat2", "(12x4 and 6x32)"),
        ("floats", "rank 1 gave [float32[*, *], int64[*], float32[*]], rank 0", "same"),
        ("short", "found 24, expected at most the 20 samples", "same"),
    ],
)
def test_it_is_said_on_all_ranks(
    tmp_path: Path, bad: str, on_rank_0: str, on_rank_1: str
) -> None:
    """And no rank waits for one that cannot come; the guilty shows its traceback."""
    chosen = {
        "params": {"bad": bad},
        "train": {"epochs": 1, "global_batch_size": 24},
    }
    started = ranks.start_training(tmp_path, 0, 2, build_bad, chosen)
    assert started.wait(20) == [1, 1]
    assert on_rank_0 in started.output(0)
    assert (on_rank_0 if on_rank_1 == "same" else on_rank_1) in started.output(1)
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (torch.ones(3, 4), "float32[*, *]"),
        ([torch.ones(3), torch.zeros(2, dtype=torch.int64)], "[float32[*], int64[*]]"),
        ({"x": torch.tensor(1.0)}, "{x: float32[]}"),
        (["a", "b"], "list"),
    ],
)
def test_batches_are_described(batch: object, words: str) -> None:
    """By types and dimensions; lengths may differ between ranks."""
    assert describe_batch(batch) == words
