"""Sending a run's further job at most once: a numbered claim before every sbatch.

`submissions/0002.json` is made with O_EXCL: of two who want to bring a run back at
the same time one makes it, the other gives up. Its name goes into the job's comment,
so that a job whose submission nobody could note down is found again.
"""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from clusterddp.errors import UsageError
from clusterddp.files import fsync_directory, read_json, write_json
from clusterddp.processes import creation_time, is_same_process
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import read_events

__all__ = [
    "Claim",
    "claim_submission",
    "count_claims",
    "is_in_progress",
    "next_token",
    "unresolved_claim",
]

_FORGOTTEN_S = 600.0


@dataclass(frozen=True)
class Claim:
    """The right to send a run's next job."""

    path: Path
    token: str


def count_claims(run: RunDirectory) -> int:
    """Give the number of the newest claim of a run; 0: there is none."""
    numbers = (int(path.stem) for path in _claims(run).glob("[0-9]*.json"))
    return max(numbers, default=0)


def next_token(run: RunDirectory) -> str:
    """Give what the comment of the run's next job would carry; nothing is claimed."""
    return _token(_claim(run, count_claims(run) + 1))


def claim_submission(run: RunDirectory, seen: int | None = None) -> Claim:
    """Take the right to send the next job of a run.

    Args:
        run: the run.
        seen: `count_claims` from before the look at the run that led here: what was
            seen then holds only if nobody has claimed since.

    Raises:
        UsageError: somebody else took it meanwhile.
    """
    parent = _claims(run)
    parent.mkdir(exist_ok=True)
    last = count_claims(run)
    number = (last if seen is None else seen) + 1
    path = _claim(run, number)
    if last >= number or not _is_first(path):
        message = (
            f"{run.path}: somebody else sends a job for this run at this moment; see "
            "what becomes of it with clusterddp.status"
        )
        raise UsageError(message)
    words = {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
    write_json(path, {**words, "created": creation_time(os.getpid())})
    fsync_directory(parent)
    return Claim(path, _token(path))


def _is_first(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False
    return True


def unresolved_claim(run: RunDirectory) -> Claim | None:
    """Give the newest claim if the ledger does not say what became of it."""
    paths = sorted(_claims(run).glob("[0-9]*.json"))
    if not paths:
        return None
    token = _token(paths[-1])
    known = {event.values.get("token") for event in read_events(run)}
    return None if token in known else Claim(paths[-1], token)


def is_in_progress(claim: Claim) -> bool:
    """Say whether whoever made a claim may still be at it.

    On this machine the process is looked for; of another one it is believed for ten
    minutes, longer than any sbatch takes.
    """
    words = read_json(claim.path) or {}
    pid, created = words.get("pid"), words.get("created")
    if words.get("host") == socket.gethostname() and isinstance(pid, int):
        return pid != os.getpid() and is_same_process(pid, float(str(created)))
    try:
        age = time.time() - claim.path.stat().st_mtime
    except FileNotFoundError:  # refused by Slurm, and taken back
        return False
    return age < _FORGOTTEN_S


def _claims(run: RunDirectory) -> Path:
    return run.path / "submissions"


def _claim(run: RunDirectory, number: int) -> Path:
    return _claims(run) / f"{number:04d}.json"


def _token(path: Path) -> str:
    return f"#{path.stem}"
