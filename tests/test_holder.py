"""Who holds a run: ranks started by hand ask, too, and are told who is there."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterddp.config.schema import Job
from clusterddp.errors import LaunchError
from clusterddp.launch.rank import choose_run
from clusterddp.processes import creation_time

JOB = Job(name="x", experiment="package.module:build")


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    """Give a process that could hold a run."""
    words = [sys.executable, "-c", "import time; time.sleep(300)"]
    with subprocess.Popen(words) as process:
        yield process
        process.kill()


def test_a_living_holder_is_named(
    tmp_path: Path, other: "subprocess.Popen[bytes]"
) -> None:
    """Nothing is claimed while it lives; when it has died its run can be had."""
    seat = choose_run(JOB, tmp_path / "x" / "one", {})
    assert seat.attempt.number == 0
    owner = json.loads(seat.attempt.owner.read_text())
    owner |= {"pid": other.pid, "created": creation_time(other.pid)}
    seat.attempt.owner.write_text(json.dumps(owner))
    words = f"attempt 0 is supervised by process {other.pid} on {owner['host']}; wait"
    with pytest.raises(LaunchError, match=words):
        choose_run(JOB, seat.run.path, {})
    assert len(seat.run.list_attempts()) == 1
    other.kill()
    other.wait()
    assert choose_run(JOB, seat.run.path, {}).attempt.number == 1
