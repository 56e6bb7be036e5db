"""Restarts of torchrun: its store outlives the ranks, and what they left there."""

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore, TCPStore

from clusterddp.dist.restart import agree_on_start, outlives_ranks
from clusterddp.dist.world import World, world_from_environment
from clusterddp.errors import RendezvousError
from tests.forked import torchrun_environ
from tests.runs import ROOT, clean_environ

PATIENCE = timedelta(seconds=20)

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from clusterddp.dist import init_dist

world = init_dist(backend="gloo", timeout="20s", rendezvous_timeout="20s")
start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
one = torch.ones(())
dist.all_reduce(one)
assert one.item() == world.world_size
(Path(sys.argv[1]) / f"start-{start}-rank-{world.rank}").touch()
dist.barrier()
if start < 3 and world.rank == start % world.world_size:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
"""


def test_ranks_meet_again_after_each_restart(tmp_path: Path) -> None:
    """Killed three times, rank 0 and another: arrivals of the dead are nobody's.

    Without a name for each start all restarts fail, because "rank 0 came twice".
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    shape = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "3")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *shape, script, tmp_path],
        env=clean_environ({"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list(tmp_path.glob("start-*-rank-*"))) == 8


def world(rank: int, size: int) -> World:
    """Give a rank's world under torchrun."""
    return world_from_environment("pytorch", torchrun_environ(rank, size, 29500))


def test_an_answer_to_the_dead_is_not_taken() -> None:
    """Old questions, answers and thanks lie there; the new ranks have a new word."""
    store, words = HashStore(), list[str]()
    for rank in (1, 2):
        store.set(f"questions/{rank}", f"old{rank}")
        store.set(f"answers/old{rank}", "oldword")
        store.set(f"thanks/oldword/{rank}", "")

    def start(rank: int) -> None:
        words.append(agree_on_start(store, world(rank, 3), PATIENCE))

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(words) == 3
    assert len(set(words) - {"oldword"}) == 1


def test_who_does_not_come_is_named_on_both_sides() -> None:
    """Rank 0 names the ranks; a rank without rank 0 says so."""
    short = timedelta(seconds=0.3)
    with pytest.raises(RendezvousError, match="1 of 3 ranks .* missing: rank 1, 2"):
        agree_on_start(HashStore(), world(0, 3), short)
    with pytest.raises(RendezvousError, match="rank 1 got no answer from rank 0"):
        agree_on_start(HashStore(), world(1, 3), short)


def test_rank_0_without_its_store_does_not_blame_itself() -> None:
    """The agent that holds the store may go before the ranks do."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    del server
    with pytest.raises(RendezvousError, match="rank 0 lost torchrun's store"):
        agree_on_start(client, world(0, 2), PATIENCE)


@pytest.mark.parametrize(
    ("restarts", "shared", "expected"),
    [("3", "True", True), ("0", "True", False), ("3", "False", False)],
)
def test_when_a_name_is_needed(restarts: str, shared: str, *, expected: bool) -> None:
    """With restarts, in a store of the agent's; not without either."""
    environ = {"TORCHELASTIC_MAX_RESTARTS": restarts}
    environ["TORCHELASTIC_USE_AGENT_STORE"] = shared
    assert outlives_ranks(environ) is expected
    assert not outlives_ranks({})
