"""Loading: batches whose random draws follow from (seed, epoch, sample) alone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from clusterddp.training.randomness import mix, preserved, seed_all
from clusterddp.training.workers import DEATHS, settle_worker, shielded

__all__ = ["BatchSource", "SampleKey", "SeededBatches", "move"]

_SAMPLE = 0x73616D706C65  # "sample": keeps this stream apart from the others


class SampleKey(NamedTuple):
    """Which sample, in which epoch: what its random draws are seeded by."""

    epoch: int
    sample: int


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
        # Rows of tensors draw nothing and need no collating: 20 us a batch, not 500.
        self._tensors: tuple[Tensor, ...] | None = None
        if type(data) is TensorDataset and collate is None:
            self._tensors = data.tensors
        self.collate = default_collate if collate is None else collate
        self.seed = seed

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]  # Experiment has checked it

    def __getitem__(self, key: SampleKey) -> Any:  # noqa: ANN401 - the user's sample
        seed_all(mix(self.seed, _SAMPLE, key.epoch, key.sample))
        return self.data[key.sample]

    def __getitems__(self, keys: Sequence[SampleKey]) -> Any:  # noqa: ANN401
        """Give the batch of these samples (torch's fetcher calls this by name)."""
        if self._tensors is not None:
            samples = [key.sample for key in keys]
            return [tensor[samples] for tensor in self._tensors]
        with preserved() if get_worker_info() is None else nullcontext():
            return self.collate([self[key] for key in keys])


class BatchSource:
    """This rank's batches in order; workers live as long as the source."""

    def __init__(
        self,
        batches: SeededBatches,
        keys: Callable[[], Iterator[list[SampleKey]]],
        *,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        """Start the workers, if any.

        Args:
            batches: where batches come from.
            keys: gives the iterator over the samples of each batch.
            workers: processes that load ahead; 0 loads in this process.
            pin_memory: put batches where a GPU can read them directly.
        """
        self._batches = batches
        loader = DataLoader(
            batches,
            batch_sampler=_Keys(keys),
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=pin_memory,
            worker_init_fn=settle_worker,
            # An iterator draws its base seed from here; from the global generator
            # it would shift every later dropout mask of a resumed process.
            generator=torch.Generator().manual_seed(0),
        )
        with shielded():
            self._iterator: Iterator[Any] | None = iter(loader)

    def next(
        self, keys: Callable[[], Sequence[SampleKey]], *, alone: Callable[[], bool]
    ) -> object:
        """Give the next batch.

        Args:
            keys: names the samples that are due, should the workers be gone.
            alone: asked when a worker has died: whether to fetch this batch and
                all later ones in this process instead of failing.
        """
        if self._iterator is not None:
            try:
                return next(self._iterator)
            except DEATHS:
                if not alone():
                    raise
                self._iterator = None
        return self._batches.__getitems__(keys())

    def close(self) -> None:
        """Let the workers go."""
        self._iterator = None


class _Keys:
    def __init__(self, keys: Callable[[], Iterator[list[SampleKey]]]) -> None:
        self._keys = keys

    def __iter__(self) -> Iterator[list[SampleKey]]:
        return self._keys()


def _as_it_is(batch: object) -> object:
    return batch


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
