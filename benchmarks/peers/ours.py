"""The training as an experiment of clusterddp.

`params` are `diary` (a directory), `pause_s` and `rank_variable`.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import clusterddp
from benchmarks.peers.common import Diary, loss_of, make_data, make_model
from benchmarks.stages.notes import note


def build(params: Mapping[str, Any]) -> clusterddp.Experiment:
    """Give the experiment."""
    note("build")
    diary = Diary(params["diary"], int(os.environ.get("RANK", "0")))
    calls = 0

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        diary.meet_fault(calls)
        return loss_of(model, batch, params["pause_s"])

    def on_log(step: int, _values: object) -> None:
        diary.finished(step)

    experiment = clusterddp.Experiment(
        model=make_model(),
        train_data=make_data(),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        on_log=on_log,
    )
    note("built")
    return experiment
