"""Metrics: sums per sample, reduced once per log point; a step stands there once."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from clusterddp.dist import World, reduce_sums
from clusterddp.training.metric_files import MetricFiles, cut_lines
from clusterddp.training.reduction import Reduction
from clusterddp.training.sums import WeightedSums, means

__all__ = ["MetricLog", "cut_lines", "reduce_mean"]


class MetricPaths(Protocol):
    """Where the metrics of a run go; a RunDirectory is one."""

    @property
    def metrics(self) -> Path:
        """The file of JSON lines."""

    @property
    def tensorboard(self) -> Path:
        """The directory of event files."""


def reduce_mean(value: float | Tensor, count: int) -> float:
    """Give the mean over all samples of all ranks; all ranks must call it.

    Args:
        value: the mean over this rank's samples.
        count: how many samples that were; the value of 0 samples is ignored.

    Returns:
        NaN if no rank had a sample.
    """
    total, samples = reduce_sums([float(value) * count if count else 0.0, count])
    return total / samples if samples else math.nan


class MetricLog:
    """Sums losses on every rank; writes log points on rank 0.

    Between two log points nothing is sent and no GPU is waited for. One line of
    `metrics.jsonl` is one log point: {"step": 120, "epoch": 2, "time": ..., ...}.
    """

    def __init__(
        self,
        paths: MetricPaths,
        world: World,
        device: torch.device,
        *,
        resume_step: int = 0,
    ) -> None:
        """Open the files, on rank 0, and cut off what is to be done again.

        Args:
            paths: where the files are.
            world: this rank among the others.
            device: where losses are summed.
            resume_step: the last step whose line stays.
        """
        self._world = world
        self._device = device
        self._sums = WeightedSums(device)
        self._files: MetricFiles | None = None
        if world.rank == 0:
            self._files = MetricFiles(paths.metrics, paths.tensorboard, resume_step)

    def note(
        self,
        loss: Tensor,
        count: float | Tensor,
        values: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Take in the means over `count` samples of this rank; sends nothing.

        `count` may be any weight, a number of tokens for instance, also on the device.
        """
        self._sums.add({"loss": loss, **(values or {})}, count)

    def reduce(self) -> dict[str, float]:
        """Give the means since the last call, over all ranks, and begin anew.

        All ranks must call it; one all-reduce. Empty if nothing was noted.

        Raises:
            UsageError: the ranks noted other names.
        """
        return means(self.begin_reduce().finish().sums)

    def begin_reduce(self, *own: float) -> Reduction:
        """Begin the same, and carry some numbers of each rank along.

        Args:
            *own: what the others are to know of this rank; as many on each.
        """
        sums, self._sums = self._sums, WeightedSums(self._device)
        return sums.reduce(self._world, own=own, source="Experiment.loss")

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Write one log point on rank 0.

        Args:
            step: finished steps; larger than at the last log point.
            epoch: counted from 1.
            values: numbers by name.
        """
        if self._files is not None:
            now = round(time.time(), 3)
            line = {"step": step, "epoch": epoch, "time": now, **values}
            self._files.write(step, line, values)

    def sync(self) -> None:
        """Make all lines durable; a checkpoint must not know more than the log.

        Raises:
            OSError: some cannot be written.
        """
        if self._files is not None:
            self._files.sync()

    def state(self) -> dict[str, object]:
        """Give this rank's sums since the last log point, as JSON."""
        return self._sums.state()

    def load(self, states: Sequence[Mapping[str, object]]) -> None:
        """Take over the sums of a checkpoint: of all ranks, in their order.

        At another number of ranks, rank 0 takes all: the total is what counts.
        """
        if len(states) == self._world.world_size:
            self._sums.take(states[self._world.rank])
            return
        for state in states:
            self._sums.take(state, keep=self._world.rank == 0)

    def close(self) -> None:
        """Flush and close."""
        if self._files is not None:
            self._files.close()
