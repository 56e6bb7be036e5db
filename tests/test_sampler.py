"""The data order: a function of (seed, epoch), whatever the number of ranks."""

import random
import time
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from clusterddp.errors import UsageError
from clusterddp.training import GlobalSampler
from clusterddp.training.order import Order
from clusterddp.training.randomness import Seeds, mix, seed_all
from clusterddp.training.sampler import share

sizes = st.integers(1, 60)
worlds = st.integers(1, 7)


@given(count=st.integers(0, 100), world=worlds)
def test_shares_are_contiguous_and_differ_by_at_most_one(
    count: int, world: int
) -> None:
    """Together the shares are everything, once, the larger ones first."""
    shares = [share(count, rank, world) for rank in range(world)]
    assert [i for first, last in shares for i in range(first, last)] == [*range(count)]
    lengths = [last - first for first, last in shares]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


def consumed(
    size: int, batch: int, world: int, start: int, end: int
) -> list[list[int]]:
    """Give the samples of each global batch that `world` ranks consume."""
    samplers = [GlobalSampler(size, batch, r, world, seed=5) for r in range(world)]
    batches = []
    for parts in zip(*(s.spans(start, end) for s in samplers), strict=True):
        pairs = list(zip(samplers, parts, strict=True))
        batches.append([i for s, p in pairs for i in s.indices(p)[: p.count]])
        assert sum(p.count for p in parts) == parts[0].total == len(batches[-1])
    return batches


@given(size=sizes, batch=sizes, world=worlds)
def test_every_sample_comes_once_per_epoch(size: int, batch: int, world: int) -> None:
    """No sample is dropped, padded or repeated, in any of two epochs."""
    batches = consumed(size, batch, world, 0, 2 * size)
    flat = [i for one in batches for i in one]
    assert sorted(flat[:size]) == sorted(flat[size:]) == list(range(size))
    assert len(batches) == 2 * -(-size // batch)


@given(size=sizes, batch=sizes, data=st.data())
def test_global_batches_do_not_depend_on_the_number_of_ranks(
    size: int, batch: int, data: st.DataObject
) -> None:
    """A run may stop at some ranks and go on at others, at any step."""
    whole = consumed(size, batch, 1, 0, 2 * size)
    cut = data.draw(st.integers(0, len(whole)))
    position = sum(len(one) for one in whole[:cut])
    first, second = data.draw(worlds), data.draw(worlds)
    before = consumed(size, batch, first, 0, position)
    assert before + consumed(size, batch, second, position, 2 * size) == whole


@given(size=sizes, batch=sizes, cut=st.integers(0, 100))
def test_batches_are_counted_without_iterating(size: int, batch: int, cut: int) -> None:
    """count_batches agrees with the batches that come."""
    sampler = GlobalSampler(size, batch)
    ends = [0]
    for span in sampler.spans(0, 3 * size):
        ends.append(ends[-1] + span.total)
    position = ends[min(cut, len(ends) - 1)]
    expected = len(list(sampler.spans(position, 3 * size)))
    assert sampler.count_batches(position, 3 * size) == expected


def test_a_far_position_costs_nothing() -> None:
    """Resuming finds its place by arithmetic, not by reading and discarding."""
    sampler = GlobalSampler(1_000, 7)
    started = time.perf_counter()
    span = sampler.span(10**15 + 994)
    assert time.perf_counter() - started < 0.1
    assert (span.epoch, span.start, span.total) == (10**12, 994, 6)


def test_a_rank_without_samples_gets_a_filler_of_weight_0() -> None:
    """In a last batch smaller than the world, everybody still takes part."""
    samplers = [GlobalSampler(5, 4, rank, 3) for rank in range(3)]
    spans = [sampler.span(4) for sampler in samplers]
    assert [span.count for span in spans] == [1, 0, 0]
    pairs = zip(samplers, spans, strict=True)
    assert len({tuple(s.indices(span)) for s, span in pairs}) == 1


def test_orders_differ_between_epochs_and_seeds() -> None:
    """The order is drawn anew each epoch, and the same again for the same seed."""

    def order(seed: int, epoch: int) -> list[int]:
        sampler = GlobalSampler(50, 50, seed=seed)
        sampler.set_epoch(epoch)
        return next(iter(sampler))

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(s, e)) for s in range(3) for e in range(3)}) == 9


def test_it_is_a_batch_sampler_for_a_data_loader() -> None:
    """In a user's own loop it goes on from a position to the end of that epoch."""
    data = TensorDataset(torch.arange(10))
    sampler = GlobalSampler(10, 4, seed=1)
    loader = DataLoader(data, batch_sampler=sampler)
    assert len(loader) == 3
    whole = [batch.tolist() for (batch,) in loader]
    sampler.seek(4)
    assert len(sampler) == 2
    assert [batch.tolist() for (batch,) in loader] == whole[1:]


@pytest.mark.parametrize(
    ("size", "batch", "rank"),
    [(0, 1, 0), (1, 0, 0), (1, 1, 2), (1, 1, -1)],
    ids=["no data", "no batch", "rank too large", "rank below 0"],
)
def test_impossible_numbers_are_refused(size: int, batch: int, rank: int) -> None:
    """The message names all the numbers."""
    message = f"size={size}, batch_size={batch}, rank={rank} of 2"
    with pytest.raises(UsageError, match=message):
        GlobalSampler(size, batch, rank, 2)


@pytest.mark.parametrize("size", [*range(1, 40), 63, 64, 65, 1000, 4096, 5001])
def test_computed_orders_are_permutations(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of data too large for a list; of any size, other ones in each epoch."""
    monkeypatch.setattr("clusterddp.training.order.LARGEST_LIST", 0)
    orders = [Order(size, seed=3).slice(epoch, 0, size) for epoch in range(3)]
    for order in orders:
        assert order.sort().values.tolist() == list(range(size))
    if size > 30:
        assert len({tuple(order.tolist()) for order in orders}) == 3
        moved = (orders[0] != torch.arange(size)).float().mean()
        assert moved > 0.5
        near = (orders[0].diff().abs() < size / 10).float().mean()
        assert near < 0.5  # neighbours are torn apart; 0.19 by chance


def test_a_huge_dataset_needs_no_memory() -> None:
    """The samples of any place are there at once, in pieces or whole."""
    size = 10**9
    tracemalloc.start()
    sampler = GlobalSampler(size, 4096, 1, 2, seed=7)
    sampler.seek(3 * size + 123_456_789)
    found = next(iter(sampler))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20
    assert len(set(found)) == 2048
    assert min(found) < size // 100 < 99 * (size // 100) < max(found) < size
    order = Order(size, seed=7)
    whole = order.slice(3, 500, 64)
    halves = [order.slice(3, 500, 32), order.slice(3, 532, 32)]
    assert torch.equal(whole, torch.cat(halves))


def test_seeds_of_samples_are_what_mix_gives() -> None:
    """And python's generator is seeded as random.seed does it."""
    assert [Seeds(1, 2, 3)[n] for n in (0, 7)] == [mix(1, 2, 3, 0), mix(1, 2, 3, 7)]
    random.gauss(0, 1)  # leaves a second number for the next call
    seed_all(Seeds(1)[5])
    drawn = [random.gauss(0, 1), random.random()]
    random.seed(mix(1, 5))
    assert drawn == [random.gauss(0, 1), random.random()]
