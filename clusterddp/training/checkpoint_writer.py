"""The writer on rank 0: makes a state durable, at once or in a thread of its own."""

import errno
import json
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clusterddp.config.schema import Checkpoint
from clusterddp.errors import CheckpointError
from clusterddp.files import read_json
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.published import step_of
from clusterddp.training import checkpoint_files as disk
from clusterddp.training.checkpoint_choice import check_fence, check_place
from clusterddp.training.retention import Kept, choose_doomed

__all__ = ["CheckpointWriter", "Result", "Task", "say"]

_MIB = 1 << 20


@dataclass(frozen=True)
class Task:
    """One checkpoint to write.

    Attributes:
        step: finished steps.
        contents: what goes into which file.
        fields: what else the manifest says.
        bytes: about how much that is; 0 if unknown.
        before: called first: the contents must have arrived in host memory, and what
            the checkpoint relies on must be durable.
        notes: what the log of saves shall say of it, too.
    """

    step: int
    contents: Mapping[str, object]
    fields: Mapping[str, object]
    bytes: int = 0
    before: Sequence[Callable[[], object]] = ()
    notes: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Result:
    """How a save went.

    Attributes:
        step: finished steps.
        error: why it is not durable; None when it is.
        fatal: whether training cannot go on.
        bytes: written, all files together.
        seconds: from the first file to the rename.
    """

    step: int
    error: str | None
    fatal: bool = False
    bytes: int = 0
    seconds: float = 0.0


def say(message: str) -> None:
    """Print a line for people."""
    with suppress(OSError):  # the log may lie on the same full disk
        print(message, file=sys.stderr, flush=True)  # noqa: T201


class CheckpointWriter:
    """Writes checkpoints of one attempt, keeps the rules, tells what happened."""

    def __init__(
        self,
        run: RunDirectory,
        attempt: int,
        rules: Checkpoint,
        *,
        report: Callable[[str], None] = say,
        done: Callable[[Result], None] = lambda _result: None,
    ) -> None:
        """Look at nothing yet.

        Args:
            run: the run whose `checkpoints/` are written.
            attempt: the number of this start of the ranks.
            rules: what stays, and how many failures in a row are too many.
            report: told what went wrong.
            done: told of every result, by the thread that wrote.
        """
        self._run = run
        self._attempt = attempt
        self._rules = rules
        self._report = report
        self._done = done
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._result: Result | None = None
        self._size = 0
        self._longest_s = 0.0
        self._began = 0.0
        self._failures = 0
        self._tried = False

    @property
    def longest_s(self) -> float:
        """What the longest save has taken; one in flight counts as far as it is."""
        if self._idle.is_set():
            return self._longest_s
        return max(self._longest_s, time.perf_counter() - self._began)

    def start(self, task: Task) -> None:
        """Write in a thread; `wait` must have been called for the one before.

        The thread stays: starting one is a wait for it, and this one is for nothing.
        """
        self._result = Result(task.step, "the writer ended without a word", fatal=True)
        self._began = time.perf_counter()
        self._idle.clear()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, name="checkpoint", daemon=True
            )
            self._thread.start()
        self._tasks.put(task)

    def wait(self, timeout_s: float | None = None) -> Result | None:
        """Wait for the one in flight; give the last result, None without any."""
        self._idle.wait(timeout_s)
        return self._result

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                self.write(task)
            finally:
                self._idle.set()

    def write(self, task: Task) -> Result:
        """Write at once, in this thread; whatever goes wrong is told, not raised."""
        started = time.perf_counter()
        size, error, fatal = 0, None, False
        try:
            for call in task.before:
                call()
            size = self._write_and_publish(task)
        except Exception as failure:  # noqa: BLE001 - a thread's boundary
            error, fatal = self._judge(task, failure)
        seconds = round(time.perf_counter() - started, 4)
        self._result = Result(task.step, error, fatal, size, seconds)
        self._tell(self._result, task.notes or {})
        if error is None:
            self._longest_s = max(self._longest_s, seconds)
            self._try(
                lambda: self._prune(task.step),
                f"{self._run.checkpoints}: old ones not looked at",
            )
        self._done(self._result)
        return self._result

    def note(self, event: str, **fields: object) -> None:
        """Add a line to the attempt's log of saves; a full disk may lose it."""
        line = json.dumps({"event": event, "time": round(time.time(), 3), **fields})
        path = self._run.attempt(self._attempt).saves
        with suppress(OSError), path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _write_and_publish(self, task: Task) -> int:
        target = self._run.checkpoints / disk.checkpoint_name(task.step)
        source = target.with_name(f"{target.name}.tmp-{self._attempt}")
        check_fence(self._run, self._attempt)
        self._run.checkpoints.mkdir(exist_ok=True)
        shutil.rmtree(source, ignore_errors=True)
        try:
            self._check_room(task)
            size = disk.write_files(source, task.contents, task.fields)
            self._try_to_read(source, task)
            check_fence(self._run, self._attempt)
            check_place(target, self._attempt)
            disk.publish(source, target, self._attempt)
        except BaseException:
            shutil.rmtree(source, ignore_errors=True)
            raise
        self._size, self._failures = size, 0
        return size

    def _check_room(self, task: Task) -> None:
        """Fail before anything is written rather than fill the disk for others."""
        needed = 2 * max(self._size, task.bytes)
        free = shutil.disk_usage(self._run.checkpoints).free
        if free < needed:
            text = (
                f"{free / _MIB:.3g} MiB free, {needed / _MIB:.3g} MiB needed (twice a "
                "checkpoint)"
            )
            raise OSError(errno.ENOSPC, text)

    def _try_to_read(self, source: Path, task: Task) -> None:
        """Find out at the first save that a state holds more than tensors.

        Raises:
            CheckpointError: torch.load(weights_only=True) refuses a file.
        """
        for name in task.contents:
            if self._tried or name.endswith(".json"):
                continue
            try:
                torch.load(
                    source / name, map_location="cpu", weights_only=True, mmap=True
                )
            except Exception as error:
                raise CheckpointError(
                    f"{source / name}: written, but cannot be read again: the state "
                    "dict holds something else than tensors and plain values "
                    f"({error})"
                ) from error
        self._tried = True

    def _judge(self, task: Task, failure: Exception) -> tuple[str, bool]:
        if isinstance(failure, CheckpointError):
            return str(failure), True
        target = self._run.checkpoints / disk.checkpoint_name(task.step)
        if not isinstance(failure, OSError):
            text = f"{type(failure).__name__}: {failure}"
            return f"{target}: cannot be written: {text}", True
        self._failures += 1
        text = f"{target}: not saved: {failure.strerror or failure}"
        if self._failures < self._rules.max_failures:
            return text, False
        return (
            f"{text}; {self._failures} saves in a row failed (checkpoint.max_failures "
            f"{self._rules.max_failures}); make room, then start again: the run goes "
            "on from its newest checkpoint"
        ), True

    def _tell(self, result: Result, notes: Mapping[str, object]) -> None:
        fields: dict[str, object] = {"step": result.step, **notes}
        if result.error is None:
            fields |= {"bytes": result.bytes, "write_s": result.seconds}
            self.note("saved", **fields)
            return
        self.note("failed", **fields, error=result.error)
        if not result.fatal:
            self._report(f"{result.error}; going on, the older ones are intact")

    def _prune(self, step: int) -> None:
        there = disk.list_checkpoints(self._run.checkpoints)
        rules = self._rules
        for path in there:
            if step_of(path) > step:
                self._try(lambda p=path: self._set_aside(p), f"{path}: not set aside")  # type: ignore[misc]
        kept = [_look_at(path) for path in there if step_of(path) <= step]
        for path in choose_doomed(
            kept, keep=rules.keep, keep_every=rules.keep_every, best=rules.best
        ):
            self._try(
                lambda p=path: disk.discard(p, self._attempt),  # type: ignore[misc]
                f"{path}: not deleted",
            )

    def _set_aside(self, path: Path) -> None:
        """Put away what a left-over process published beyond this attempt's steps."""
        aside = disk.set_aside(path, "stale")
        self.note("set aside", name=path.name, to=aside.name, reason="not of this line")
        self._report(
            f"{path}: published by a left-over process of an earlier attempt; set "
            f"aside as {aside.name}"
        )

    def _try(self, action: Callable[[], object], text: str) -> None:
        try:
            action()
        except OSError as error:
            self._report(f"{text}: {error.strerror}")


def _look_at(path: Path) -> Kept:
    manifest: Any = read_json(path / disk.MANIFEST) or {}
    return Kept(path, step_of(path), manifest.get("metrics") or {})
