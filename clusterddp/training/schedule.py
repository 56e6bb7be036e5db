"""The schedule: where a training stands, and what is due there; pure functions."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from clusterddp.config.schema import Job
from clusterddp.dist import World
from clusterddp.training.data import BatchKey
from clusterddp.training.sampler import GlobalSampler, Span, share

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
        grad_norm: of the last step with a log point; a stop during the evaluation
            before that point must not lose it.
    """

    step: int = 0
    position: int = 0
    noted: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    grad_norm: float | None = None

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
        self._log_every = job.log.every
        self._save_every = job.checkpoint.every
        self._accumulate = job.train.accumulate
        self._world_size = world.world_size
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

    def following(self, span: Span) -> Span | None:
        """Give the global batch after one; None after the last."""
        size = self.sampler.size
        position = span.epoch * size + span.start + span.total
        return self.sampler.span(position) if position < self.end else None

    def is_log_due(self, at: Standing) -> bool:
        """Whether a log point is due; always at an epoch's edge."""
        return self.is_epoch_edge(at) or at.step % self._log_every == 0

    def is_log_next(self, at: Standing, span: Span) -> bool:
        """Whether a log point is due after the step of this global batch."""
        is_edge = span.start + span.total == self.sampler.size
        return is_edge or (at.step + 1) % self._log_every == 0

    def is_save_due(self, at: Standing) -> bool:
        """Whether a checkpoint is due."""
        every = self._save_every
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

    def counts(self, span: Span) -> list[int]:
        """Give the sizes of the parts in which this rank computes its share.

        All ranks have as many parts, so that they meet as often; where a share has
        fewer samples than that, some parts are fillers, of size 0.
        """
        largest = -(-span.total // self._world_size)
        parts = min(self._accumulate, largest)
        if parts == 1:
            return [span.count]
        bounds = (share(span.count, part, parts) for part in range(parts))
        return [last - first for first, last in bounds]

    def keys(self, span: Span) -> Iterator[BatchKey]:
        """Give the samples of each part; of a filler, one that has no weight."""
        samples, counts = self.sampler.samples(span), self.counts(span)
        if len(counts) == 1:
            yield BatchKey(span.epoch, samples)
            return
        first = 0
        for size in counts:
            part = samples[first : first + size] if size else samples[:1]
            yield BatchKey(span.epoch, part)
            first += size

    def all_keys(self, position: int) -> Iterator[BatchKey]:
        """Give this rank's parts of every batch from a position to the end."""
        for span in self.sampler.spans(position, self.end):
            yield from self.keys(span)
