"""The roll call: every rank signs in, rank 0 says whether all are there.

torch waits in silence and then names a key of its store; here each rank that came
is told who is missing, on which node, who came twice, and who was told otherwise
of the world. The store is unauthenticated: JSON only, nothing is unpickled.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError, Store

from clusterddp.dist.world import parse_tasks_per_node
from clusterddp.errors import RendezvousError
from clusterddp.slurm.hostlist import expand_hostlist

__all__ = ["Arrival", "node_tasks", "roll_call"]

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.25
_FAREWELL_S = 5.0


@dataclass(frozen=True)
class Arrival:
    """What a rank says of itself when it signs in."""

    rank: int
    world_size: int
    node_rank: int
    host: str
    pid: int
    backend: str
    address: str = ""
    gpu: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def node_tasks(environ: Mapping[str, str]) -> list[tuple[str, int]]:
    """Give name and number of tasks of each node of the Slurm step; [] if unknown."""
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE")
    nodes = environ.get("SLURM_STEP_NODELIST")
    if not tasks or not nodes:
        return []
    hosts, counts = expand_hostlist(nodes), parse_tasks_per_node(tasks)
    return list(zip(hosts, counts, strict=False))


def roll_call(
    store: Store, me: Arrival, nodes: Sequence[tuple[str, int]], timeout: timedelta
) -> list[Arrival]:
    """Wait until all ranks have signed in; give them on rank 0, [] elsewhere.

    Args:
        store: where the ranks sign in; unused names of it are taken.
        me: this rank.
        nodes: name and number of tasks of each node, to name those missing.
        timeout: how long rank 0 waits, from its own arrival.

    Raises:
        RendezvousError: ranks are missing, came twice, or disagree; the same
            message on every rank that came.
    """
    try:
        fault = _sign_in(store, me)
        if me.rank == 0:
            return _judge(store, me, nodes, timeout, fault)
        if fault:
            store.set("fault", fault)
            raise RendezvousError(fault)
        _hear(store, me, timeout)
    except (DistNetworkError, DistStoreError) as error:
        message = (
            f"rendezvous: rank {me.rank} lost rank 0 while waiting for the others; "
            f"see the log of rank 0 for the reason ({str(error).splitlines()[0]})"
        )
        raise RendezvousError(message) from error
    return []


def _sign_in(store: Store, me: Arrival) -> str:
    """Sign in; give what is wrong with it, or an empty text."""
    terms = f"world size {me.world_size}, backend {me.backend}"
    agreed = store.compare_set("terms", "", terms).decode()
    if agreed != terms:
        return (
            f"rendezvous: rank {me.rank} ({me}) has {terms}, but another rank has "
            f"{agreed}; start all ranks with the same launcher, one srun or torchrun"
        )
    mine = json.dumps(asdict(me))
    first = store.compare_set(f"here/{me.rank}", "", mine).decode()
    if first != mine:
        return (
            f"rendezvous: rank {me.rank} came twice: {_read(first)} and {me}; "
            "expected one process for each rank: does torchrun, or a launcher of "
            "processes, run inside each srun task? Use the launcher pytorch then"
        )
    return ""


def _read(text: str) -> Arrival:
    return Arrival(**json.loads(text))


def _judge(
    store: Store,
    me: Arrival,
    nodes: Sequence[tuple[str, int]],
    timeout: timedelta,
    fault: str,
) -> list[Arrival]:
    """Rank 0: wait for everybody, then tell them all the same."""
    fault = fault or _wait_for_all(store, me, timeout)
    keys = [f"here/{rank}" for rank in range(me.world_size)]
    came = [_read(store.get(key).decode()) for key in keys if store.check([key])]
    if len(came) < me.world_size:
        fault = fault or _missing(me, came, nodes, timeout)
    fault = fault or _same_gpu(came)
    store.set("verdict", json.dumps(fault))
    if fault:
        _let_them_read(store, came)
        raise RendezvousError(fault)
    return came


def _wait_for_all(store: Store, me: Arrival, timeout: timedelta) -> str:
    """Give what another rank found wrong meanwhile, or an empty text."""
    keys = [f"here/{rank}" for rank in range(me.world_size)]
    _poll(lambda: store.check(["fault"]) or store.check(keys), timeout.total_seconds())
    return store.get("fault").decode() if store.check(["fault"]) else ""


def _poll(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask until the answer is yes, or the time is over; give the last answer.

    Not `Store.wait`: no signal is handled during it, each of its timeouts prints
    warnings from C++, and it takes less than a millisecond for "without limit".
    """
    deadline = time.monotonic() + seconds
    pause = _FIRST_PAUSE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.3, _LONGEST_PAUSE_S)
    return True


def _missing(
    me: Arrival,
    came: Sequence[Arrival],
    nodes: Sequence[tuple[str, int]],
    timeout: timedelta,
) -> str:
    present = {arrival.rank for arrival in came}
    absent = [rank for rank in range(me.world_size) if rank not in present]
    counts = Counter(arrival.node_rank for arrival in came)
    short = [
        f"{host} ({counts[node]} of {tasks} came)"
        for node, (host, tasks) in enumerate(nodes)
        if counts[node] < tasks
    ]
    where = f"expected on {', '.join(short)}; " if short else ""
    hosts = sorted({arrival.host for arrival in came})
    return (
        f"rendezvous: {_ranks(absent)} of {me.world_size} did not arrive within "
        f"{timeout.total_seconds():g} s; {where}arrived: {_ranks(sorted(present))} "
        f"from {', '.join(hosts)}; see the logs of the missing ranks, or raise "
        "rendezvous_timeout if they only start slowly"
    )


def _ranks(ranks: Iterable[int]) -> str:
    """Write ranks as `rank 3` or `ranks 1-3, 7`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs]
    word = "rank" if texts == [str(r[0]) for r in runs[:1]] else "ranks"
    return f"{word} {', '.join(texts)}"


def _same_gpu(came: Sequence[Arrival]) -> str:
    owners: dict[tuple[str, str], int] = {}
    for arrival in came:
        first = owners.setdefault((arrival.host, arrival.gpu), arrival.rank)
        if arrival.gpu and first != arrival.rank:
            return (
                f"rendezvous: ranks {first} and {arrival.rank} use the same GPU "
                f"{arrival.gpu} of {arrival.host}, expected one each; ask for as many "
                "GPUs as tasks on a node (--gpus-per-task=1), or fewer tasks"
            )
    return ""


def _let_them_read(store: Store, came: Sequence[Arrival]) -> None:
    # The store dies with this process, and the others shall learn the reason.
    keys = [f"heard/{arrival.rank}" for arrival in came if arrival.rank]
    try:
        _poll(lambda: not keys or store.check(keys), _FAREWELL_S)
    except DistNetworkError:
        return


def _hear(store: Store, me: Arrival, timeout: timedelta) -> None:
    """Any other rank: wait for the word of rank 0, whose clock started earlier."""
    seconds = timeout.total_seconds() + _FAREWELL_S
    if not _poll(lambda: store.check(["verdict"]), seconds):
        message = (
            f"rendezvous: rank {me.rank} heard nothing from rank 0 within "
            f"{seconds:g} s, expected its word on who has arrived; see its log"
        )
        raise RendezvousError(message)
    fault = json.loads(store.get("verdict"))
    store.set(f"heard/{me.rank}", "1")
    if fault:
        raise RendezvousError(fault)
