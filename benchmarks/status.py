"""`python -m benchmarks.status [RUNS]`: how long one look at many runs takes.

Copies recorded runs into a temporary directory until there are so many, and times
`clusterddp.status` as a user would; squeue and sacct are replaced by programs that
answer at once, so that the time is ours.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.replay import CASES, replay


def main(count: int) -> None:
    """Print the wall time of three looks."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        for number in range(count):
            case = replay(CASES[number % len(CASES)], home / "one")
            target = home / "runs" / f"name-{number % 20:02}" / f"{number:06}"
            target.parent.mkdir(parents=True, exist_ok=True)
            case.run.path.rename(target)
        for program in ("squeue", "sacct"):
            path = home / "bin" / program
            path.parent.mkdir(exist_ok=True)
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
        environ = {**os.environ, "PATH": f"{home}/bin:{os.environ['PATH']}"}
        command = [sys.executable, "-m", "clusterddp.status", "--runs", f"{home}/runs"]
        for _ in range(3):
            begin = time.perf_counter()
            done = subprocess.run(command, env=environ, check=True, capture_output=True)
            took = time.perf_counter() - begin
            print(f"{len(done.stdout.splitlines()) - 1} runs: {took:.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
