"""What a diagnosis looks at, and what it finds. No torch in here."""

from collections.abc import Mapping
from dataclasses import dataclass

from clusterddp.dist.world import World

__all__ = ["Machine", "Problem", "Scene"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, or may surprise: a short code, what, and what to do."""

    code: str
    message: str
    fix: str


@dataclass(frozen=True)
class Machine:
    """What only the machine itself can tell; absent for an environment in a file.

    Attributes:
        loopback_name: the host's name, if it leads to loopback or nowhere; else "".
        cpus: CPUs that this process may use.
        on_machine: CPUs of the machine.
    """

    loopback_name: str
    cpus: int
    on_machine: int


@dataclass(frozen=True)
class Scene:
    """An environment and what was made of it."""

    environ: Mapping[str, str]
    world: World
    machine: Machine | None = None

    def get(self, name: str) -> str:
        """Give a variable; an unset one is empty."""
        return self.environ.get(name, "")

    @property
    def by_slurm(self) -> bool:
        """Whether the world comes from a Slurm step of several tasks."""
        return self.world.launcher == "slurm" and self.world.world_size > 1
