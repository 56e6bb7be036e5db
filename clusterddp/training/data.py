"""Loading: batches whose random draws follow from (seed, epoch, sample) alone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from clusterddp.training.randomness import Seeds, preserved, seed_all
from clusterddp.training.workers import DEATHS, settle_worker, shielded

__all__ = ["BatchKey", "BatchSource", "SeededBatches", "move"]

_SAMPLE = 0x73616D706C65  # "sample": keeps this stream apart from the others


class BatchKey(NamedTuple):
    """Which samples, in which epoch: what their random draws are seeded by."""

    epoch: int
    samples: Tensor | Sequence[int]


class SeededBatches(Dataset[Any]):
    """A dataset of whole batches: fetches, seeds each sample, and collates.

    Whichever process fetches a sample, its draws from python's, numpy's and
    torch's global generators are the same. In the main process the generators
    are put back afterwards, so that dropout does not see the difference
    between no workers and some.
    """

    def __init__(
        self,
        data: Dataset[Any],
        collate: Callable[[list[Any]], Any] | None,
        seed: int,
    ) -> None:
        self.data = data
        # Rows of tensors draw nothing and need no collating: 15 us a batch, not 500.
        self._rows = None if collate is not None else _rows(data)
        self.collate = default_collate if collate is None else collate
        self.seed = seed
        self._seeds = (-1, Seeds())

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]  # Experiment has checked it

    def __getitem__(self, key: tuple[int, int]) -> Any:  # noqa: ANN401 - the user's
        epoch, sample = key
        if epoch != self._seeds[0]:
            self._seeds = (epoch, Seeds(self.seed, _SAMPLE, epoch))
        seed_all(self._seeds[1][sample])
        return self.data[sample]

    def __getitems__(self, key: BatchKey) -> Any:  # noqa: ANN401
        """Give the batch of these samples (torch's fetcher calls this by name)."""
        if self._rows is not None:
            tensors, picked = self._rows
            rows = torch.as_tensor(key.samples)
            rows = rows if picked is None else picked[rows]
            # index_select: a list as the index costs 20 us for each tensor.
            return [tensor.index_select(0, rows) for tensor in tensors]
        with preserved() if get_worker_info() is None else nullcontext():
            samples = _plain(key.samples)
            return self.collate([self[key.epoch, sample] for sample in samples])


class BatchSource:
    """This rank's batches in order; workers live as long as the source."""

    def __init__(
        self,
        batches: SeededBatches,
        keys: Callable[[], Iterator[BatchKey]],
        *,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        """Start the workers, if any.

        Args:
            batches: where batches come from.
            keys: gives the iterator over the keys of all batches.
            workers: processes that load ahead; 0 loads in this process.
            pin_memory: put batches where a GPU can read them directly.
        """
        self._batches = batches
        self._iterator: Iterator[Any] | None = None
        self._has_workers = workers > 0
        if not workers and not pin_memory:
            # What a DataLoader without workers does, less 20 us a batch.
            self._iterator = map(batches.__getitems__, keys())
            return
        loader = DataLoader(
            batches,
            batch_sampler=_Keys(keys),  # type: ignore[arg-type]  # any key of a batch
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=pin_memory,
            worker_init_fn=settle_worker,
            # An iterator draws its base seed from here; from the global generator
            # it would shift every later dropout mask of a resumed process.
            generator=torch.Generator().manual_seed(0),
        )
        with shielded():
            self._iterator = iter(loader)

    def next(self, key: Callable[[], BatchKey], *, alone: Callable[[], bool]) -> object:
        """Give the next batch.

        Args:
            key: names the samples that are due, should the workers be gone.
            alone: asked when a worker has died: whether to fetch this batch and
                all later ones in this process instead of failing.
        """
        if self._iterator is not None:
            try:
                return next(self._iterator)
            except DEATHS:
                if not self._has_workers or not alone():
                    raise
                self._iterator = None
        return self._batches.__getitems__(key())

    def close(self) -> None:
        """Let the workers go."""
        self._iterator = None


class _Keys:
    def __init__(self, keys: Callable[[], Iterator[BatchKey]]) -> None:
        self._keys = keys

    def __iter__(self) -> Iterator[BatchKey]:
        # A tensor would go to the workers through shared memory, a file for each.
        return (BatchKey(epoch, _plain(samples)) for epoch, samples in self._keys())


def _as_it_is(batch: object) -> object:
    return batch


def _rows(data: Dataset[Any]) -> tuple[tuple[Tensor, ...], Tensor | None] | None:
    """Give the tensors of a dataset of rows, or of a part of one, and which rows."""
    if type(data) is TensorDataset:
        return data.tensors, None
    if type(data) is not Subset:
        return None
    whole, indices = _rows(data.dataset), torch.as_tensor(data.indices)
    if whole is None:
        return None
    return whole[0], indices if whole[1] is None else whole[1][indices]


def _plain(samples: Tensor | Sequence[int]) -> Sequence[int]:
    if isinstance(samples, Tensor):
        plain: list[int] = samples.tolist()
        return plain
    return samples


def move(value: Any, device: torch.device) -> Any:  # noqa: ANN401 - any nesting
    """Give the same nesting of tuples, lists and dicts with tensors on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: move(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move(item, device) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(move(item, device) for item in value)
    # Other batch types (a graph batch, tokenizer output) bring their own `to`.
    return value.to(device) if hasattr(value, "to") else value
