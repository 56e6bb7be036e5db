"""`python -m benchmarks.tools`: how the tools bear a thousand runs, and large ones.

`status` over copies of recorded runs, as a user would call it (squeue and sacct are
replaced by programs that answer at once, so that the time is ours); a sweep of 1,000
elements, as dry run and sent to an sbatch that answers at once; a ledger of a million
events; the sampler of a thousand million samples; the memory of the supervisor, and
of a rank over a process that has only loaded torch.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import arguments, measure, record
from benchmarks.jobs import write_short_job
from benchmarks.result import Result, Target
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import Ledger, read_events
from tests.replay import CASES, replay
from tests.runs import ROOT, clean_environ

ASKED = "How do the tools bear thousands of runs, elements, events and samples?"
_RSS = "print(open('/proc/self/status').read())"
_SAMPLER = """
import time, sys
from clusterddp.training.sampler import GlobalSampler
begin = time.perf_counter()
sampler = GlobalSampler(int(float(sys.argv[1])), 1024, 3, 8, seed=0)
sampler.seek(int(float(sys.argv[1]) * 7.5))
next(iter(sampler))
print(1e3 * (time.perf_counter() - begin))
"""


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = arguments(parser)
    blocks = 2 if given.quick else 5
    few = min(blocks, 3)
    share = 10 if given.quick else 1
    with (
        tempfile.TemporaryDirectory() as name,
        record("tools", ASKED, given.results) as results,
    ):
        place = Path(name)
        results.append(looks(place, 1_000 // share, 10_000 // share, few))
        results.append(sweeps(place, 1_000 // share, few))
        results.append(ledgers(place, 1_000_000 // share, few))
        results.append(orders(1e9, blocks))
        results.append(sampler_memory(1e9))
        results.append(memory(few))


def timed(words: list[str], environ: dict[str, str] | None = None) -> float:
    """Give the seconds that a command takes.

    Raises:
        RuntimeError: it failed; the message has its last words.
    """
    begin = time.perf_counter()
    done = subprocess.run(
        words, env=clean_environ(environ), check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-500:]}")
    return time.perf_counter() - begin


def answering(home: Path, **answers: str) -> dict[str, str]:
    """Put programs on a PATH that answer at once; give the variable."""
    for name, answer in answers.items():
        path = home / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{answer}\n")
        path.chmod(0o755)
    return {"PATH": f"{home}/bin:{os.environ['PATH']}"}


def looks(place: Path, few: int, many: int, blocks: int) -> Result:
    """Ask for the time of one look at so many runs."""
    environ = answering(place, squeue="", sacct="")
    for count in (few, many):
        _copy_runs(place / str(count), count)

    def look(count: int) -> float:
        runs = str(place / str(count) / "runs")
        command = [sys.executable, "-m", "clusterddp.status", "--runs", runs]
        return timed(command, environ)

    return measure(
        "One look at all runs with `status`",
        {f"{count:,} runs": lambda count=count: look(count) for count in (few, many)},  # type: ignore[misc]
        unit="s",
        blocks=blocks,
        targets=[
            Target(f"{few:,} runs", limit=1.0),
            Target(f"{many:,} runs", limit=10.0),
        ],
    )


def _copy_runs(home: Path, count: int) -> None:
    for number in range(count):
        case = replay(CASES[number % len(CASES)], home / "one")
        target = home / "runs" / f"name-{number % 20:02}" / f"{number:06}"
        target.parent.mkdir(parents=True, exist_ok=True)
        case.run.path.rename(target)


def sweeps(place: Path, count: int, blocks: int) -> Result:
    """Ask for a dry run and a submission of a sweep, sbatch answering at once."""
    home = place / "sweep"
    home.mkdir()
    answers = {"sbatch": "echo Submitted batch job 7", "srun": "", "squeue": ""}
    answers |= {"scontrol": "echo MaxArraySize = 1001", "sacct": "", "sinfo": ""}
    environ = {**answering(place, **answers), "CLUSTERDDP_SHARED_TMP": "1"}
    job = write_short_job(home, sweep={"grid": {"train.seed": list(range(count))}})
    submit = [sys.executable, "-m", "clusterddp.submit", str(job)]
    runs = ["--runs", str(home / "runs")]

    def send() -> float:
        shutil.rmtree(home / "runs", ignore_errors=True)
        return timed([*submit, *runs, "--new"], environ)

    return measure(
        f"A sweep of {count:,} elements as one array (sbatch replaced)",
        {
            "--dry-run": lambda: timed([*submit, *runs, "--dry-run"], environ),
            "submit, a run directory for each": send,
        },
        unit="s",
        blocks=blocks,
        targets=[Target("submit, a run directory for each", limit=20.0)],
    )


def ledgers(place: Path, count: int, blocks: int) -> Result:
    """Ask for reading a large ledger, and for one more event in it."""
    run = RunDirectory(place / "ledger")
    run.events.mkdir(parents=True)
    line = {"event": "attempt_ended", "attempt": 1, "cause": "crash"}
    with (run.events / "attempt-0000.jsonl").open("w") as file:
        for number in range(count):
            file.write(json.dumps({"time": 1.5e9 + number, **line}) + "\n")

    def clock(ask: Callable[[], object]) -> float:
        begin = time.perf_counter()
        ask()
        return time.perf_counter() - begin

    ledger = Ledger(run, "attempt-0000")
    return measure(
        f"A ledger of {count:,} events",
        {
            "read all": lambda: clock(lambda: read_events(run)),
            "add one, on the disk": lambda: clock(lambda: ledger.add("signal")),
        },
        unit="s",
        blocks=blocks,
        targets=[
            Target("read all", limit=10.0),
            Target("add one, on the disk", limit=0.1),
        ],
    )


def orders(size: float, blocks: int) -> Result:
    """Ask for a sampler's first batch after a resume in the eighth epoch."""

    def ask(samples: float) -> float:
        words = [sys.executable, "-c", _SAMPLER, str(samples)]
        return float(_said(words))

    return measure(
        "A sampler from its making to the first batch after a resume",
        {
            "10,000 samples": lambda: ask(1e4),
            "1,000,000 samples": lambda: ask(1e6),
            f"{size:,.0f} samples": lambda: ask(size),
        },
        unit="ms",
        blocks=blocks,
        targets=[Target(f"{size:,.0f} samples", limit=100.0)],
    )


def sampler_memory(size: float) -> Result:
    """Ask for the memory that a sampler adds."""
    # Not getrusage: its maximum is handed down from the process that started this one.
    code = f"{_SAMPLER}print(open('/proc/self/status').read())"

    def peak(samples: float) -> float:
        said = _said([sys.executable, "-c", code, str(samples)])
        match = re.search(r"VmHWM:\s+(\d+) kB", said)
        return int(match[1]) / 1024 if match else float("nan")

    return measure(
        "Peak memory of a process with such a sampler",
        {
            "10,000 samples": lambda: peak(1e4),
            "1,000,000 samples": lambda: peak(1e6),
            f"{size:,.0f} samples": lambda: peak(size),
        },
        unit="MiB",
        blocks=2,
        warm_up=0,
        baseline="10,000 samples",
        targets=[Target(f"{size:,.0f} samples", extra=64.0)],
    )


def memory(blocks: int) -> Result:
    """Ask for what processes hold, once they have loaded what they need."""
    imports = {
        "supervisor": "import submitit, clusterddp.supervise",
        "torch and DDP": "import torch, torch._dynamo, torch.distributed",
        "a rank of ours": "import torch, torch._dynamo, torch.distributed;"
        "import clusterddp.train, clusterddp.training, clusterddp.dist",
    }

    def held(code: str) -> float:
        said = _said([sys.executable, "-c", f"{code}; {_RSS}"])
        match = re.search(r"VmRSS:\s+(\d+) kB", said)
        return int(match[1]) / 1024 if match else float("nan")

    return measure(
        "Resident memory",
        {name: lambda code=code: held(code) for name, code in imports.items()},  # type: ignore[misc]
        unit="MiB",
        blocks=blocks,
        baseline="torch and DDP",
        targets=[
            Target("supervisor", limit=60.0),
            Target("a rank of ours", extra=50.0),
        ],
    )


def _said(words: list[str]) -> str:
    done = subprocess.run(
        words, cwd=ROOT, env=clean_environ(), check=True, capture_output=True, text=True
    )
    return done.stdout


if __name__ == "__main__":
    main()
