"""Stops at chosen places of a training, each at one to four ranks.

The random ones of test_trainer.py meet these places now and then; here they are met.
"""

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, get_worker_info

from clusterddp.runs.directory import RunDirectory
from clusterddp.training import Experiment
from clusterddp.training import checkpoint_files as disk
from tests import training_ranks as ranks
from tests.training_ranks import build_noisy, final_state

PLACES = ("first step", "mid window", "epoch edge", "evaluation", "save", "start")
PARTS = 2
STEPS_AN_EPOCH = 3  # 130 samples in batches of 48
SIZES = pytest.mark.parametrize("world_size", [1, 2, 3, 4])


def settings(params: Mapping[str, Any], **train: Any) -> dict[str, Any]:  # noqa: ANN401
    sizes = {"epochs": 8, "global_batch_size": 48, "accumulate": PARTS}
    return {
        "params": dict(params),
        "train": sizes
        | {"precision": "bf16", "ema": 0.9, "clip_grad_norm": 1.0}
        | train,
        "checkpoint": {"every": "4 steps"},
        "log": {"every": 3},
    }


def build_stopping(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; one rank signals itself at a place."""
    experiment = build_noisy(params)
    place = params["places"].get(str(params["attempt"]), "")
    if params["rank"] != params["victim"]:
        return experiment
    calls = itertools.count(-1 if params["attempt"] else -2)  # the first for nothing

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        is_last = len(batch[0]) < params["smallest"]
        if model.training and _is_there(place, next(calls), is_last=is_last):
            os.kill(os.getpid(), signal.SIGUSR1)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor]:
        if place == "evaluation":
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.05)
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1])}

    if place == "start":
        os.kill(os.getpid(), signal.SIGTERM)
    if place == "save":
        patch.object(disk, "write_files", _signal_and_write(disk.write_files)).start()
    return replace(experiment, loss=loss, evaluate=evaluate)


def _is_there(place: str, call: int, *, is_last: bool) -> bool:
    if place == "epoch edge":
        return call >= 0 and is_last
    return call == {"first step": 0, "mid window": 2 * PARTS + 1}.get(place)


def _signal_and_write(write: Any) -> Any:  # noqa: ANN401
    def signal_and_write(*args: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.02)
        return write(*args)

    return signal_and_write


def run_through(run: Path, world_size: int, params: dict[str, Any]) -> list[int]:
    """Run to the end; give the steps at which it stopped on the way."""
    stops = []
    for attempt in range(len(params["places"]) + 1):
        started = ranks.start_training(
            run, attempt, world_size, build_stopping, settings(params)
        )
        codes = set(started.wait())
        is_last = attempt == len(params["places"])
        assert codes == {0 if is_last else ranks.STOPPED}, started.output()
        if not is_last:
            newest = disk.list_checkpoints(run / "checkpoints")[0]
            stops.append(json.loads((newest / "state.json").read_text()))
    return [stop["step"] for stop in stops]


@SIZES
def test_stopped_at_six_places_it_ends_with_the_same_bits(
    tmp_path: Path, world_size: int
) -> None:
    """Mid accumulation window, in an evaluation, while a save is written, ..."""
    # The last batch of an epoch has 34 samples; its parts are the smallest.
    params: dict[str, Any] = {
        "victim": 0,
        "smallest": 48 // world_size // PARTS,
        "places": dict(zip("012345", PLACES, strict=True)),
    }
    stops = run_through(tmp_path / "stopped", world_size, params)
    assert stops == sorted(stops)
    assert 0 < stops[0] <= 2
    assert stops[2] % STEPS_AN_EPOCH in (0, 1)
    params["places"] = {}
    run_through(tmp_path / "straight", world_size, params)
    assert final_state(tmp_path / "stopped") == final_state(tmp_path / "straight")


class Drawing(Dataset[Tensor]):
    """Samples that are what python, numpy and torch draw for them."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Tensor:
        draws = random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002
        return torch.tensor([float(index), *draws], dtype=torch.float64)


def build_drawing(params: Mapping[str, Any]) -> Experiment:
    """Give an experiment that writes down its samples."""
    notes = params["run"] / f"drawn-{params['rank']}"

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        with notes.open("a") as file:
            file.writelines(f"{row}\n" for row in batch.tolist())
        values: Tensor = model(batch)
        return values.mean()

    return Experiment(
        nn.Linear(4, 1).double(),
        Drawing(),
        loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    )


def drawn(run: Path, world_size: int, workers: int) -> set[str]:
    chosen = {
        "train": {"epochs": 2, "global_batch_size": 8, "workers": workers, "seed": 3},
    }
    started = ranks.start_training(run, 0, world_size, build_drawing, chosen)
    assert set(started.wait()) == {0}, started.output()
    lines = [path.read_text().splitlines() for path in run.glob("drawn-*")]
    return set(itertools.chain.from_iterable(lines))


def test_draws_of_samples_do_not_depend_on_who_draws(tmp_path: Path) -> None:
    """On 1 to 4 ranks, with and without workers: 20 samples, two epochs, 40 draws."""
    expected = drawn(tmp_path / "alone", 1, 0)
    assert len(expected) == 40
    for world_size, workers in ((2, 0), (3, 2), (4, 0), (1, 2)):
        run = tmp_path / f"{world_size} {workers}"
        assert drawn(run, world_size, workers) == expected


class Slow(Dataset[Tensor]):
    """Rows of which one takes long; the rank that waits for it is told to stop."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params = params

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> Tensor:
        waited = self.params["run"] / "waited"
        if self.params["rank"] == self.params["victim"] and not waited.exists():
            waited.touch()
            is_worker = get_worker_info() is not None
            os.kill(os.getppid() if is_worker else os.getpid(), signal.SIGUSR2)
            time.sleep(0.7)
        return torch.tensor([float(index)])


def build_slow(params: Mapping[str, Any]) -> Experiment:
    return Experiment(
        nn.Linear(1, 1),
        Slow(params),
        lambda model, batch: model(batch).mean(),
        lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    )


@pytest.mark.parametrize(
    ("world_size", "victim", "workers"),
    [(1, 0, 1), (2, 1, 0), (3, 0, 1), (4, 3, 0)],
)
def test_a_signal_while_a_rank_waits_for_its_data(
    tmp_path: Path, world_size: int, victim: int, workers: int
) -> None:
    """All stop at one step, at once; one state is written, before anybody leaves."""
    chosen = settings({"victim": victim}, workers=workers)
    chosen["checkpoint"] = {"every": "1000 steps"}
    started = ranks.start_training(tmp_path, 0, world_size, build_slow, chosen)
    names = _watch(started, tmp_path)
    assert set(started.wait()) == {ranks.STOPPED}, started.output()
    assert names in (["step-00000001"], ["step-00000002"], ["step-00000000"])
    saves = RunDirectory(tmp_path).attempt(0).saves.read_text().splitlines()
    assert len([line for line in saves if json.loads(line)["event"] == "saved"]) == 1


def _watch(started: ranks.Ranks, run: Path) -> list[str]:
    """Give what is saved when the first rank is gone.

    Sends further signals, which change nothing. Which process is gone first says
    little: rank 0 returns last, and may still end sooner than another's threads.
    """
    deadline = time.monotonic() + 60
    while all(process.is_alive() for process in started.processes):
        assert time.monotonic() < deadline, started.output()
        for rank in range(len(started.processes)):
            if (started.directory / f"joined-{rank}").exists():
                started.send(rank, signal.SIGTERM)
        time.sleep(0.01)
    return [path.name for path in (run / "checkpoints").glob("step-*")]
