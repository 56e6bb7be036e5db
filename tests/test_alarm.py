"""Failing together: whoever fails brings the others out, wherever they are."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from clusterddp.dist import World, default_store, init_dist, shutdown
from clusterddp.launch.rank import name_cause
from clusterddp.runs.blame import is_echo
from clusterddp.training.alarm import Alarm
from tests import training_ranks as ranks
from tests.runs import events, latest, run_python, write_job

FOLLOWED = 17


def fail_alone(world: World, victim: int, doing: str) -> None:
    """One rank fails; the others sleep, or wait for it in a collective."""

    def follow(words: str) -> None:
        sys.stderr.write(words + "\n")
        os._exit(FOLLOWED)

    alarm = Alarm(default_store(), world, follow, grace_s=0.1)
    dist.barrier()
    if world.rank == victim:
        alarm.sound("ValueError: broken")
        # As a rank whose sockets stay open: a hung clean-up, or NCCL.
        time.sleep(60 if victim else 1)
        os._exit(1)
    if doing == "sleeping":
        time.sleep(60)
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(
    ("world_size", "victim", "doing"),
    [(2, 1, "sleeping"), (3, 0, "sleeping"), (3, 2, "in a collective")],
)
def test_the_others_leave_at_once(
    tmp_path: Path, world_size: int, victim: int, doing: str
) -> None:
    """Though they wait for nothing that would fail, with the words of the first."""
    started = ranks.start(
        world_size, tmp_path, ranks.with_world, fail_alone, victim, doing
    )
    others = [rank for rank in range(world_size) if rank != victim]
    deadline = time.monotonic() + 20
    while any(started.processes[rank].is_alive() for rank in others):
        assert time.monotonic() < deadline, started.output()
        time.sleep(0.02)
    started.processes[victim].kill()
    for rank in others:
        assert started.processes[rank].exitcode == FOLLOWED
        said = started.output(rank)
        assert f"left because rank {victim} failed: ValueError: broken" in said
        assert is_echo(said)


def fail_together(world: World) -> None:
    """All ranks have the same error, the later ones a little later."""
    alarm = Alarm(default_store(), world, lambda _words: os._exit(FOLLOWED))
    time.sleep(0.1 * world.rank)
    alarm.sound("ImportError: the same")
    os._exit(2)


def test_an_error_of_all_is_told_by_all(tmp_path: Path) -> None:
    """Nobody is cut short who is about to speak."""
    started = ranks.start(3, tmp_path, ranks.with_world, fail_together)
    assert started.wait() == [2, 2, 2]


def test_alone_there_is_nobody_to_tell() -> None:
    """And nothing to wait for."""
    world = init_dist("none")
    alarm = Alarm(default_store(), world, lambda _words: os._exit(FOLLOWED))
    alarm.sound("nothing")
    alarm.close()
    shutdown()


def test_a_whole_run_does_not_wait_for_a_rank_that_is_busy(tmp_path: Path) -> None:
    """Rank 1 raises while rank 0 is away for ten minutes: both are out and restarted.

    The one that raised is blamed, and the other says why it left.
    """
    params = {"fault": "exception", "rank": 1, "at": 8, "stuck_s": 600}
    write_job(tmp_path, params=params)
    done = run_python(("clusterddp.submit", "job.yaml", "--launcher=pytorch"), tmp_path)
    run = latest(tmp_path)
    assert done.code == 0, done.err
    causes = [event.values["cause"] for event in events(run, "attempt_ended")]
    assert causes == ["crash", "completed"]
    assert "rank 1 on" in done.err
    assert "ValueError: the toy broke" in done.err
    verdict = json.loads(run.attempt(0).verdict(0).read_text())
    words = "left because rank 1 failed: ValueError: the toy broke"
    assert verdict["failure"]["message"] == words


@pytest.mark.parametrize(
    ("error", "is_started", "cause"),
    [
        (MemoryError(), False, "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), True, "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True, "out of"),
        (KeyError("x"), False, "wrong job"),
        (KeyError("x"), True, "crash"),
        (ValueError("x"), False, "crash"),
    ],
)
def test_a_verdict_tells_causes_apart(
    error: BaseException, cause: str, *, is_started: bool
) -> None:
    """Memory, mistakes in the job, and the rest."""
    assert name_cause(error, is_started=is_started).startswith(cause)
