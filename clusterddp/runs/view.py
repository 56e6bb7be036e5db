"""Looking at a run while it goes on: rank 0's lines and, on a terminal, a live bar."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from clusterddp.files import read_json
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.output import Follower

__all__ = ["RunView", "live_view"]

_REFRESH_S = 0.25


class _Display(Protocol):
    def say(self, line: str) -> None: ...
    def show(self, progress: dict[str, object]) -> None: ...
    def close(self) -> None: ...


class _Lines:
    """For a log or a pipe: lines, and nothing that moves."""

    def say(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def show(self, progress: dict[str, object]) -> None:
        """Nothing: rank 0's own lines say it."""

    def close(self) -> None:
        """Nothing to put back."""


class _Bar:
    """For a terminal: the lines above, one refreshing bar below."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.fields[phase]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[said]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: TaskID | None = None
        self._progress.start()

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False)

    def show(self, progress: dict[str, object]) -> None:
        step, total = progress.get("step"), progress.get("total_steps")
        if not isinstance(step, int) or not isinstance(total, int):
            return
        phase, said = str(progress.get("phase", "")), _brief(progress)
        if self._task is None:
            self._task = self._progress.add_task("", phase=phase, said=said)
        self._progress.update(
            self._task, completed=step, total=total, phase=phase, said=said
        )

    def close(self) -> None:
        self._progress.stop()


def _brief(progress: dict[str, object]) -> str:
    parts = []
    for key, form in (("loss", "loss {:.4g}"), ("samples_per_s", "{:.0f} samples/s")):
        value = progress.get(key)
        if isinstance(value, int | float):
            parts.append(form.format(value))
    return " · ".join(parts)


class RunView:
    """Follows a run across its attempts; each call of `update` shows what is new."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._display: _Display = _Bar() if sys.stderr.isatty() else _Lines()
        self._follower: Follower | None = None

    def say(self, line: str) -> None:
        """Show a line of one's own."""
        self._display.say(line)

    def update(self) -> None:
        """Show the lines of rank 0 since the last call, and where the run stands."""
        attempts = self._run.list_attempts()
        if self._follower is None and attempts:
            self._follower = Follower(self._run, 0, attempts[-1].number)
        for line in self._follower.look() if self._follower else ():
            self._display.say(line)
        self._display.show(read_json(self._run.progress) or {})

    def close(self) -> None:
        """Show the rest and give the terminal back."""
        self.update()
        self._display.close()


class _Thread(threading.Thread):
    def __init__(self, view: RunView) -> None:
        super().__init__(name="run-view", daemon=True)
        self._view = view
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_REFRESH_S):
            self._view.update()

    def __enter__(self) -> None:
        self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self.join()
        self._view.close()


@contextlib.contextmanager
def live_view(run: RunDirectory) -> Iterator[None]:
    """Show a run from a thread of its own while the caller brings it to its end."""
    with _Thread(RunView(run)):
        yield
