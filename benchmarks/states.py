"""A state of a given size, and the ways to make it durable and to read it again."""

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from clusterddp.config.schema import Checkpoint
from clusterddp.dist import World
from clusterddp.runs.directory import RunDirectory
from clusterddp.training import Checkpoints, Snapshot
from clusterddp.training.host_copy import count_bytes

MIB = 1 << 20
# It says so at every save that goes where the last one went.
warnings.filterwarnings("ignore", "Detected an existing checkpoint")


class State:
    """A model with Adam's state of about so many MiB, and ways to save and load it."""

    def __init__(self, size: int, world: World, place: Path) -> None:
        """Make it, with one step done."""
        layers = max(1, round(size / 3 / 4))
        self.model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(layers)])
        self.optimizer = torch.optim.Adam(self.model.parameters(), foreach=True)
        self.step()
        self.place = place
        run = RunDirectory(place / "run")
        run.attempt(0).path.mkdir(parents=True)
        rules = Checkpoint(keep=2)
        self.checkpoints = Checkpoints(run, world, attempt=0, rules=rules)
        self._count = 0
        self._flat: tuple[torch.Tensor, torch.Tensor] | None = None
        self._pending: Any = None

    def values(self) -> dict[str, Any]:
        """Give what the trainer saves."""
        return {
            "model.pt": self.model.state_dict(),
            "optimizer.pt": {"optimizer": self.optimizer.state_dict()},
        }

    def step(self) -> None:
        """Make one step of training."""
        self.optimizer.zero_grad()
        self.model(torch.ones(8, 1024)).sum().backward()
        self.optimizer.step()

    def copy(self) -> None:
        """Copy as many bytes from one buffer to another: no snapshot takes less."""
        if self._flat is None:
            floats = count_bytes(self.values()) // 4
            self._flat = torch.ones(floats), torch.zeros(floats)
        self._flat[1].copy_(self._flat[0])

    def ours(self) -> None:
        """Save as the trainer does."""
        self._count += 1
        self.checkpoints.start(Snapshot(self._count, self.values(), {}), {})

    def plain(self) -> None:
        """Save as most do, durably."""
        aside = self.place / "plain.tmp"
        with aside.open("wb") as file:
            torch.save(self.values(), file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.place / "plain.pt")

    def dcp(self) -> None:
        """Save with PyTorch's own asynchronous saver, as it comes."""
        if self._pending is not None:
            self._pending.result()
        self._pending = dcp.async_save(self.values(), checkpoint_id=self.place / "dcp")

    def finish(self) -> None:
        """Wait until everything is durable."""
        self.checkpoints.finish()
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def load_ours(self) -> None:
        """Read the newest of ours, verified, into model and optimizer."""
        loaded = self.checkpoints.load()
        assert loaded is not None
        self._take(loaded.states)

    def load_plain(self, *, mmap: bool = False) -> None:
        """Read the plain file, which nothing verifies."""
        path = self.place / "plain.pt"
        self._take(torch.load(path, weights_only=True, mmap=mmap))

    def load_dcp(self) -> None:
        """Read what dcp wrote, into the state itself."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(self.values(), checkpoint_id=self.place / "dcp")

    def _take(self, states: Any) -> None:  # noqa: ANN401 - torch's nesting
        self.model.load_state_dict(states["model.pt"])
        self.optimizer.load_state_dict(states["optimizer.pt"]["optimizer"])


def clock(ask: Callable[[], object]) -> float:
    """Give the milliseconds that a call takes."""
    started = time.perf_counter()
    ask()
    return 1e3 * (time.perf_counter() - started)
