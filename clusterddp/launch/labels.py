"""One file for the output of several ranks, each line with the rank that said it.

What srun --label does for its tasks, done by our agent for the ranks that it starts.
A rank's words go through a pipe: they outlive the rank, and lines of several ranks do
not mix.
"""

import os
import threading
from pathlib import Path

__all__ = ["LabelledOutput"]

_PIECE = 1 << 16
_PATIENCE_S = 5.0


class LabelledOutput:
    """Copies the lines of ranks into one file that is only ever appended to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._threads: list[threading.Thread] = []
        self._ends: list[int] = []

    def open(self, rank: int) -> str:
        """Give the path that the rank's output is to be written to, in this process."""
        reading, writing = os.pipe()
        thread = threading.Thread(
            target=self._copy, args=(rank, reading), name=f"output-{rank}", daemon=True
        )
        thread.start()
        self._threads.append(thread)
        self._ends.append(writing)
        return f"/proc/{os.getpid()}/fd/{writing}"

    def close(self) -> None:
        """Wait until all is written; a grandchild that keeps a pipe open is left."""
        for end in self._ends:
            os.close(end)
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    def _copy(self, rank: int, reading: int) -> None:
        rest = b""
        while data := os.read(reading, _PIECE):
            *lines, rest = (rest + data).split(b"\n")
            self._write(rank, lines)
        self._write(rank, [rest] if rest else [])
        os.close(reading)

    def _write(self, rank: int, lines: list[bytes]) -> None:
        text = b"".join(b"%d: %s\n" % (rank, line) for line in lines)
        while text:
            text = text[os.write(self._file, text) :]
