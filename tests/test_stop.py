"""Stopping together: any signal, to any rank, at any time, at one step."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from clusterddp.dist import World, default_store, init_dist, shutdown
from clusterddp.training import StopSignal
from tests import training_ranks as ranks
from tests.training_ranks import STOP_SIGNALS


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Give a world of one."""
    yield init_dist("none")
    shutdown()


@pytest.fixture
def stop(world: World) -> Iterator[StopSignal]:
    with StopSignal() as stop:
        stop.connect(default_store(), world)
        yield stop
        stop.disconnect()


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: number.name)
def test_each_stop_signal_stops(stop: StopSignal, number: signal.Signals) -> None:
    """Alone, a rank stops at the very step it has reached."""
    assert not stop.agreed(3)
    os.kill(os.getpid(), number)
    assert stop.wait(5)
    assert stop.agreed(4)
    assert stop.received == number


def test_cont_is_no_stop(stop: StopSignal) -> None:
    """Slurm sends it to a resumed job, and before every TERM."""
    os.kill(os.getpid(), signal.SIGCONT)
    assert not stop.wait(0.2)


def test_other_signals_are_no_stop(stop: StopSignal) -> None:
    """One with a handler in Python comes through the same descriptor."""
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    os.kill(os.getpid(), signal.SIGCHLD)
    assert not stop.wait(0.2)
    signal.signal(signal.SIGCHLD, before)


def test_a_second_signal_changes_nothing(stop: StopSignal) -> None:
    """The first one is remembered."""
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.wait(5)
    assert stop.agreed(4)
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.05)
    assert stop.received == signal.SIGTERM
    assert stop.agreed(5)


def test_a_signal_before_there_is_a_store(world: World) -> None:
    """It is noted, and told to the others as soon as they can be reached."""
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 5
        while stop.received is None:
            assert time.monotonic() < deadline
        assert not stop.agreed(0)
        stop.connect(default_store(), world)
        assert stop.wait(5)
        assert stop.agreed(0)
        stop.disconnect()


def test_handlers_are_given_back(world: World) -> None:
    """And the threads end."""
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    threads = threading.active_count()
    with StopSignal() as stop:
        stop.connect(default_store(), world)
        stop.disconnect()
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1
    deadline = time.monotonic() + 5
    while threading.active_count() > threads:
        assert time.monotonic() < deadline


def test_late_signals_do_no_harm(world: World) -> None:
    """After the ranks have parted, a signal is noted and that is all."""
    with StopSignal() as stop:
        stop.connect(default_store(), world)
        stop.disconnect()
        os.kill(os.getpid(), signal.SIGTERM)
        assert not stop.agreed(1)


def test_asking_without_a_store_is_no_agreement() -> None:
    """A program without ranks can use the object."""
    assert not StopSignal().agreed(1)


def notice_while_blocked(world: World, directory: Path, *, plainly: bool) -> bool:
    """Rank 1 waits in a collective; give whether rank 0 hears of its signal then."""
    stop = StopSignal()
    if plainly:
        signal.signal(signal.SIGTERM, lambda *_: stop.request())
    else:
        stop.install()
    stop.connect(default_store(), world)
    ranks.mark(directory, "blocking")
    heard = stop.wait(1.0) if world.rank == 0 else True
    dist.all_reduce(torch.ones(1))
    stop.disconnect()
    return heard


@pytest.mark.parametrize("plainly", [False, True], ids=["ours", "a plain handler"])
def test_a_signal_is_noticed_in_a_collective(tmp_path: Path, *, plainly: bool) -> None:
    """A plain handler would run only when the collective is over."""
    started = ranks.start(2, tmp_path, _blocked, tmp_path, plainly)
    started.wait_for("blocking")
    time.sleep(0.2)
    started.send(1, signal.SIGTERM)
    assert started.values() == [not plainly, True]


def _blocked(directory: Path, plainly: bool) -> object:  # noqa: FBT001
    world = init_dist()
    heard = notice_while_blocked(world, directory, plainly=plainly)
    shutdown()
    return heard


SIGNALLED_AFTER = 4


def count_steps(world: World, victims: list[int]) -> list[int]:
    """Step until all stop; the victims signal themselves within the fifth step."""
    stop = StopSignal()
    stop.install()
    stop.connect(default_store(), world)
    step = 0
    while step < 100 and not stop.agreed(step):
        if step == SIGNALLED_AFTER and world.rank in victims:
            os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.01 * (1 + (world.rank + step) % 3))
        dist.all_reduce(torch.ones(1))
        step += 1
    total = torch.tensor([step])
    dist.all_reduce(total)
    stop.disconnect()
    return [step, int(total)]


@pytest.mark.parametrize(
    ("world_size", "victims"),
    [(2, [0]), (2, [1]), (3, [0]), (3, [2]), (4, [1]), (4, [0, 1, 2, 3])],
    ids=str,
)
def test_all_ranks_stop_at_one_step(
    tmp_path: Path, world_size: int, victims: list[int]
) -> None:
    """The step that runs is finished, and at most one more."""
    started = ranks.start(world_size, tmp_path, ranks.with_world, count_steps, victims)
    steps = started.values()
    assert len({step for step, _ in steps}) == 1, steps
    assert steps[0][1] == world_size * steps[0][0]
    assert SIGNALLED_AFTER < steps[0][0] <= SIGNALLED_AFTER + 2
