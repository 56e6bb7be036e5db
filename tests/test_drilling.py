"""What a drill makes of a run: here only what needs no Slurm."""

import json
import time
from pathlib import Path

import pytest

from clusterddp.drill import main as drill
from clusterddp.runs.directory import claim_attempt, create_run
from clusterddp.runs.ledger import Ledger
from tests.runs import write_job


@pytest.mark.parametrize("is_old", [True, False])
def test_no_drill_before_the_first_step_of_this_attempt(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_old: bool,  # noqa: FBT001
) -> None:
    """Steps that the attempt before has told of were taken for lost ones (seen)."""
    run = create_run(tmp_path, "toy", "r1")
    write_job(run.path)
    claim_attempt(run, {})
    progress = {"step": 8, "time": time.time() + (-9 if is_old else 9)}
    run.progress.write_text(json.dumps(progress))
    ledger = Ledger(run, "attempt-0000")
    ledger.add("submitted", job=None)
    ledger.add("attempt_started", attempt=0)
    ledger.add("ranks_started", attempt=0)
    assert drill([str(run.path), "--preempt"]) == 2
    said = capsys.readouterr().err
    assert ("found no ranks that train" in said) is is_old
    assert ("a local run, expected one on Slurm" in said) is not is_old
