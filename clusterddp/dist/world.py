"""Who this process is among the ranks: one frozen value from the environment.

Slurm: the step's variables, never the job's. `SLURM_NTASKS` and the node lists
without STEP describe the job (and survive `srun --preserve-env`), `SLURM_STEP_*`
and the task's own `SLURM_PROCID` always describe the running step; see the output
environment variables in srun(1) and `src/common/env.c`. torchrun: the variables
that torch.distributed.run documents.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from clusterddp.dist.variables import integer, optional, require
from clusterddp.errors import WorldError

__all__ = [
    "World",
    "detect_launcher",
    "is_in_step",
    "job_tasks",
    "parse_tasks_per_node",
    "world_from_environment",
]

_LOG = logging.getLogger(__name__)

# slurm.h: step ids from here on name no srun step (batch, extern, interactive).
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_MAX_PORT = 65535


@dataclass(frozen=True)
class World:
    """The place of one rank: its numbers and the launcher they come from."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    launcher: str


def world_from_environment(launcher: str | None, environ: Mapping[str, str]) -> World:
    """Give the world of this process.

    Args:
        launcher: "slurm", "pytorch" or "none"; None or "auto" detects it.
        environ: the environment variables; an empty one counts as unset.

    Raises:
        WorldError: the environment is incomplete or contradicts itself, or it is
            that of a batch script in which `srun` is missing.
    """
    name = launcher or "auto"
    if name == "auto":
        name = detect_launcher(environ)
    if name == "none":
        return World(0, 1, 0, 1, 0, 1, "none")
    if name == "pytorch":
        return _pytorch_world(environ)
    if name == "slurm":
        return _slurm_world(environ)
    message = (
        f"launcher: found {name!r}, expected slurm, pytorch, none or auto; "
        "correct --launcher, $CLUSTERDDP_LAUNCHER or the argument of init_dist"
    )
    raise WorldError(message)


def detect_launcher(environ: Mapping[str, str]) -> str:
    """Name the launcher that started this process: slurm, pytorch or none.

    Without an srun step a process is alone: the variables of a batch script look
    like those of rank 0 of many, but nobody else is coming.
    """
    if environ.get("TORCHELASTIC_RUN_ID"):
        return "pytorch"
    in_step = is_in_step(environ)
    complete = all(environ.get(name) for name in _TORCHRUN)
    if complete and not (in_step and _stale(environ)):
        return "pytorch"
    if in_step:
        return "slurm"
    # Half a torchrun environment is refused by the pytorch branch, by name:
    # to run alone in silence would be several trainings instead of one.
    half = environ.get("RANK") and environ.get("WORLD_SIZE", "1") not in ("", "1")
    return "pytorch" if half else "none"


def is_in_step(environ: Mapping[str, str]) -> bool:
    """Tell whether an `srun` step, not a batch or interactive shell, runs this."""
    if not environ.get("SLURM_STEP_NUM_TASKS") or not environ.get("SLURM_STEP_ID"):
        return False
    return integer(environ, "SLURM_STEP_ID") < _FIRST_SPECIAL_STEP


def parse_tasks_per_node(text: str) -> list[int]:
    """Give the tasks of each node: `2(x3),1` means [2, 2, 2, 1].

    Raises:
        WorldError: the text is not a list of `N` and `N(xM)`.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?", item.strip())
        if match is None:
            message = (
                f"SLURM_STEP_TASKS_PER_NODE: found {text!r}, expected items N or "
                "N(xM) such as 2(x3),1; unset it if it was set by hand"
            )
            raise WorldError(message)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _slurm_world(environ: Mapping[str, str]) -> World:
    if not is_in_step(environ):
        return _world_outside_step(environ)
    counts = _counts_of_step(environ)
    world_size = sum(counts)
    node_rank = integer(environ, "SLURM_NODEID", below=len(counts))
    world = World(
        rank=integer(environ, "SLURM_PROCID", below=world_size),
        world_size=world_size,
        local_rank=integer(environ, "SLURM_LOCALID", below=counts[node_rank]),
        local_world_size=counts[node_rank],
        node_rank=node_rank,
        num_nodes=len(counts),
        launcher="slurm",
    )
    if stale := _stale(environ):
        _LOG.warning(
            "%s: left over from another launcher, the step says rank %d of %d, "
            "which is used; unset them before srun",
            stale,
            world.rank,
            world.world_size,
        )
    return world


def _counts_of_step(environ: Mapping[str, str]) -> list[int]:
    """Give the number of tasks on each node of the step."""
    per_node = "SLURM_STEP_TASKS_PER_NODE"
    if not environ.get(per_node):
        per_node = "SLURM_TASKS_PER_NODE"
    require(environ, (per_node, "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"))
    counts = parse_tasks_per_node(environ[per_node])
    tasks = integer(environ, "SLURM_STEP_NUM_TASKS")
    if sum(counts) != tasks:
        message = (
            f"SLURM_STEP_NUM_TASKS={tasks}, but {per_node}={environ[per_node]} "
            f"adds up to {sum(counts)}, expected the same number; "
            "do not export SLURM_* variables by hand into the step"
        )
        raise WorldError(message)
    return counts


def _world_outside_step(environ: Mapping[str, str]) -> World:
    if not environ.get("SLURM_JOB_ID"):
        message = (
            "launcher slurm: SLURM_STEP_ID, SLURM_STEP_NUM_TASKS, SLURM_PROCID are "
            "not set, expected a Slurm step; start the program with `srun`, or "
            "choose the launcher pytorch or none"
        )
        raise WorldError(message)
    tasks = job_tasks(environ)
    if tasks > 1:
        message = (
            f"launcher slurm: job {environ['SLURM_JOB_ID']} has {tasks} tasks, but "
            "this process is none of them (no SLURM_STEP_ID of an srun step): the "
            "batch script or shell itself; prefix the command with `srun`"
        )
        raise WorldError(message)
    return World(0, 1, 0, 1, 0, 1, "slurm")


def job_tasks(environ: Mapping[str, str]) -> int:
    """Give the number of tasks that a job has, whatever its step."""
    # sbatch -N2 without -n sets no SLURM_NTASKS at all.
    for name in ("SLURM_NTASKS", "SLURM_NPROCS"):
        if environ.get(name):
            return integer(environ, name)
    return sum(parse_tasks_per_node(environ.get("SLURM_TASKS_PER_NODE") or "1"))


def _stale(environ: Mapping[str, str]) -> str:
    """Show the torchrun variables that contradict the step; empty if none do."""
    pairs = (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"))
    found = [
        f"{ours}={environ[ours]}"
        for ours, slurm in pairs
        if environ.get(ours) and environ[ours] != environ.get(slurm)
    ]
    return ", ".join(found)


def _refuse_plain_start(environ: Mapping[str, str]) -> None:
    if any(environ.get(name) for name in _TORCHRUN):
        return
    message = (
        f"launcher pytorch: {', '.join(_TORCHRUN)} are not set, expected torchrun "
        "to have started this process; start it with `torchrun --nproc-per-node N "
        "...` (or `python -m torch.distributed.run`), or choose the launcher slurm "
        "(under srun) or none (one process)"
    )
    raise WorldError(message)


def _pytorch_world(environ: Mapping[str, str]) -> World:
    _refuse_plain_start(environ)
    require(environ, _TORCHRUN)
    world_size = integer(environ, "WORLD_SIZE", least=1)
    # torch takes RANK=-1 without a word, and then no rank hosts the store.
    rank = integer(environ, "RANK", below=world_size)
    # Port 0 means "any free one", which the other ranks could not know.
    least_port = 0 if world_size == 1 else 1
    integer(environ, "MASTER_PORT", least=least_port, below=_MAX_PORT + 1)
    _refuse_torchrun_per_task(environ)
    groups = optional(environ, "GROUP_WORLD_SIZE", 1)
    evenly = -(-world_size // groups)
    local_world = optional(environ, "LOCAL_WORLD_SIZE", evenly, below=world_size + 1)
    return World(
        rank=rank,
        world_size=world_size,
        local_rank=integer(environ, "LOCAL_RANK", below=local_world),
        local_world_size=local_world,
        node_rank=optional(environ, "GROUP_RANK", rank // local_world, least=0),
        num_nodes=max(groups, -(-world_size // local_world)),
        launcher="pytorch",
    )


def _refuse_torchrun_per_task(environ: Mapping[str, str]) -> None:
    if not (environ.get("TORCHELASTIC_RUN_ID") and is_in_step(environ)):
        return
    tasks = integer(environ, "SLURM_STEP_NUM_TASKS")
    groups = optional(environ, "GROUP_WORLD_SIZE", 1)
    if groups < tasks:
        message = (
            f"torchrun was started by each of {tasks} srun tasks "
            f"(SLURM_STEP_NUM_TASKS), but this one is a group of {groups} "
            "(GROUP_WORLD_SIZE): several trainings instead of one; use `srun "
            "--ntasks-per-node=1` and torchrun --nnodes with a shared --rdzv-endpoint, "
            "or the launcher slurm without torchrun (if the torchrun variables are "
            "left over: `unset TORCHELASTIC_RUN_ID`)"
        )
        raise WorldError(message)
