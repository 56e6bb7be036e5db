"""The toy, and each rank writes down which samples its loss was given."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import clusterddp
from clusterddp.runs.directory import RunDirectory
from tests import toy

STEPS_PER_EPOCH = 10


def build(params: Mapping[str, Any]) -> clusterddp.Experiment:
    """Give the toy's experiment with a loss that keeps a record."""
    experiment = toy.build(params)
    points = toy.Points(params).x

    def loss(
        model: nn.Module, batch: toy.Batch
    ) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        _write_down([_find(points, row) for row in batch[0]])
        return experiment.loss(model, batch)

    return clusterddp.Experiment(
        model=experiment.model,
        train_data=experiment.train_data,
        loss=loss,
        optimizer=experiment.optimizer,
    )


def _find(points: Tensor, row: Tensor) -> int:
    return int((points == row).all(1).nonzero()[0, 0])


def _write_down(samples: list[int]) -> None:
    attempt, rank = os.environ["CLUSTERDDP_ATTEMPT"], torch.distributed.get_rank()
    path = Path(os.environ["CLUSTERDDP_RUN_DIR"]) / f"seen-{attempt}-{rank}"
    with path.open("a") as file:
        file.write(f"{json.dumps(samples)}\n")


def read_epochs(run: RunDirectory) -> list[list[int]]:
    """Give the samples of each epoch, by the steps that stayed, sorted."""
    steps: dict[int, list[int]] = {}
    for attempt in run.list_attempts():
        words = attempt.path / "resume.json"
        first = int(json.loads(words.read_text())["step"] or 0)
        # First come the warm-up's and, in a fresh run, the first look's.
        before = 2 if attempt.number == 0 else 1
        for number in [one for one in steps if one >= first]:
            del steps[number]
        for path in run.path.glob(f"seen-{attempt.path.name}-*"):
            for step, line in enumerate(path.read_text().splitlines()[before:], first):
                steps.setdefault(step, []).extend(json.loads(line))
    ends = range(STEPS_PER_EPOCH, max(steps) + 2, STEPS_PER_EPOCH)
    epochs = (range(end - STEPS_PER_EPOCH, end) for end in ends)
    return [sorted(one for step in epoch for one in steps[step]) for epoch in epochs]
