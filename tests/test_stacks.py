"""Stacks of ranks that hang: asked for through the store, told by a side thread."""

import ctypes
import os
import signal
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from clusterddp.dist import World, default_store
from clusterddp.runs.stackfiles import ask, count_asked, list_told, rank_file
from clusterddp.training.stacks import StackTeller, ask_for_stacks
from tests import training_ranks as ranks
from tests.runs import wait_until


def hang_in_python() -> None:
    time.sleep(600)


def hang_in_free_c() -> None:
    """A long call of C; ctypes lets go of the interpreter meanwhile."""
    ctypes.CDLL(None).sleep(600)


def hang_in_holding_c() -> None:
    """The same, but nothing else of Python runs meanwhile."""
    ctypes.PyDLL(None).sleep(600)


def hang_in_a_collective() -> None:
    dist.barrier()


HANGS = {
    hang.__name__: hang
    for hang in (
        hang_in_python,
        hang_in_free_c,
        hang_in_holding_c,
        hang_in_a_collective,
    )
}


def hang(world: World, directory: Path, hows: list[str], *, ask_at: int) -> None:
    StackTeller(default_store(), world, directory)
    ranks.mark(directory, "ready")
    if world.rank == ask_at:
        ask_for_stacks(default_store())
    HANGS[hows[world.rank]]()


def start_hanging(directory: Path, hows: list[str], ask_at: int = -1) -> ranks.Ranks:
    started = ranks.start(
        len(hows), directory, ranks.with_world, _hang, directory, hows, ask_at
    )
    started.wait_for("ready")
    return started


def _hang(world: World, directory: Path, hows: list[str], ask_at: int) -> None:
    hang(world, directory, hows, ask_at=ask_at)


def end(started: ranks.Ranks) -> None:
    for process in started.processes:
        process.kill()
        process.join()


@pytest.mark.parametrize(
    "hows",
    [
        ["hang_in_free_c"],
        ["hang_in_python", "hang_in_free_c"],
        ["hang_in_a_collective", "hang_in_python", "hang_in_a_collective"],
        ["hang_in_free_c", "hang_in_python", "hang_in_free_c", "hang_in_a_collective"],
    ],
    ids=len,
)
def test_all_ranks_tell_where_they_hang(tmp_path: Path, hows: list[str]) -> None:
    """Those too whose main thread is in C, or waits in a collective."""
    started = start_hanging(tmp_path, hows)
    try:
        ask(tmp_path)
        wait_until(lambda: list_told(tmp_path) == set(range(len(hows))))
    finally:
        end(started)
    for rank, how in enumerate(hows):
        assert f"in {how}" in rank_file(tmp_path, rank).read_text()


def test_a_rank_can_ask_the_others(tmp_path: Path) -> None:
    """Without a supervisor; and the supervisor again later."""
    started = start_hanging(tmp_path, ["hang_in_python"] * 3, ask_at=2)
    try:
        wait_until(lambda: list_told(tmp_path) == {0, 1, 2})
        assert count_asked(tmp_path) == 0
        for rank in range(3):
            rank_file(tmp_path, rank).unlink()
        ask(tmp_path)
        wait_until(lambda: list_told(tmp_path) == {0, 1, 2})
    finally:
        end(started)


def test_one_that_cannot_answer_keeps_nobody_from_it(tmp_path: Path) -> None:
    """It holds the interpreter, or stands still: that is for SIGQUIT and /proc."""
    hows = ["hang_in_python", "hang_in_holding_c", "hang_in_python"]
    started = start_hanging(tmp_path, hows)
    try:
        pid = started.processes[2].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        ask(tmp_path)
        wait_until(lambda: 0 in list_told(tmp_path))
        assert list_told(tmp_path) == {0}
    finally:
        end(started)
