"""A collective that is stuck ends in time, and says which it was, and at which step."""

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clusterddp.dist import (
    broadcast_json,
    gather_json,
    init_dist,
    note_step,
    operation,
    reduce_sums,
)
from clusterddp.errors import CollectiveError
from clusterddp.runs.blame import is_echo
from tests.forked import Outcome, run_ranks, step_environ

LIMIT = timedelta(seconds=2)


def stuck(work: object, absent: int = 1) -> Outcome:
    """Let one rank of two stay away from `work`; give how the other ended."""

    def body() -> object:
        world = init_dist(timeout=LIMIT)
        model = DistributedDataParallel(nn.Linear(2, 1))
        note_step(7)
        if world.rank == absent:
            time.sleep(120)
        work(model)  # type: ignore[operator]
        return None

    environs = [step_environ(rank, [2]) for rank in (1 - absent, absent)]
    # Only the first is waited for: the other sleeps and is killed at the end.
    return run_ranks(body, environs, first_only=True)[0]


def test_naive_collective_does_not_say_what_it_was() -> None:
    """The words of gloo, without ours around them."""
    error = stuck(lambda _: dist.all_reduce(torch.ones(1))).error
    assert "Timed out waiting" in error
    assert "step" not in error


def backward(model: nn.Module) -> None:
    with operation("average of the gradients"):
        model(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize(
    ("work", "absent", "name"),
    [
        (lambda _: reduce_sums([1.0, 2.0]), 1, "sum of 2 values over all ranks"),
        (backward, 1, "average of the gradients"),
        (lambda _: broadcast_json(None), 0, "broadcast of a value from rank 0"),
        (lambda _: gather_json(1), 1, "gathering of a value on rank 0"),
    ],
    ids=["sum", "backward", "broadcast", "gather"],
)
def test_stuck_collective_ends_in_time_and_names_operation_and_step(
    work: object, absent: int, name: str
) -> None:
    """By the timeout of init_dist, on the rank that waits."""
    outcome = stuck(work, absent)
    assert outcome.error.startswith(f"CollectiveError: {name} at step 7: ")
    assert "did not come within the timeout" in outcome.error
    assert "raise dist_params.timeout" in outcome.error
    assert outcome.seconds < 60


def test_lost_rank_is_named_as_such_and_stays_an_echo() -> None:
    """The supervisor blames the rank that died, not the one that noticed."""

    def body() -> object:
        if init_dist(timeout=timedelta(seconds=20)).rank == 1:
            os._exit(9)
        reduce_sums([1.0])
        return None

    outcome = run_ranks(body, [step_environ(rank, [2]) for rank in range(2)])[0]
    assert "sum of 1 values over all ranks: another rank is gone" in outcome.error
    assert is_echo(outcome.error)


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes differ"), RuntimeError(), ValueError("timed out")]
)
def test_other_errors_are_passed_on(error: Exception) -> None:
    """Nothing but the trouble of a collective gets another name."""
    with pytest.raises(type(error)) as caught, operation("it"):
        raise error
    assert caught.value is error


def test_inner_name_wins() -> None:
    """The innermost knows best, and no step is named where there is none."""
    note_step(None)
    error = RuntimeError("timed out")
    outer, inner = operation("outer"), operation("inner")
    with pytest.raises(CollectiveError, match=r"^inner: another"), outer, inner:
        raise error
