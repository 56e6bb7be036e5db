"""What an agent must know of its job, as words of its command line.

Reading the job file itself would cost each agent 0.2 s, nearly all of it pydantic.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # pydantic's part of the house, which agents do without
    from clusterddp.config.schema import Job

__all__ = ["AgentPlan"]


@dataclass(frozen=True)
class AgentPlan:
    """One agent's part of a job.

    Attributes:
        run: the run directory.
        name: the job's.
        ranks: how many this node gets.
        wait_s: how long agents wait for one another, in seconds.
        ports: `LOW-HIGH`, where the stores may listen; None for anywhere.
        output: whose output is kept, `Job.kept_output`.
        is_local: whether there is no Slurm around.
    """

    run: Path
    name: str
    ranks: int
    wait_s: int
    ports: str | None
    output: str
    is_local: bool

    @classmethod
    def of(cls, job: "Job", run: Path) -> "AgentPlan":
        """Give what the agents of a job get."""
        is_local = job.where == "local"
        return cls(
            run=run,
            name=job.name,
            ranks=job.world_size if is_local else job.slurm.tasks_per_node,
            wait_s=int(job.dist_params.rendezvous_timeout),
            ports=job.dist_params.port_range,
            output=str(job.kept_output),
            is_local=is_local,
        )

    def words(self) -> list[str]:
        """Give the command line, without the program."""
        return [
            str(self.run),
            f"--name={self.name}",
            f"--ranks={self.ranks}",
            f"--wait-s={self.wait_s}",
            *([f"--ports={self.ports}"] if self.ports else []),
            f"--output={self.output}",
            *(["--is-local"] if self.is_local else []),
        ]

    @classmethod
    def read(cls, words: Sequence[str]) -> "AgentPlan":
        """Give what `words` were made from."""
        parser = argparse.ArgumentParser(prog="python -m clusterddp.launch.agent")
        parser.add_argument("run", type=Path)
        for name in ("name", "ports", "output"):
            parser.add_argument(f"--{name}")
        for name in ("ranks", "wait-s"):
            parser.add_argument(f"--{name}", type=int)
        parser.add_argument("--is-local", action="store_true")
        return cls(**vars(parser.parse_args(words)))
