"""Threads that do not fit the CPUs are warned of."""

import pytest

from clusterddp.dist.threads import mismatch


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
    [(8, 8, 32, 4), (1, 2, 2, 2), (32, 32, 32, 1), (4, 8, 32, 4)],
)
def test_fitting_numbers_are_not(
    threads: int, cpus: int, on_machine: int, ranks: int
) -> None:
    """Ranks that are bound to CPUs of their own share none of them."""
    assert not mismatch(threads, cpus, on_machine, ranks)
