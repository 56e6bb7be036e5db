"""The ledger: a run's append-only events, one file per writing process.

Appending to one file from several hosts loses lines on NFS, so every writer has
its own file and readers merge them by time. Ranks never write here.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from clusterddp.files import fsync_directory
from clusterddp.runs.directory import RunDirectory

__all__ = ["Event", "Ledger", "read_events"]


@dataclass(frozen=True)
class Event:
    """One line of the ledger.

    Attributes:
        time: seconds since the epoch, by the writer's clock.
        kind: what happened: `submitted`, `attempt_started`, `attempt_ended`,
            `requeued`, `finished`, `stopped`, ...
        values: what belongs to it; JSON values only.
    """

    time: float
    kind: str
    values: dict[str, object]


class Ledger:
    """Appends events durably; one object, one file, one writer."""

    def __init__(self, run: RunDirectory, writer: str) -> None:
        """Open the file of a writer (an attempt, or a login host and pid)."""
        self._path = run.events / f"{writer}.jsonl"

    def add(self, kind: str, **values: object) -> None:
        """Append one event; it is on the disk when this returns.

        A line that a killed predecessor left unfinished is closed first, so that
        it spoils nothing but itself.
        """
        line = json.dumps({"time": time.time(), "event": kind, **values})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self._path.exists()
        with self._path.open("ab+") as file:
            prefix = b"" if _ends_a_line(file.fileno()) else b"\n"
            file.write(prefix + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            fsync_directory(self._path.parent)


def read_events(run: RunDirectory) -> list[Event]:
    """Give all events of a run in order of time; unreadable lines are passed over."""
    try:
        paths = sorted(run.events.glob("*.jsonl"))
    except OSError:
        return []
    events = [event for path in paths for event in _read_file(path)]
    return sorted(events, key=lambda event: event.time)


def _read_file(path: Path) -> Iterable[Event]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            values = json.loads(line)
            yield Event(float(values.pop("time")), str(values.pop("event")), values)
        except (ValueError, KeyError, AttributeError, TypeError):
            continue


def _ends_a_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
