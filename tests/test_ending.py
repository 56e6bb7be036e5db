"""What a job's state tells of an attempt's end; the states were seen on 22.05."""

import time
from collections.abc import Sequence

import pytest

from clusterddp.launch.ending import describe_job
from clusterddp.slurm.allocation import Allocation
from clusterddp.slurm.jobs import JobInfo
from clusterddp.slurm.programs import Completed


def allocation(word: str, restarts: int = 0) -> Allocation:
    """Give a job of which the accounting says one word; empty: it does not answer."""

    def run(arguments: Sequence[str]) -> Completed:
        assert arguments[0] == "sacct"
        return Completed(0 if word else 1, f"{word}\n" if word else "", "")

    return Allocation("7", run, restarts)


@pytest.mark.parametrize(
    ("info", "word", "told"),
    [
        (JobInfo("RUNNING"), "", set()),
        (JobInfo("RUNNING", preempt_time=5.0), "", {"is_preempted"}),
        (JobInfo("COMPLETING"), "CANCELLED by 994", {"is_cancelled"}),
        (JobInfo("COMPLETING", preempt_time=5.0), "CANCELLED", {"is_cancelled"}),
        (JobInfo("COMPLETING", preempt_time=5.0), "PREEMPTED", {"is_preempted"}),
        (JobInfo("COMPLETING", preempt_time=5.0), "", {"is_cancelled"}),
        (JobInfo("COMPLETING"), "", {"is_cancelled"}),
        (JobInfo("COMPLETING", restarts=1), "PREEMPTED", {"is_requeued"}),
        (JobInfo("COMPLETING", restarts=1), "NODE_FAIL", {"is_requeued"}),
        (JobInfo("COMPLETING"), "NODE_FAIL", set()),
        (JobInfo("COMPLETING", reason="TimeLimit"), "TIMEOUT", set()),
        (JobInfo("PENDING", restarts=1), "", {"is_requeued"}),
        (JobInfo("CANCELLED"), "", {"is_cancelled"}),
        (JobInfo("PREEMPTED", preempt_time=5.0), "", {"is_preempted"}),
    ],
)
def test_what_a_state_tells(info: JobInfo, word: str, told: set[str]) -> None:
    """A scancel is one wherever it comes; without accounting it is believed."""
    facts = describe_job(info, allocation(word))
    found = {name for name, value in facts.items() if value is True}
    assert found == told


def test_time_left_counts_only_while_the_job_runs() -> None:
    """EndTime is re-read; after a scancel it is the time of the cancellation."""
    soon = time.time() + 60
    left = describe_job(JobInfo("RUNNING", end_time=soon), allocation(""))
    assert 0 < (left["seconds_left"] or 0) <= 60
    ended = describe_job(JobInfo("COMPLETING", end_time=soon), allocation(""))
    assert ended["seconds_left"] is None
    limit = describe_job(JobInfo("COMPLETING", "TimeLimit"), allocation("TIMEOUT"))
    assert limit["seconds_left"] == 0.0
