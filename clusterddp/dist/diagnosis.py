"""What init_dist would make of an environment, and why; pure, and without torch.

It calls the very functions that init_dist calls, so the two cannot disagree; what it
adds is where each number came from, and the traps.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterddp.dist.channel import fixed_address
from clusterddp.dist.scene import Machine, Problem, Scene
from clusterddp.dist.traps import INTERACTIVE_STEP, find_traps
from clusterddp.dist.world import (
    World,
    detect_launcher,
    is_in_step,
    world_from_environment,
)
from clusterddp.errors import LaunchError, WorldError
from clusterddp.slurm.hostlist import expand_hostlist

__all__ = ["Diagnosis", "Source", "diagnose"]

_CHOICE = "CLUSTERDDP_LAUNCHER"


@dataclass(frozen=True)
class Source:
    """One number of the world and the variables that it came from."""

    name: str
    value: int
    origin: str


@dataclass(frozen=True)
class Diagnosis:
    """What would happen.

    Attributes:
        in_step: whether an srun step, not a shell, runs this process.
        launcher: what is taken to have started it.
        reason: why.
        world: None where init_dist would refuse.
        sources: where each number of the world came from.
        problems: the refusal, if there is one, then the traps.
    """

    in_step: bool
    launcher: str
    reason: str
    world: World | None
    sources: tuple[Source, ...]
    problems: tuple[Problem, ...]


def diagnose(environ: Mapping[str, str], machine: Machine | None = None) -> Diagnosis:
    """Say what init_dist would make of an environment.

    Args:
        environ: the variables; an empty one counts as unset.
        machine: what only the machine can tell; None for an environment in a file.
    """
    in_step = _is_step(environ)
    launcher, reason = _launcher(environ)
    try:
        world = world_from_environment(environ.get(_CHOICE), environ)
        _check_meeting(world, environ)
    except LaunchError as error:
        problem = _refusal(launcher, error, environ)
        return Diagnosis(in_step, launcher, reason, None, (), (problem,))
    scene = Scene(environ, world, machine)
    sources = tuple(_sources(world, environ, in_step=in_step))
    problems = tuple(find_traps(scene))
    return Diagnosis(in_step, launcher, reason, world, sources, problems)


def _is_step(environ: Mapping[str, str]) -> bool:
    try:
        return is_in_step(environ)
    except WorldError:
        return False


def _launcher(environ: Mapping[str, str]) -> tuple[str, str]:
    """Give the launcher, and why it is that one."""
    chosen = environ.get(_CHOICE)
    if chosen and chosen != "auto":
        return chosen, f"{_CHOICE}={chosen} asks for it"
    try:
        found = detect_launcher(environ)
    except WorldError:
        return "slurm", "SLURM_STEP_ID is set, though to no number"
    if found == "slurm":
        return found, f"SLURM_STEP_ID={environ['SLURM_STEP_ID']} is an srun step"
    if found == "none":
        return found, "neither an srun step nor the variables of torchrun"
    if run := environ.get("TORCHELASTIC_RUN_ID"):
        return found, f"TORCHELASTIC_RUN_ID={run}: torchrun"
    return found, "the variables of torchrun are set"


def _check_meeting(world: World, environ: Mapping[str, str]) -> None:
    """Refuse what init_dist refuses once it knows the world."""
    if world.launcher != "slurm" or world.world_size == 1:
        return
    fixed_address(environ)
    expand_hostlist(environ.get("SLURM_STEP_NODELIST", ""))


def _refusal(launcher: str, error: LaunchError, environ: Mapping[str, str]) -> Problem:
    message, _, fix = str(error).partition("; ")
    return Problem(_refusal_code(launcher, environ), message, fix)


def _refusal_code(launcher: str, environ: Mapping[str, str]) -> str:
    if launcher not in ("slurm", "pytorch", "none"):
        return "unknown-launcher"
    if launcher == "pytorch":
        in_step = bool(environ.get("TORCHELASTIC_RUN_ID")) and _is_step(environ)
        return "torchrun-per-task" if in_step else "torchrun-incomplete"
    if environ.get("SLURM_STEP_ID") == INTERACTIVE_STEP:
        return "interactive-step"
    if environ.get("SLURM_STEP_NUM_TASKS") and environ.get("SLURM_STEP_ID"):
        return "contradiction"
    return "batch-shell" if environ.get("SLURM_JOB_ID") else "no-step"


def _sources(
    world: World, environ: Mapping[str, str], *, in_step: bool
) -> Iterator[Source]:
    if world.launcher == "pytorch":
        origins = _of_torchrun(environ)
    elif world.launcher == "slurm" and in_step:
        origins = _of_step(environ)
    else:
        origins = {}
    for name in (
        *("rank", "world_size", "local_rank", "local_world_size"),
        *("node_rank", "num_nodes"),
    ):
        value: int = getattr(world, name)
        yield Source(name, value, origins.get(name, "alone: a world of one"))


def _of_step(environ: Mapping[str, str]) -> dict[str, str]:
    counts = "SLURM_STEP_TASKS_PER_NODE"
    if not environ.get(counts):
        counts = "SLURM_TASKS_PER_NODE"
    return {
        "rank": _shown(environ, "SLURM_PROCID"),
        "world_size": _shown(environ, "SLURM_STEP_NUM_TASKS"),
        "local_rank": _shown(environ, "SLURM_LOCALID"),
        "local_world_size": f"entry {environ['SLURM_NODEID']} of "
        f"{_shown(environ, counts)}",
        "node_rank": _shown(environ, "SLURM_NODEID"),
        "num_nodes": f"entries of {_shown(environ, counts)}",
    }


def _of_torchrun(environ: Mapping[str, str]) -> dict[str, str]:
    found = {
        name: _shown(environ, variable)
        for name, variable in (
            ("rank", "RANK"),
            ("world_size", "WORLD_SIZE"),
            ("local_rank", "LOCAL_RANK"),
            ("local_world_size", "LOCAL_WORLD_SIZE"),
            ("node_rank", "GROUP_RANK"),
            ("num_nodes", "GROUP_WORLD_SIZE"),
        )
        if environ.get(variable)
    }
    found.setdefault("local_world_size", "WORLD_SIZE over GROUP_WORLD_SIZE (or 1)")
    found.setdefault("node_rank", "RANK over the ranks of a node (no GROUP_RANK)")
    found.setdefault("num_nodes", "WORLD_SIZE over the ranks of a node")
    return found


def _shown(environ: Mapping[str, str], name: str) -> str:
    return f"{name}={environ[name]}"
