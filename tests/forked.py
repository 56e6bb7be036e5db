"""Run ranks as real processes, quickly: forked from a process that knows torch."""

import contextlib
import gc
import json
import os
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

LAUNCH_VARIABLES = (
    *("SLURM", "RANK", "WORLD", "LOCAL_", "MASTER_", "GROUP_", "NODE_"),
    *("TORCHELASTIC", "CLUSTERDDP", "GLOO_", "NCCL_"),
)


@dataclass(frozen=True)
class Outcome:
    """How one rank ended: its value, or its error as `Type: message`."""

    value: object
    error: str
    seconds: float


def step_environ(
    rank: int, tasks: Sequence[int], **changes: str | None
) -> dict[str, str]:
    """Give the environment of one task of an srun step with `tasks` on each node."""
    node = next(n for n in range(len(tasks)) if rank < sum(tasks[: n + 1]))
    nodes = "gpu001" if len(tasks) == 1 else f"gpu[001-{len(tasks):03d}]"
    environ: dict[str, str | None] = {
        "SLURM_CLUSTER_NAME": "test",
        "SLURM_JOB_ID": str(1_000_000 + os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(sum(tasks)),
        "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, tasks)),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank - sum(tasks[:node])),
        "SLURM_NODEID": str(node),
        "SLURMD_NODENAME": f"gpu{node + 1:03d}",
    }
    environ |= changes
    return {name: value for name, value in environ.items() if value is not None}


def torchrun_environ(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Give the environment of one rank of a torchrun on this machine."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def clear_launch_variables() -> None:
    """Make this process look like one that nothing launched."""
    for name in list(os.environ):
        if name.startswith(LAUNCH_VARIABLES):
            del os.environ[name]


def run_ranks(
    body: Callable[[], object],
    environs: Sequence[Mapping[str, str]],
    *,
    timeout_s: float = 60,
    first_only: bool = False,
) -> list[Outcome]:
    """Run `body` in one process for each environment; give how each ended.

    Args:
        body: what each does; its value must be JSON.
        environs: the launch variables of each.
        timeout_s: how long to wait for all.
        first_only: wait for the first alone, then kill the others.
    """
    children = [_fork(body, environ) for environ in environs]
    awaited = children[:1] if first_only else children
    deadline = time.monotonic() + timeout_s
    try:
        return [_outcome(pipe, deadline) for _, pipe in awaited]
    finally:
        for pid, pipe in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pipe)


def _fork(body: Callable[[], object], environ: Mapping[str, str]) -> tuple[int, int]:
    receive, send = os.pipe()
    with warnings.catch_warnings():
        # The children take up no thread of their parent's.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(send)
        return pid, receive
    try:
        # A store that an earlier test left as garbage must not be collected here: it
        # would join a thread that only the parent has, and end this process.
        gc.freeze()
        os.close(receive)
        clear_launch_variables()
        os.environ.update(environ)
        torch.set_num_threads(1)
        os.write(send, json.dumps(_run(body)).encode())
    finally:
        os._exit(0)


def _run(body: Callable[[], object]) -> tuple[object, str, float]:
    start = time.monotonic()
    try:
        value, error = body(), ""
    except BaseException as caught:  # noqa: BLE001 - told to the parent
        value, error = None, f"{type(caught).__name__}: {caught}"
        traceback.print_exc()
    return value, error, time.monotonic() - start


def _outcome(pipe: int, deadline: float) -> Outcome:
    data = b""
    while True:
        rest = max(0.0, deadline - time.monotonic())
        if not select.select([pipe], [], [], rest)[0]:
            return Outcome(None, "Hung: no answer in time", rest)
        chunk = os.read(pipe, 1 << 16)
        if not chunk:
            break
        data += chunk
    if not data:
        return Outcome(None, "Died: without a word", 0.0)
    value, error, seconds = json.loads(data)
    return Outcome(value, error, seconds)
