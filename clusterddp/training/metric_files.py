"""The files of log points: lines of JSON and TensorBoard's; a full disk delays them."""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
from torch.utils.tensorboard import SummaryWriter

from clusterddp.files import write_atomic

__all__ = ["MetricFiles", "cut_lines"]

_DRAWING_S = 1.0


class MetricFiles:
    """Appends log points; what the disk does not take now is written later.

    A training must not end because its curves cannot be drawn. Lines wait for the
    next log point; TensorBoard's writer does not survive an error and is made anew,
    so that points may be missing there, never in the lines.
    """

    def __init__(self, lines: Path, tensorboard: Path, resume_step: int) -> None:
        """Open the files, and cut off what is to be done again.

        Args:
            lines: one line of JSON is one log point.
            tensorboard: the directory of event files.
            resume_step: the last step whose line stays.
        """
        cut_lines(lines, resume_step)
        self._lines = lines
        self._pending = b""
        self._lock = threading.Lock()
        self._tensorboard = tensorboard
        self._undrawn: list[Event] = []
        self._drawn_at = 0.0
        purge = resume_step + 1 if resume_step else None
        self._board: SummaryWriter | None = SummaryWriter(
            str(tensorboard), purge_step=purge
        )

    def write(
        self, step: int, line: Mapping[str, object], curves: Mapping[str, float]
    ) -> None:
        """Write one log point.

        Args:
            step: finished steps.
            line: what its line says.
            curves: what TensorBoard gets.
        """
        with self._lock:
            self._pending += (json.dumps(line) + "\n").encode()
            try:
                self._append()
            except OSError as error:
                _say(f"{self._lines}: {error.strerror}; it waits for the next one")
        try:
            self._draw(step, curves)
        except OSError as error:
            self._board = None
            _say(f"{self._tensorboard}: {error.strerror}; points are missing there")

    def sync(self) -> None:
        """Make all lines durable; any thread may call it.

        Raises:
            OSError: some cannot be written.
        """
        with self._lock:
            self._append()
        if self._lines.exists():
            descriptor = os.open(self._lines, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        with suppress(OSError):
            self._hand_over()
            if self._board is not None:
                self._board.flush()

    def close(self) -> None:
        """Flush and close."""
        try:
            self.sync()
        except OSError as error:
            _say(f"{self._lines}: {error.strerror}; the last lines are lost")
        with suppress(OSError):
            if self._board is not None:
                self._board.close()

    def _append(self) -> None:
        """Write what is pending, wholly or not at all."""
        if not self._pending:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._lines, flags, 0o644)
        try:
            size, rest = os.fstat(descriptor).st_size, self._pending
            try:
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
        self._pending = b""

    def _draw(self, step: int, curves: Mapping[str, float]) -> None:
        event = Event(wall_time=time.time(), step=step)
        for name, value in curves.items():  # one event for all of them
            event.summary.value.add(tag=name, simple_value=value)
        with self._lock:
            self._undrawn.append(event)
        if event.wall_time - self._drawn_at >= _DRAWING_S:
            self._hand_over()

    def _hand_over(self) -> None:
        """Give TensorBoard's writer what waits for it.

        Its thread takes the interpreter from ours for a checksum in Python, some 0.1 ms
        a time: so not at each point, but now and then for several.
        """
        with self._lock:
            undrawn, self._undrawn = self._undrawn, []
        self._drawn_at = time.time()
        if self._board is None:
            self._board = SummaryWriter(str(self._tensorboard))
        writer: Any = self._board.file_writer  # there since __init__, torch says None
        for event in undrawn:
            writer.event_writer.add_event(event)


def _say(message: str) -> None:
    with suppress(OSError):  # the log may lie on the same full disk
        print(message, file=sys.stderr, flush=True)  # noqa: T201


def cut_lines(path: Path, step: int) -> None:
    """Keep the whole lines up to a step; what comes later will be written again.

    A line that a killed process left unfinished goes too.
    """
    if not path.exists():
        return
    data = path.read_bytes()
    kept = b"".join(
        line for line in data.splitlines(keepends=True) if _stays(line, step)
    )
    if kept != data:
        write_atomic(path, kept)


def _stays(line: bytes, step: int) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    known = isinstance(value, dict) and isinstance(value.get("step"), int)
    return known and value["step"] <= step and line.endswith(b"\n")
