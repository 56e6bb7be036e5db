"""How long the ranks take to meet: real ones, and many light ones.

    python benchmarks/rendezvous.py [--repeat 5] [--clients 64 256 1024] [--json OUT]

Real ranks are fresh interpreters; all wait until the last has loaded torch, then
call `init_dist`, or torch's own `env://` on a port that is given to them, in turns.
Light clients are forked from one process that has loaded torch; each goes through the
real meeting and roll call of `clusterddp.dist`, as one step of so many tasks on one
node, but forms no process group. Seconds from the start signal to the last that is
through. Nothing here is a test.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import PrefixStore

from clusterddp.dist.arrival import Arrival, roll_call
from clusterddp.dist.port import free_port
from clusterddp.dist.rendezvous import meet, meeting_place

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
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--clients", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, list[float]] = {}
    for _ in range(given.repeat):
        for ranks in given.ranks:
            for way in ("init_dist", "env://"):
                name = f"{ranks} real ranks, {way}"
                found.setdefault(name, []).append(real_ranks(ranks, way))
        for clients in given.clients:
            name = f"{clients} light clients"
            found.setdefault(name, []).append(light_clients(clients))
    report(found, given.json)


def report(found: Mapping[str, list[float]], path: Path | None) -> None:
    """Print minimum, median and maximum of each question."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    machine = f"{platform.platform()}, {os.cpu_count()} CPUs, {versions}"
    print(machine)
    for name, values in found.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"{name:<30} {low:8.3f} {middle:8.3f} {high:8.3f}")
    if path is not None:
        path.parent.mkdir(exist_ok=True)
        content = {"machine": machine, "seconds": found}
        path.write_text(json.dumps(content, indent=1) + "\n")


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
    with tempfile.TemporaryDirectory() as gate, free_port() as port:
        children = []
        for rank in range(ranks):
            environ = os.environ | {"OMP_NUM_THREADS": "1", "RANK": str(rank)}
            environ |= step(rank, ranks, str(os.getpid()))
            if way != "init_dist":
                environ |= {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
                environ |= {"MASTER_ADDR": "127.0.0.1"}
            command = [sys.executable, "-c", RANK, way, gate]
            child = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)
            children.append(child)
        while len(list(Path(gate).iterdir())) < ranks:
            time.sleep(0.01)
        Path(gate, "go").touch()
        said = [child.communicate()[0].split() for child in children]
    return max(float(s[1]) for s in said) - min(float(s[0]) for s in said)


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
