"""A requeued job's hold is shortened, but never to nothing."""

from collections.abc import Sequence

import pytest

from clusterddp.slurm.hold import is_held, lift_hold
from clusterddp.slurm.programs import Completed

RECORD = "JobId=7 JobState=PENDING Reason=BeginTime SubmitTime={} EligibleTime={}"


@pytest.mark.parametrize(
    ("record", "updates", "is_lifted"),
    [
        (RECORD.format(1000, 1121), ["update JobId=7 StartTime=uts1010"], True),
        (RECORD.format(1000, 1010), [], True),
        (RECORD.format(1000, 1006), [], True),
        (RECORD.format("Unknown", "Unknown"), [], False),
        (
            "JobId=7 JobState=PENDING Reason=launch_failed_requeued_held SubmitTime=1",
            ["release 7"],
            True,
        ),
        ("slurm_load_jobs error: Invalid job id specified", [], False),
    ],
    ids=["long hold", "lifted before", "short hold", "no times", "not started", "gone"],
)
def test_ten_seconds_after_the_requeue(
    record: str, updates: list[str], *, is_lifted: bool
) -> None:
    """By the controller's clock; as often as one likes; not where it is over sooner."""
    said: list[str] = []

    def answer(arguments: Sequence[str]) -> Completed:
        if "show" not in arguments:
            said.append(" ".join(arguments[1:]))
        return Completed(0, record, "")

    assert lift_hold("7", answer) is is_lifted
    assert said == updates


def test_refusal_is_told() -> None:
    """Whoever waits for the job goes on waiting."""
    long = RECORD.format(1000, 1121)
    assert not lift_hold("7", lambda words: Completed("update" in words, long, "no"))


def test_only_the_hold_is_lifted() -> None:
    """A job that somebody holds, or that waits for nodes, is left alone."""
    assert is_held("PENDING", "BeginTime")
    assert not is_held("PENDING", "JobHeldUser")
    assert is_held("PENDING", "launch failed requeued held")
    assert is_held("PENDING", "launch_failed_requeued_held")
    assert not is_held("RUNNING", "None")
