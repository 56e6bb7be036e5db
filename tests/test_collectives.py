"""Sums and JSON values over all ranks."""

import os
import re
from pathlib import Path

import pytest
import torch

from clusterddp.dist import (
    broadcast_json,
    default_store,
    gather_json,
    init_dist,
    reduce_sums,
    shutdown,
)
from clusterddp.errors import LaunchError
from tests.forked import Outcome, run_ranks, step_environ

WORLDS = pytest.mark.parametrize("ranks", [1, 2, 3])


def run(body: object, ranks: int) -> list[Outcome]:
    environs = [step_environ(rank, [ranks]) for rank in range(ranks)]
    outcomes = run_ranks(body, environs)  # type: ignore[arg-type]
    assert [outcome.error for outcome in outcomes] == [""] * ranks
    return outcomes


@WORLDS
def test_sums_are_those_of_float64(ranks: int) -> None:
    def body() -> object:
        rank = init_dist().rank
        values: list[float | torch.Tensor] = [rank, 0.1]
        values += [torch.tensor([2**24 + 1]), torch.tensor(0.5)]
        sums = reduce_sums(values)
        shutdown()
        return sums

    for outcome in run(body, ranks):
        total = 0.0
        for _ in range(ranks):
            total += 0.1
        expected = [sum(range(ranks)), total, ranks * (2**24 + 1), ranks * 0.5]
        assert outcome.value == expected


def test_sum_keeps_no_graph_and_changes_no_argument() -> None:
    def body() -> object:
        init_dist()
        value = torch.ones((), requires_grad=True)
        reduce_sums([value])
        shutdown()
        return value.item()

    assert [outcome.value for outcome in run(body, 2)] == [1.0, 1.0]


def test_sum_of_nothing() -> None:
    def body() -> object:
        init_dist("none")
        return reduce_sums([])

    assert run(body, 1)[0].value == []


@WORLDS
def test_value_of_rank_zero_reaches_all(ranks: int) -> None:
    def body() -> object:
        rank = init_dist().rank
        values = [
            broadcast_json({"n": n, "pair": (1, None)} if rank == 0 else None)
            for n in range(3)
        ]
        shutdown()
        return values

    for outcome in run(body, ranks):
        assert outcome.value == [{"n": n, "pair": [1, None]} for n in range(3)]


@WORLDS
def test_values_of_all_reach_rank_zero(ranks: int) -> None:
    def body() -> object:
        rank = init_dist().rank
        values = [gather_json([rank, n]) for n in range(2)]
        shutdown()
        return values

    first, *others = run(body, ranks)
    assert first.value == [[[rank, n] for rank in range(ranks)] for n in range(2)]
    assert all(other.value == [None, None] for other in others)


def test_nothing_is_left_in_the_store() -> None:
    def keys() -> int:
        # Nobody counts before all have read, nor goes on before all have counted.
        reduce_sums([0.0])
        count: int = default_store().num_keys()
        reduce_sums([0.0])
        return count

    def body() -> object:
        init_dist()
        before = keys()
        for _ in range(3):
            gather_json("x")
            broadcast_json("y")
        after = keys()
        shutdown()
        return after - before

    assert [outcome.value for outcome in run(body, 3)] == [0, 0, 0]


@pytest.mark.parametrize("function", [broadcast_json, gather_json])
def test_what_is_not_json_is_refused(function: object) -> None:
    def body() -> object:
        init_dist("none")
        with pytest.raises(TypeError, match="not JSON serializable"):
            function({1, 2})  # type: ignore[operator]
        return os.getpid()

    assert run(body, 1)[0].value


def test_collectives_before_init_are_refused() -> None:
    for call in (lambda: reduce_sums([1.0]), lambda: broadcast_json(1)):
        with pytest.raises(LaunchError, match="call it first"):
            call()
    with pytest.raises(LaunchError, match="call it first"):
        gather_json(1)


def test_nothing_that_ranks_tell_each_other_is_unpickled() -> None:
    """The store is not authenticated, and torch's object collectives use pickle."""
    pickled = re.compile(
        r"^(?:import|from) pickle|(?:object_list|gather_object)\(", re.MULTILINE
    )
    root = Path(__file__).parents[1] / "clusterddp"
    files = [*(root / "dist").rglob("*.py"), *(root / "training").rglob("*.py")]
    assert len(files) > 20
    assert not [file for file in files if pickled.search(file.read_text())]
