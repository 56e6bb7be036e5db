"""How long the command line and the ranks take to start, and how much they hold.

    python benchmarks/startup.py [--repeat 5] [--json OUT.json]

Whole processes, medians over repetitions, interleaved with a bare `import torch` so
that the numbers can be compared on a shared machine. Nothing here is a test.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "jobs" / "exp.yaml"
TORCH = "import torch, torch._dynamo, torch.distributed"


def main() -> None:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    questions: dict[str, Callable[[], float]] = {
        "submit -h, s": lambda: time_of("-m", "clusterddp.submit", "-h"),
        "submit --dry-run, s": lambda: time_of(
            *("-m", "clusterddp.submit", str(JOB), "--nodes", "2", "--dry-run")
        ),
        "import torch and dynamo, s": lambda: time_of("-c", TORCH),
        "ranks started to first step (none, 1 rank), s": lambda: to_first_step("none"),
        "ranks started to first step (agent, 2 ranks), s": lambda: to_first_step(
            "pytorch"
        ),
        "supervisor's resident memory, MiB": supervisor_memory,
    }
    found: dict[str, list[float]] = {name: [] for name in questions}
    for _ in range(given.repeat):
        for name, ask in questions.items():
            found[name].append(ask())
    report(found, given.json)


def report(found: dict[str, list[float]], path: Path | None) -> None:
    """Print minimum, median and maximum of each question."""
    machine = f"{platform.platform()}, {os.cpu_count()} CPUs, Python {sys.version[:6]}"
    print(machine)
    for name, values in found.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"{name:<50} {low:8.3f} {middle:8.3f} {high:8.3f}")
    if path is not None:
        path.write_text(json.dumps({"machine": machine, "values": found}, indent=1))


def time_of(*words: str) -> float:
    """Give the wall time of `python ...`."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, capture_output=True, cwd=ROOT)
    return time.perf_counter() - started


def to_first_step(launcher: str) -> float:
    """Give the time from the start of the ranks' launcher to the first step's log."""
    with tempfile.TemporaryDirectory() as runs:
        options = ["--launcher", launcher, "--runs", runs]
        short = ["train.epochs=1", "log.every=1", "code.snapshot=false"]
        submit = [sys.executable, "-m", "clusterddp.submit", str(JOB), *short, *options]
        subprocess.run(submit, check=True, capture_output=True, cwd=ROOT)
        run = Path(runs) / "digits" / "latest"
        first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
        events = (run / "events" / "attempt-0000.jsonl").read_text().splitlines()
        started = next(
            e for e in map(json.loads, events) if e["event"] == "ranks_started"
        )
        return float(first["time"]) - float(started["time"])


def supervisor_memory() -> float:
    """Give the resident memory of a process that has loaded what the batch task has."""
    code = (
        "import submitit, clusterddp.supervise; print(open('/proc/self/status').read())"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT)
    match = re.search(r"VmRSS:\s+(\d+) kB", done.stdout)
    return int(match[1]) / 1024 if match else float("nan")


if __name__ == "__main__":
    main()
