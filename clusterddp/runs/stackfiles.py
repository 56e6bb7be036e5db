"""Stacks of a hanging attempt's ranks as files: who was asked, who has told."""

import re
from collections.abc import Iterator
from pathlib import Path

from clusterddp.files import write_atomic
from clusterddp.runs.directory import AttemptDirectory

__all__ = ["TOLD", "ask", "count_asked", "list_told", "rank_file", "stacks_directory"]

TOLD = "-- told by a thread of its own, asked through the store\n"
"""The last line of stacks that a rank has told without a signal."""
_NAME = re.compile(r"rank-(\d+)\.txt")


def stacks_directory(attempt: AttemptDirectory) -> Path:
    """Give where the stacks of an attempt's ranks lie."""
    return attempt.path / "stacks"


def rank_file(directory: Path, rank: int) -> Path:
    """Give where one rank's stacks lie."""
    return directory / f"rank-{rank:04d}.txt"


def ask(directory: Path) -> None:
    """Ask all ranks for their stacks; rank 0 looks for this, and tells the others.

    Raises:
        OSError: the file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / "asked", f"{count_asked(directory) + 1}\n".encode())


def count_asked(directory: Path) -> int:
    """Give how often somebody has asked."""
    try:
        return int((directory / "asked").read_text())
    except (OSError, ValueError):
        return 0


def list_told(directory: Path) -> set[int]:
    """Give the ranks that have told their stacks through the store, whole."""
    return set(_told(directory))


def _told(directory: Path) -> Iterator[int]:
    for path in directory.glob("rank-*.txt"):
        match = _NAME.fullmatch(path.name)
        if match is not None and path.read_text(errors="replace").endswith(TOLD):
            yield int(match[1])
