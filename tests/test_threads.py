"""Threads that do not fit the CPUs are warned of."""

import logging
import os

import pytest
import torch

from clusterddp.dist import init_dist, shutdown
from clusterddp.dist.threads import mismatch
from tests.forked import run_ranks, step_environ


@pytest.mark.parametrize(
    ("threads", "cpus", "on_machine", "ranks", "words"),
    [
        (8, 1, 32, 4, "8 in this rank, but it may use 1 of the machine's 32 CPUs"),
        (32, 32, 32, 4, "4 ranks on this machine with 32 each share 32 CPUs"),
        (2, 2, 2, 2, "set train.threads or OMP_NUM_THREADS to 1"),
    ],
    ids=["one core per rank", "all cores in every rank", "two cores"],
)
def test_mismatch_is_named(
    threads: int, cpus: int, on_machine: int, ranks: int, words: str
) -> None:
    """With both numbers and what to set."""
    assert words in mismatch(threads, cpus, on_machine, ranks)


@pytest.mark.parametrize(
    ("threads", "cpus", "on_machine", "ranks"),
    [(8, 8, 32, 4), (1, 2, 2, 2), (32, 32, 32, 1), (4, 8, 32, 4), (1, 2, 2, 8)],
)
def test_fitting_numbers_are_not(
    threads: int, cpus: int, on_machine: int, ranks: int
) -> None:
    """Ranks that are bound to CPUs of their own share none of them."""
    assert not mismatch(threads, cpus, on_machine, ranks)


def test_init_dist_warns_once_for_each_node() -> None:
    """The first rank of the node says it; the number of threads is left alone."""

    def body() -> object:
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("clusterddp").addHandler(handler)
        threads = len(os.sched_getaffinity(0)) + 1
        torch.set_num_threads(threads)
        init_dist()
        shutdown()
        return [torch.get_num_threads() == threads, [s for s in said if "threads" in s]]

    outcomes = run_ranks(body, [step_environ(rank, [2]) for rank in range(2)])
    values = [outcome.value for outcome in outcomes]
    assert all(isinstance(value, list) and value[0] for value in values)
    assert [len(value[1]) for value in values] == [1, 0]  # type: ignore[index]
