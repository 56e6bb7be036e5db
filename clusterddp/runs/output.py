"""The output of a run: what the ranks said, read whole or as it grows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusterddp.files import read_json
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.folding import fold, prefix
from clusterddp.runs.logfiles import LogFile, list_logs

__all__ = ["Follower", "headline", "read_ranks", "render_attempt"]


def read_ranks(attempt: AttemptDirectory) -> dict[int, list[str]]:
    """Give the lines of every rank whose output was kept, by rank."""
    return _gather(_Reader(log).read(to_end=True) for log in list_logs(attempt))


def _gather(parts: Iterator[Mapping[int, list[str]]]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for part in parts:
        for rank, lines in part.items():
            found.setdefault(rank, []).extend(lines)
    return dict(sorted(found.items()))


def headline(attempt: AttemptDirectory) -> str:
    """Give the line above an attempt: `== attempt 1 · job 12 · n1`."""
    owner = read_json(attempt.owner) or {}
    job = f"job {owner['job']}" if owner.get("job") else "local"
    return f"== attempt {attempt.number} · {job} · {owner.get('host', 'host unknown')}"


def render_attempt(attempt: AttemptDirectory) -> Iterator[str]:
    """Give the output of all ranks of an attempt, each line with who said it."""
    lines = read_ranks(attempt)
    for ranks, line in fold(lines):
        yield f"{prefix(ranks, len(lines))} {line}"


@dataclass
class _Reader:
    """Reads what was added to a file since the last look: whole lines only."""

    log: LogFile
    offset: int = 0
    ranks: set[int] = field(default_factory=set)

    def read(self, *, to_end: bool = False) -> dict[int, list[str]]:
        """Give the new lines of every rank that ever said something here."""
        try:
            with self.log.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            data = b""
        whole = data if to_end else data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        new = self.log.split(whole)
        self.ranks |= set(new)
        return {rank: new.get(rank, []) for rank in self.ranks}


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
    _readers: dict[int, dict[str, _Reader]] = field(default_factory=dict)

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
        for log in list_logs(attempt):
            if self.rank is None or log.rank in (None, self.rank):
                readers.setdefault(log.path.name, _Reader(log))
        new = _gather(one.read(to_end=not is_last) for one in readers.values())
        if self.rank is not None:
            return new.get(self.rank, [])
        return [f"{prefix(who, len(new))} {line}" for who, line in fold(new)]
