"""The model, the data and the diary that all contenders share; torch alone.

The diary is how contenders are compared: every rank enters its pid when it starts,
rank 0 every finished step, each with the time.
"""

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

SAMPLES, FEATURES, CLASSES, BATCH = 9600, 64, 10, 32
STEPS_AN_EPOCH = SAMPLES // BATCH


def make_model() -> nn.Module:
    """Give a net of 3 MiB with the same weights for everybody."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(),
        nn.Linear(800, CLASSES),
    )  # fmt: skip


def make_data() -> TensorDataset:
    """Give points that a plane divides."""
    x = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(1) > 0).long())


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor], pause_s: float) -> Tensor:
    """Give the loss, after a pause that stands for more work."""
    time.sleep(pause_s)
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Give everybody's optimizer."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class Diary:
    """What a rank tells the measurement, in a directory that both see."""

    def __init__(self, place: str | Path, rank: int) -> None:
        """Enter this process; a fault is met by the last entered rank that is not 0."""
        self._place, self._rank = Path(place), rank
        self._write("pids", f"{rank} {os.getpid()}")

    def finished(self, step: int) -> None:
        """Enter a finished step."""
        if self._rank == 0:
            self._write("steps", f"{time.time():.4f} {step} {os.getpid()}")

    def meet_fault(self, step: int) -> None:
        """Raise if the measurement has put a fault there; once."""
        fault = self._place / "fault"
        if self._rank == 1 and fault.exists():
            fault.unlink()
            raise RuntimeError(f"an injected fault at step {step}")

    def _write(self, name: str, line: str) -> None:
        with (self._place / name).open("a") as file:
            file.write(f"{line}\n")
