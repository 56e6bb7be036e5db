"""The files that hold the ranks' output: one per rank, or one per node with labels.

Which there are is up to `log.ranks` of the job file; whoever reads takes what there
is. A line of a node's file begins with the rank that said it, as srun --label writes
it: `3: text`, the number right-aligned where there are ten ranks or more.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterddp.runs.directory import AttemptDirectory

__all__ = [
    "LogFile",
    "find_log",
    "list_logs",
    "read_last_lines",
    "read_last_words",
    "split_lines",
]

_LOG = re.compile(r"(rank|node)-(\d{4,})\.log")
_LABEL = re.compile(r" *(\d+): ?(.*)", re.DOTALL)
_TAIL = 1 << 14
_SHARED_TAIL = 1 << 17


@dataclass(frozen=True)
class LogFile:
    """One file of output.

    Attributes:
        path: where it lies.
        rank: whose output it is; None: of several ranks, whose lines have labels.
    """

    path: Path
    rank: int | None

    def split(self, data: bytes) -> dict[int, list[str]]:
        """Give the lines of some of its content by rank.

        A line without a label goes with the one before.
        """
        if self.rank is not None:
            return {self.rank: split_lines(data)}
        found: dict[int, list[str]] = {}
        rank = 0
        for line in _whole_lines(data):
            label = _LABEL.fullmatch(line)
            rank, text = (int(label[1]), label[2]) if label else (rank, line)
            found.setdefault(rank, []).append(_last_form(text))
        return found


def list_logs(attempt: AttemptDirectory) -> list[LogFile]:
    """Give the files that there are, by name."""
    try:
        names = sorted(path.name for path in attempt.path.iterdir())
    except OSError:
        return []
    matches = filter(None, map(_LOG.fullmatch, names))
    return [
        LogFile(attempt.path / match[0], int(match[2]) if match[1] == "rank" else None)
        for match in matches
    ]


def find_log(attempt: AttemptDirectory, rank: int) -> Path | None:
    """Give the file in which a rank's last words stand; None: nothing was kept."""
    for log in list_logs(attempt):
        if log.rank == rank or rank in log.split(_read_tail(log.path, _SHARED_TAIL)):
            return log.path
    return None


def read_last_words(
    attempt: AttemptDirectory, rank: int, count: int = 20
) -> tuple[str, ...]:
    """Give the last lines of a rank; none if its output was not kept."""
    path = find_log(attempt, rank)
    if path is None:
        return ()
    if path == attempt.rank_log(rank):
        return read_last_lines(path, count)
    lines = LogFile(path, None).split(_read_tail(path, _SHARED_TAIL))[rank]
    return _last(lines, count)


def read_last_lines(path: Path, count: int = 20) -> tuple[str, ...]:
    """Give the last lines of a text file; none if it is not there."""
    return _last(split_lines(_read_tail(path, _TAIL)), count)


def _last(lines: Iterable[str], count: int) -> tuple[str, ...]:
    return tuple(line for line in lines if line.strip())[-count:]


def _read_tail(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - size))
            data = file.read()
    except OSError:
        return b""
    return data if end <= size else data.partition(b"\n")[2]


def split_lines(data: bytes) -> list[str]:
    """Give the lines of some output; one that overwrote itself counts as its last form.

    A carriage return is what progress bars write; it ends no line.
    """
    return [_last_form(line) for line in _whole_lines(data)]


def _whole_lines(data: bytes) -> Iterator[str]:
    lines = data.decode(errors="replace").split("\n")
    yield from lines if lines[-1] else lines[:-1]


def _last_form(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
