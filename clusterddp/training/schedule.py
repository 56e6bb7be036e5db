"""The schedule: where a training stands, and what is due there; pure functions."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from clusterddp.config.schema import Job
from clusterddp.dist import World
from clusterddp.training.data import SampleKey
from clusterddp.training.sampler import GlobalSampler, Span

__all__ = ["Schedule", "Standing"]


@dataclass
class Standing:
    """Where the training stands; equal on all ranks, part of every checkpoint.

    Attributes:
        step: finished optimizer steps.
        position: samples that all ranks together have consumed since the start.
        noted: the last step at which everything due was evaluated and logged;
            smaller than `step` when a stop came during an evaluation.
        metrics: the values of the last evaluation.
    """

    step: int = 0
    position: int = 0
    noted: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to evaluate or log at this step."""
        return self.noted == self.step


class Schedule:
    """Says what is due at a standing; the same answers on all ranks."""

    def __init__(self, job: Job, samples: int, world: World) -> None:
        """Lay out the training.

        Args:
            job: epochs, batch size, seed, intervals.
            samples: size of the training data.
            world: this rank among the others.
        """
        self._job = job
        self.epochs = job.train.epochs
        self.sampler = GlobalSampler(
            samples,
            job.train.global_batch_size,
            world.rank,
            world.world_size,
            seed=job.train.seed,
        )
        self.end = samples * self.epochs

    def is_over(self, at: Standing) -> bool:
        """Whether all samples of all epochs are consumed."""
        return at.position >= self.end

    def is_finished(self, at: Standing) -> bool:
        """Whether, beyond that, the last evaluation is done."""
        return self.is_over(at) and at.is_settled

    def is_epoch_edge(self, at: Standing) -> bool:
        """Whether a whole number of epochs is done; evaluations are due there."""
        return at.position % self.sampler.size == 0

    def is_log_due(self, at: Standing) -> bool:
        """Whether a log point is due; always at an epoch's edge."""
        return self.is_epoch_edge(at) or at.step % self._job.log.every == 0

    def is_save_due(self, at: Standing) -> bool:
        """Whether a checkpoint is due."""
        every = self._job.checkpoint.every
        if every.steps is not None and at.step % every.steps == 0:
            return True
        if every.epochs is None or not self.is_epoch_edge(at):
            return False
        return self.epoch(at) % every.epochs == 0

    def epoch(self, at: Standing) -> int:
        """Give the epoch of the last finished step, counted from 1."""
        return max(0, at.position - 1) // self.sampler.size + 1

    def total_steps(self, at: Standing) -> int:
        """Give the number of steps of the whole training."""
        return at.step + self.sampler.count_batches(at.position, self.end)

    def keys(self, span: Span) -> list[SampleKey]:
        """Give this rank's samples of one global batch."""
        return [SampleKey(span.epoch, sample) for sample in self.sampler.indices(span)]

    def all_keys(self, position: int) -> Iterator[list[SampleKey]]:
        """Give this rank's samples of every batch from a position to the end."""
        for span in self.sampler.spans(position, self.end):
            yield self.keys(span)
