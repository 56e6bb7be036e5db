"""Progress: rank 0's word on where the training stands, for files and people."""

import contextlib
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from clusterddp.files import write_json

__all__ = ["Progress", "render_evaluation", "render_step"]

_INTERVAL_S = 1.0


class Progress:
    """Keeps `progress.json` fresh, at most once a second, and prints lines.

    A thread writes, so that a slow file system does not slow the steps. On other
    ranks than 0 nothing is done.
    """

    def __init__(
        self, path: Path, *, active: bool, stream: TextIO | None = None
    ) -> None:
        """Start the writer.

        Args:
            path: the file; replaced atomically.
            active: whether this is rank 0.
            stream: where lines for people go; stdout when None.
        """
        self._path = path
        self._active = active
        self._stream = sys.stdout if stream is None else stream
        self._live = active and self._stream.isatty()
        self._fields: dict[str, object] = {}
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._write, name="progress", daemon=True
        )
        if active:
            self._thread.start()

    def update(self, **fields: object) -> None:
        """Change fields of the file: step, phase, loss, ..."""
        if self._active:
            with self._lock:
                self._fields.update(fields)
            if not self._changed.is_set():
                self._changed.set()

    def show(self, line: str) -> None:
        """Print where the training stands; a terminal's line is overwritten."""
        if self._live:
            self._print(f"\r\x1b[2K{line}", end="")
        else:
            self.say(line)

    def say(self, line: str) -> None:
        """Print a line that stays."""
        if self._active:
            start = "\r\x1b[2K" if self._live else ""
            self._print(f"{start}{line}")

    def _print(self, text: str, end: str = "\n") -> None:
        # The log may lie on a disk that is full: no reason to end a training.
        with contextlib.suppress(OSError):
            print(text, end=end, file=self._stream, flush=True)

    def close(self) -> None:
        """Write the last word and end the thread."""
        self._closing.set()
        self._changed.set()
        if self._active:
            self._thread.join()

    def _write(self) -> None:
        while not self._closing.is_set():
            self._changed.wait()
            self._changed.clear()
            self._put()
            self._closing.wait(_INTERVAL_S)
        self._put()

    def _put(self) -> None:
        with self._lock:
            fields = {**self._fields, "time": round(time.time(), 3)}
        try:
            write_json(self._path, fields)
        except OSError as error:
            # A full disk must not end a training over its progress bar.
            with contextlib.suppress(OSError):
                print(f"{self._path}: {error.strerror}", file=sys.stderr)  # noqa: T201


def render_step(
    step: int, total: int, epoch: tuple[int, int], values: Mapping[str, float]
) -> str:
    """Give the line of a log point: `epoch 2/5 · step 40/75 · loss 0.512 · ...`."""
    parts = [f"epoch {epoch[0]}/{epoch[1]}", f"step {step}/{total}"]
    if "loss" in values:
        parts.append(f"loss {values['loss']:.4g}")
    if "samples_per_s" in values:
        parts.append(f"{values['samples_per_s']:.0f} samples/s")
    return " · ".join(parts)


def render_evaluation(step: int, total: int, values: Mapping[str, float]) -> str:
    """Give the line of an evaluation: `step 75/75 · evaluation: loss 0.08, ...`."""
    texts = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    return f"step {step}/{total} · evaluation: {texts}"
