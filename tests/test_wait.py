"""Staying with a run: across a controller's absence, a successor, to its last word."""

from pathlib import Path

import pytest

from clusterddp import wait
from clusterddp.errors import SlurmError
from clusterddp.runs.directory import create_run
from clusterddp.runs.ledger import Ledger
from clusterddp.slurm.jobs import JobInfo
from clusterddp.wait import wait_for


def test_wait_follows_the_run_to_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first job is over, but the run is not: another job goes on with it."""
    run = create_run(tmp_path, "toy", "r1")
    ledger = Ledger(run, "login")
    ledger.add("submitted", job="7")
    ledger.add("submitted", job="8", token="#0002")  # noqa: S106
    answers: dict[str, list[JobInfo | SlurmError]] = {
        "7": [JobInfo("RUNNING"), JobInfo("FAILED"), JobInfo("FAILED")],
        "8": [SlurmError("Unable to contact slurm controller"), JobInfo("RUNNING")],
    }

    def query(job_id: str) -> JobInfo:
        if not answers[job_id]:
            if job_id == "8":
                ledger.add("finished", code=0)
            return JobInfo("COMPLETED")
        answer = answers[job_id].pop(0)
        if isinstance(answer, SlurmError):
            raise answer
        return answer

    monkeypatch.setattr(wait, "query_job", query)
    monkeypatch.setattr(wait, "_ASK_FIRST_S", 0.0)
    assert wait_for(run, "7") == 0
    said = capsys.readouterr().err
    assert "job 7: RUNNING" in said
    assert "job 8: RUNNING" in said
