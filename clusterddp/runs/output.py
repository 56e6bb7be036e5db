"""The output of a run: one file per rank and attempt, read whole or as it grows."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterddp.files import read_json
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.folding import fold, prefix

__all__ = [
    "Follower",
    "headline",
    "rank_logs",
    "read_lines",
    "render_attempt",
    "split_lines",
]

_LOG = re.compile(r"rank-(\d{4,})\.log")


def rank_logs(attempt: AttemptDirectory) -> dict[int, Path]:
    """Give the log of every rank that has one, by rank."""
    try:
        names = [path.name for path in attempt.path.iterdir()]
    except OSError:
        return {}
    found = {int(m[1]): attempt.path / m[0] for m in map(_LOG.fullmatch, names) if m}
    return dict(sorted(found.items()))


def read_lines(path: Path) -> list[str]:
    """Give a log's lines; none if it is not there."""
    try:
        return split_lines(path.read_bytes())
    except OSError:
        return []


def split_lines(data: bytes) -> list[str]:
    """Give the lines of some output; one that overwrote itself counts as its last form.

    A carriage return is what progress bars write; it ends no line.
    """
    lines = data.decode(errors="replace").split("\n")
    whole = lines if lines[-1] else lines[:-1]
    return [line.rstrip("\r").rpartition("\r")[2] for line in whole]


def headline(attempt: AttemptDirectory) -> str:
    """Give the line above an attempt: `== attempt 1 · job 12 · n1`."""
    owner = read_json(attempt.owner) or {}
    job = f"job {owner['job']}" if owner.get("job") else "local"
    return f"== attempt {attempt.number} · {job} · {owner.get('host', 'host unknown')}"


def render_attempt(attempt: AttemptDirectory) -> Iterator[str]:
    """Give the output of all ranks of an attempt, each line with who said it."""
    lines = {rank: read_lines(path) for rank, path in rank_logs(attempt).items()}
    for ranks, line in fold(lines):
        yield f"{prefix(ranks, len(lines))} {line}"


@dataclass
class _Reader:
    """Reads what was added to a file since the last look: whole lines only."""

    path: Path
    offset: int = 0

    def read(self, *, to_end: bool = False) -> list[str]:
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return []
        whole = data if to_end else data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return split_lines(whole)


@dataclass
class Follower:
    """Follows a run's output across attempts; each look gives what is new.

    Lines that several ranks said between two looks are folded.

    Attributes:
        run: the run.
        rank: this rank alone; None: all.
        first: the attempt to begin with.
    """

    run: RunDirectory
    rank: int | None = None
    first: int = 0
    _readers: dict[int, dict[int, _Reader]] = field(default_factory=dict)

    def look(self) -> list[str]:
        """Give the new lines, with the headline of an attempt that is new."""
        out: list[str] = []
        attempts = [one for one in self.run.list_attempts() if one.number >= self.first]
        for attempt in attempts[-2:] if self._readers else attempts:
            if attempt.number not in self._readers and self.rank is None:
                out.append(headline(attempt))
            out += self._look_at(attempt, is_last=attempt is attempts[-1])
        return out

    def _look_at(self, attempt: AttemptDirectory, *, is_last: bool) -> Sequence[str]:
        readers = self._readers.setdefault(attempt.number, {})
        for rank, path in rank_logs(attempt).items():
            if self.rank in (None, rank):
                readers.setdefault(rank, _Reader(path))
        new = {rank: one.read(to_end=not is_last) for rank, one in readers.items()}
        if self.rank is not None:
            return new.get(self.rank, [])
        return [f"{prefix(who, len(new))} {line}" for who, line in fold(new)]
