"""The Slurm job that this process runs in, as far as a supervisor needs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterddp.errors import SlurmError
from clusterddp.slurm.environment import job_address, restart_count
from clusterddp.slurm.hostlist import expand_hostlist
from clusterddp.slurm.jobs import JobInfo, query_job
from clusterddp.slurm.programs import Completed, Runner, run_program

__all__ = ["Allocation", "current_allocation"]


@dataclass(frozen=True)
class Allocation:
    """A job by its address, and what a supervisor does with it.

    Attributes:
        address: the job's id; `<array>_<task>` for an array element.
        run: what runs a program.
        restarts: how often the job had been requeued when this process was started.
        nodes: the nodes that it was started with.
        partition: where it runs.
    """

    address: str
    run: Runner = run_program
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    partition: str | None = None

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

    def query_accounting(self) -> str:
        """Give the state that the accounting has; empty when it says nothing.

        While a job is COMPLETING the controller does not say what it was before;
        the accounting does at once: CANCELLED, PREEMPTED or NODE_FAIL (measured).
        """
        options = ("--allocations", "--noheader", "--parsable2", "--format=State")
        try:
            done = self.run(["sacct", *options, f"--jobs={self.address}"])
        except SlurmError:
            return ""
        rows = done.out.split("\n") if done.code == 0 else []
        return next((row.strip() for row in reversed(rows) if row.strip()), "")

    def requeue(self) -> None:
        """Requeue the job, but only while it is RUNNING.

        After `scancel` a job is COMPLETING and `scontrol requeue` would bring it
        back from the dead (measured on 22.05 and 24.11). A job that has been requeued
        meanwhile, by Slurm or by a call of ours whose answer got lost, is left alone.

        Raises:
            SlurmError: the job is not RUNNING, or Slurm refuses.
        """
        info = self.query()
        if info.restarts > self.restarts:
            return
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

    def exclude(self, nodes: Sequence[str]) -> Completed:
        """Keep nodes, and no others, from a job that was just requeued.

        Refused while the job is RUNNING; it sticks right after the requeue
        (measured).
        """
        names = ",".join(dict.fromkeys(nodes))
        job = f"JobId={self.address}"
        return self.run(["scontrol", "update", job, f"ExcNodeList={names}"])

    def cancel(self) -> None:
        """Cancel the job; one that is over already is left alone."""
        self.run(["scancel", self.address])


def current_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Give the job that this process runs in; None outside one."""
    address = job_address(environ)
    if address is None:
        return None
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    return Allocation(
        address,
        restarts=restart_count(environ),
        nodes=tuple(expand_hostlist(nodes)) if nodes else (),
        partition=environ.get("SLURM_JOB_PARTITION"),
    )
