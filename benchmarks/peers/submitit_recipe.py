"""The training under submitit, with the usual checkpoint() that submits it again.

As in submitit's documentation (docs/checkpointing.md, and MAE's or DINOv2's
launchers): the callable tells how to go on; the training saves as it goes.
"""

import sys
from pathlib import Path

import submitit

from benchmarks.peers import plain


class Training:
    """What submitit pickles, and calls in every task."""

    def __init__(self, place: Path, pause_s: float) -> None:
        self.place, self.pause_s = place, pause_s

    def __call__(self) -> None:
        """Be one rank."""
        submitit.helpers.TorchDistributedEnvironment().export()
        plain.train(self.place, 10**6, self.pause_s, 20)

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Go on with the same, which looks for the last file."""
        return submitit.helpers.DelayedSubmission(Training(self.place, self.pause_s))


def main(place: Path, pause_s: float) -> None:
    """Submit, and print the job's id."""
    executor = submitit.AutoExecutor(folder=place / "submitit")
    executor.update_parameters(
        nodes=1,
        tasks_per_node=2,
        timeout_min=30,
        slurm_partition="main",
        slurm_signal_delay_s=90,
        slurm_additional_parameters={"requeue": True},
    )
    sys.stdout.write(executor.submit(Training(place, pause_s)).job_id + "\n")


if __name__ == "__main__":
    from benchmarks.peers.submitit_recipe import main as submit

    submit(Path(sys.argv[1]), float(sys.argv[2]))
