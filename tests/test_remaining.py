"""How long a job may still run: the controller's word, else the environment's."""

from collections.abc import Sequence

import pytest

from clusterddp.errors import SlurmError
from clusterddp.slurm.programs import Completed
from clusterddp.slurm.remaining import seconds_left

RECORD = "JobId=7 JobName=x JobState=RUNNING EndTime=1090 NodeList=n1"


def answer(_arguments: Sequence[str]) -> Completed:
    return Completed(0, RECORD, "")


def absent(_arguments: Sequence[str]) -> Completed:
    message = "scontrol: not found"
    raise SlurmError(message)


@pytest.mark.parametrize(
    ("environ", "run", "left"),
    [
        ({}, absent, None),
        ({"SLURM_JOB_ID": "7"}, answer, 90.0),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1030"}, answer, 90.0),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1030"}, absent, 30.0),
        ({"SLURM_JOB_ID": "7"}, absent, None),
    ],
    ids=["no job", "asked", "asked first", "told", "unknown"],
)
def test_seconds_left(environ: dict[str, str], run: object, left: float | None) -> None:
    """None where nobody knows: then no save is thought too long."""
    assert seconds_left(environ, lambda: 1000.0, run) == left  # type: ignore[arg-type]
