"""`python -m benchmarks.input`: how many samples a second the loader gives.

The trainer's own path (global sampler, a seed for each sample, workers that outlive
signals) beside a plain DataLoader with the same data, batches and workers, which
seeds nothing. A dataset of tensors, and one that draws and computes, as augmentation
does.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.harness import Variant, arguments, measure, record
from benchmarks.result import Result, Target
from clusterddp.training.data import BatchKey, BatchSource, SeededBatches
from clusterddp.training.sampler import GlobalSampler

ASKED = "Does seeding every sample slow the input down?"
BATCH = 64


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Images of 3 x 32 x 32 that are flipped, shifted and made noisy at random."""

    def __init__(self, count: int) -> None:
        """Draw the images."""
        self.images = torch.rand(count, 3, 32, 32)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        shift = int(torch.randint(-4, 5, ()))
        image = image.roll(shift, -1) + 0.05 * torch.randn(3, 32, 32)
        return (image - image.mean()) / image.std(), torch.tensor(index % 10)


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = arguments(parser)
    torch.set_num_threads(1)
    batches = 60 if given.quick else 200
    blocks = 2 if given.quick else 7
    rows = torch.rand(50_000, 128)
    data: dict[str, Dataset[Any]] = {
        "rows of tensors": TensorDataset(rows, rows[:, 0]),
        "augmented images": Augmented(10_000),
    }
    with record("input", ASKED, given.results) as results:
        for name, dataset in data.items():
            for workers in (0, 2):
                results.append(ask(name, dataset, workers, batches, blocks))


def ask(
    name: str, data: Dataset[Any], workers: int, batches: int, blocks: int
) -> Result:
    """Ask for microseconds a sample, after the first batches."""
    return measure(
        f"{name}, {workers} workers: time of a sample",
        {
            "plain DataLoader": plain(data, workers, batches),
            "ours, every sample seeded": ours(data, workers, batches),
        },
        unit="us",
        blocks=blocks,
        seconds=25,
        baseline="plain DataLoader",
        targets=[Target("ours, every sample seeded", ratio=1.05, extra=10)],
    )


def plain(data: Dataset[Any], workers: int, batches: int) -> Variant:
    """Iterate as everybody does."""

    def measured() -> float:
        loader = DataLoader(data, BATCH, shuffle=True, num_workers=workers)
        source = _forever(loader)
        return _pace(lambda: next(source), batches)

    return measured


def ours(data: Dataset[Any], workers: int, batches: int) -> Variant:
    """Iterate as the trainer does."""

    def measured() -> float:
        sampler = GlobalSampler(len(data), BATCH, seed=0)  # type: ignore[arg-type]

        def keys() -> Iterator[BatchKey]:
            for span in sampler.spans(0, 10**9):
                yield BatchKey(span.epoch, sampler.samples(span))

        batches_of = SeededBatches(data, None, seed=0)
        source = BatchSource(batches_of, keys, workers=workers)
        due = BatchKey(0, [])  # asked for only when workers have died
        pace = _pace(lambda: source.next(lambda: due, alone=lambda: False), batches)
        source.close()
        return pace

    return measured


def _forever(loader: "DataLoader[Any]") -> Iterator[Any]:
    while True:
        yield from loader


def _pace(fetch: Any, batches: int) -> float:  # noqa: ANN401 - whatever fetches
    for _ in range(5):
        fetch()
    begin = time.perf_counter()
    for _ in range(batches):
        fetch()
    return 1e6 * (time.perf_counter() - begin) / (batches * BATCH)


if __name__ == "__main__":
    main()
