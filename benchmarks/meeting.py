"""`python -m benchmarks.meeting`: how long the ranks take to find each other.

Real ranks are fresh interpreters; all wait until the last has loaded torch, then
call `init_dist`, or torch's own `env://` on a port that is given to them, in turns.
Light clients are forked from one process that has loaded torch; each goes through the
real meeting and roll call of `clusterddp.dist`, as one step of so many tasks on one
node, but forms no process group. Seconds from the start signal to the last that is
through.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import torch  # noqa: F401 - the clients are forked with it loaded
from torch.distributed import PrefixStore

from benchmarks.harness import arguments, compare, measure, record
from benchmarks.result import Result, Target
from benchmarks.scene import await_value
from clusterddp.dist.arrival import Arrival, roll_call
from clusterddp.dist.port import free_port
from clusterddp.dist.rendezvous import meet, meeting_place

ASKED = "How long do ranks take to meet, and how does that grow?"
WAIT = timedelta(minutes=2)
RANK = """
import os, sys, time
from datetime import timedelta
import torch.distributed as dist
from clusterddp.dist import init_dist
way, gate = sys.argv[1:]
open(f"{gate}/{os.environ['RANK']}", "w").close()
while not os.path.exists(f"{gate}/go"):
    time.sleep(0.001)
start = time.monotonic()
if way == "init_dist":
    init_dist("slurm", "gloo")
else:
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
print(start, time.monotonic(), flush=True)
dist.barrier()
os._exit(0)
"""


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--clients", type=int, nargs="*", default=[64, 256, 1024])
    given = arguments(parser)
    if given.quick:
        given.ranks, given.clients = given.ranks[:1], given.clients[:2]
    with record("meeting", ASKED, given.results) as results:
        for ranks in given.ranks:
            results.append(ask_real(ranks, 2 if given.quick else max(3, 10 // ranks)))
        crowd, growth = ask_light(given.clients, 2 if given.quick else 3)
        results.extend([crowd, growth])


def ask_real(ranks: int, blocks: int) -> Result:
    """Ask real ranks, beside env:// with a port that somebody else has chosen."""
    return measure(
        f"{ranks} ranks, torch loaded, until the process group is there",
        {
            "env://, port given": lambda: 1e3 * real_ranks(ranks, "env://"),
            "init_dist": lambda: 1e3 * real_ranks(ranks, "init_dist"),
        },
        unit="ms",
        blocks=blocks,
        seconds=35,
        baseline="env://, port given",
        warm_up=0,
        targets=[Target("init_dist", extra=500)],
    )


def ask_light(sizes: Sequence[int], blocks: int) -> tuple[Result, Result]:
    """Ask light clients, and by how much each further one delays all."""
    variants = {
        f"{count} clients": lambda count=count: 1e3 * light_clients(count)
        for count in sizes
    }
    crowd = measure(
        "Meeting and roll call of light clients on one node",
        variants,
        unit="ms",
        blocks=blocks,
        seconds=60,
    )
    pairs = list(pairwise(sizes))
    growth = {
        f"from {few} to {many}": [
            (slow - quick) / (many - few)
            for quick, slow in zip(
                crowd.blocks[f"{few} clients"],
                crowd.blocks[f"{many} clients"],
                strict=True,
            )
        ]
        for few, many in pairs
    }
    return crowd, compare("Growth with each further client", growth, unit="ms")


def step(rank: int, tasks: int, job: str) -> dict[str, str]:
    """Give the variables of one task of a step on one node."""
    return {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_TASKS_PER_NODE": str(tasks),
        "SLURM_STEP_NODELIST": "n1",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
    }


def real_ranks(ranks: int, way: str) -> float:
    """Start interpreters, let them load torch, and time how they meet."""
    children: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as gate, free_port() as port:
        try:
            environs = [_environ(rank, ranks, way, str(port)) for rank in range(ranks)]
            children += [_start(way, gate, environ) for environ in environs]
            there = lambda: len(list(Path(gate).iterdir())) == ranks or None  # noqa: E731
            await_value(there, 120, f"{ranks} ranks with torch")
            Path(gate, "go").touch()
            said = [child.communicate(timeout=120)[0].split() for child in children]
        finally:
            for child in children:
                child.kill()
                child.wait()
    return max(float(s[1]) for s in said) - min(float(s[0]) for s in said)


def _environ(rank: int, ranks: int, way: str, port: str) -> dict[str, str]:
    environ = os.environ | {"OMP_NUM_THREADS": "1", "RANK": str(rank)}
    environ |= step(rank, ranks, str(os.getpid()))
    if way != "init_dist":
        environ |= {"WORLD_SIZE": str(ranks), "MASTER_PORT": port}
        environ |= {"MASTER_ADDR": "127.0.0.1"}
    return environ


def _start(way: str, gate: str, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", RANK, way, gate]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)


def light_clients(clients: int) -> float:
    """Fork so many processes, let all go at once, and time the last one."""
    hold, go = os.pipe()
    told, tell = os.pipe()
    job = f"light{time.monotonic_ns()}"
    pids = [
        fork_client(rank, clients, job, (hold, go, tell)) for rank in range(clients)
    ]
    os.close(tell)
    time.sleep(1 + clients / 500)  # until the last one waits at the gate
    start = time.monotonic()
    os.close(go)
    with os.fdopen(told, "rb") as pipe:
        times = [float(line) for line in pipe.read().split()]
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(hold)
    if len(times) != clients:
        message = f"{clients - len(times)} of {clients} light clients were lost"
        raise RuntimeError(message)
    return max(times) - start


def fork_client(rank: int, clients: int, job: str, pipes: tuple[int, int, int]) -> int:
    """Fork one client; it tells when it is through the roll call."""
    pid = os.fork()
    if pid:
        return pid
    hold, go, tell = pipes
    try:
        os.environ.update(step(rank, clients, job))
        os.close(go)
        os.read(hold, 1)
        meeting = meet(meeting_place(os.environ, 1), rank, clients, WAIT)
        me = Arrival(rank, clients, 0, "n1", os.getpid(), "gloo")
        store = meeting.store
        roll_call(PrefixStore("clusterddp/roll", store), me, [], WAIT)
        os.write(tell, f"{time.monotonic()}\n".encode())
        if rank == 0:
            # The store lives here; the others must have heard first.
            store.wait([f"through/{other}" for other in range(1, clients)], WAIT)
        else:
            store.set(f"through/{rank}", "1")
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
