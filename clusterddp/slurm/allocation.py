"""The Slurm job that this process runs in, as far as a supervisor needs it."""

from collections.abc import Mapping
from dataclasses import dataclass

from clusterddp.errors import SlurmError
from clusterddp.slurm.environment import job_address
from clusterddp.slurm.jobs import JobInfo, query_job
from clusterddp.slurm.programs import Runner, run_program

__all__ = ["Allocation", "current_allocation"]


@dataclass(frozen=True)
class Allocation:
    """A job by its address, and the two things that a supervisor does with it."""

    address: str
    run: Runner = run_program

    def query(self) -> JobInfo:
        """Ask Slurm how the job stands now.

        Raises:
            SlurmError: Slurm does not answer, or does not know the job.
        """
        info = query_job(self.address, self.run)
        if info is None:
            message = f"job {self.address}: Slurm does not know it; see `scontrol ping`"
            raise SlurmError(message)
        return info

    def requeue(self) -> None:
        """Requeue the job, but only while it is RUNNING.

        After `scancel` a job is COMPLETING and `scontrol requeue` would bring it
        back from the dead (measured on 22.05 and 24.11).

        Raises:
            SlurmError: the job is not RUNNING, or Slurm refuses.
        """
        info = self.query()
        if info.state != "RUNNING":
            message = (
                f"job {self.address}: found {info.state}, expected RUNNING to requeue "
                "it; submit the run again if it should go on"
            )
            raise SlurmError(message)
        done = self.run(["scontrol", "requeue", self.address])
        if done.code != 0:
            message = (
                f"scontrol requeue {self.address}: {done.err.strip()}; the run can be "
                "started again in its directory"
            )
            raise SlurmError(message)


def current_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Give the job that this process runs in; None outside one."""
    address = job_address(environ)
    return None if address is None else Allocation(address)
