"""Data order: a function of (seed, epoch) alone; the position is one number."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import Sampler

from clusterddp.errors import UsageError
from clusterddp.training.order import Order

__all__ = ["GlobalSampler", "Span", "share"]


def share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """Give the [start, stop) of `count` items that a rank takes.

    The shares are contiguous and differ by at most one; the first ranks have
    the larger ones, so rank 0's is empty only when there is nothing at all.
    """
    base, extra = divmod(count, world_size)
    start = rank * base + min(rank, extra)
    return start, start + base + (rank < extra)


@dataclass(frozen=True)
class Span:
    """One global batch, and this rank's part of it.

    Attributes:
        epoch: counted from 0.
        start: samples of the epoch that come before this batch.
        total: samples of the batch over all ranks.
        offset: where this rank's share begins, counted from `start`.
        count: samples of this rank's share; 0 in a last batch that is smaller
            than the world.
    """

    epoch: int
    start: int
    total: int
    offset: int
    count: int


class GlobalSampler(Sampler[list[int]]):
    """Gives each rank its share of every *global* batch; a DataLoader batch_sampler.

    An epoch is a permutation drawn from (seed, epoch), cut into global batches;
    the last one may be partial. So neither the number of ranks nor any stop
    changes which samples a batch holds, and every sample comes once per epoch.

    In a last batch smaller than the world some ranks have no sample. They get
    the batch's first one as a filler, so that they take part in the step: give
    their loss the weight 0 (`span(position).count` is 0; the Trainer does it).
    Any value that is not finite there is then also in the batch of rank 0, so
    the filler cannot poison a step that would have been sound.

    Example:
        sampler = GlobalSampler(len(data), 96, world.rank, world.world_size, seed=0)
        loader = DataLoader(data, batch_sampler=sampler)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)   # or sampler.seek(samples consumed so far)
            for batch in loader: ...
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        seed: int = 0,
    ) -> None:
        """Make a sampler at position 0.

        Args:
            size: samples in the dataset.
            batch_size: samples of one global batch, over all ranks.
            rank: this rank.
            world_size: number of ranks.
            seed: what the order of all epochs follows from.

        Raises:
            UsageError: a size is below 1, or the rank is not in the world.
        """
        if size < 1 or batch_size < 1 or not 0 <= rank < world_size:
            raise UsageError(
                f"GlobalSampler: size={size}, batch_size={batch_size}, rank={rank} of "
                f"{world_size}: sizes must be at least 1 and 0 <= rank < world_size"
            )
        self.size = size
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.position = 0
        self._order = Order(size, seed)

    @property
    def batches_per_epoch(self) -> int:
        """The number of global batches, the last partial one included."""
        return -(-self.size // self.batch_size)

    def seek(self, position: int) -> None:
        """Go to a position: samples consumed by all ranks since the very start."""
        self.position = position

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, counted from 0."""
        self.seek(epoch * self.size)

    def span(self, position: int) -> Span:
        """Give the global batch that begins at a position, without iterating."""
        epoch, start = divmod(position, self.size)
        total = min(self.batch_size, self.size - start)
        first, last = share(total, self.rank, self.world_size)
        return Span(epoch, start, total, first, last - first)

    def spans(self, position: int, end: int) -> Iterator[Span]:
        """Give the global batches from one position to another, over epochs."""
        while position < end:
            span = self.span(position)
            yield span
            position += span.total

    def count_batches(self, position: int, end: int) -> int:
        """Count what `spans` would give, without iterating."""
        return self._batches_before(end) - self._batches_before(position)

    def samples(self, span: Span) -> torch.Tensor:
        """Give this rank's samples of a batch, int64; one filler when it has none."""
        if span.count == 0:
            return self._order.slice(span.epoch, span.start, 1)
        return self._order.slice(span.epoch, span.start + span.offset, span.count)

    def indices(self, span: Span) -> list[int]:
        """Give the same as plain numbers."""
        found: list[int] = self.samples(span).tolist()
        return found

    def __iter__(self) -> Iterator[list[int]]:
        end = (self.position // self.size + 1) * self.size
        for span in self.spans(self.position, end):
            yield self.indices(span)

    def __len__(self) -> int:
        end = (self.position // self.size + 1) * self.size
        return self.count_batches(self.position, end)

    def _batches_before(self, position: int) -> int:
        epoch, start = divmod(position, self.size)
        return epoch * self.batches_per_epoch + -(-start // self.batch_size)
