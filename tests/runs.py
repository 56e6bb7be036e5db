"""Starting whole runs in tests and looking at what they left."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import Event, read_events

ROOT = Path(__file__).resolve().parent.parent
# With Slurm's own hold a requeued job starts after two minutes at the earliest.
DEADLINE_S = 360.0 if os.environ.get("CLUSTERDDP_TEST_HOLD") == "0" else 120.0

TOY: dict[str, object] = {
    "name": "toy",
    "experiment": f"{ROOT}/tests/toy.py:build",
    "train": {"epochs": 3, "global_batch_size": 24},
    "checkpoint": {"every": "5 steps"},
    "log": {"every": 5},
    "slurm": {"tasks_per_node": 2, "time": "10m"},
    "code": {"snapshot": False},
}


def write_job(directory: Path, **changes: object) -> Path:
    """Write the toy's job file, some of its sections changed; give its path."""
    values = dict(TOY)
    for key, value in changes.items():
        old = values.get(key)
        is_section = isinstance(value, dict) and isinstance(old, dict)
        values[key] = {**old, **value} if is_section else value  # type: ignore[dict-item]
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not None}))
    return path


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def clean_environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give this process's environment without what another launch may have left."""
    foreign = ("SLURM", "CLUSTERDDP", "RANK", "WORLD_SIZE", "MASTER", "TORCHELASTIC")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    return {**kept, "PYTHONPATH": str(ROOT), **(extra or {})}


def start(
    words: Sequence[str], cwd: Path, extra: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start `python -m ...` in a directory, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=cwd,
        env=clean_environ(extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], deadline_s: float = DEADLINE_S) -> Done:
    """Wait for a process's end; one that hangs is killed, and the test fails."""
    try:
        out, err = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        message = f"still there after {deadline_s} s\n{out}\n{err}"
        raise AssertionError(message) from None
    return Done(process.returncode, out, err)


def run_python(
    words: Sequence[str], cwd: Path, extra: Mapping[str, str] | None = None
) -> Done:
    """Run `python -m ...` in a directory to its end."""
    return finish(start(words, cwd, extra))


def wait_until(what: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Poll a condition; fails when it does not come true in time."""
    end = time.monotonic() + deadline_s
    while not what():
        if time.monotonic() > end:
            message = f"{what} did not come true within {deadline_s} s"
            raise AssertionError(message)
        time.sleep(0.05)


def latest(directory: Path, name: str = "toy") -> RunDirectory:
    """Give the latest run below `directory/runs`."""
    return RunDirectory((directory / "runs" / name / "latest").resolve())


def step_of(run: RunDirectory) -> int:
    """Give the step that rank 0 last told of; 0 before the first."""
    try:
        return int(json.loads(run.progress.read_text())["step"])
    except (FileNotFoundError, KeyError, ValueError):
        return 0


def digest(run: RunDirectory) -> str:
    """Give one digest of the final model, optimizer and logged losses."""
    newest = max(run.checkpoints.glob("step-????????"))
    total = hashlib.sha256()
    for name in ("model.pt", "optimizer.pt"):
        total.update((newest / name).read_bytes())
    total.update(json.dumps(losses(run)).encode())
    return total.hexdigest()


def losses(run: RunDirectory) -> list[tuple[int, float]]:
    """Give (step, loss) of every log point."""
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


def events(run: RunDirectory, kind: str) -> list[Event]:
    """Give the ledger's events of a kind."""
    return [event for event in read_events(run) if event.kind == kind]


def rank_pids(run: RunDirectory) -> list[int]:
    """Give the pids of this machine's ranks of a run, by their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"clusterddp.train" in words and str(run.path).encode() in words:
            found.append(int(entry.name))
    return sorted(found)


def kill(pid: int, signum: int = signal.SIGKILL) -> None:
    """Send a signal; a process that is gone already is fine."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return
