"""Verbs at a real terminal, a pty: in place, narrow, resized, ended by Ctrl-C."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterddp.tables import drop_columns, fits
from tests.replay import replay
from tests.runs import DEADLINE_S, clean_environ

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-B0-2]|\r")
_SCREEN, _NO_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, words: list[str], columns: int) -> None:
        environ = {**clean_environ(), "TERM": "xterm", "NO_COLOR": "1"}
        environ.pop("COLUMNS", None)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            time.sleep(0.2)  # until the size below is set
            command = [sys.executable, "-m", *words]
            os.execve(sys.executable, command, environ)  # noqa: S606 - a fixed list
        self.resize(columns)
        self.seen = ""

    def resize(self, columns: int) -> None:
        size = struct.pack("HHHH", 30, columns, 0, 0)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, size)

    def read_until(self, word: str, count: int = 1) -> str:
        """Give what was written until a word has come so often."""
        end = time.monotonic() + DEADLINE_S
        while self.seen.count(word) < count and time.monotonic() < end:
            if not self._read():
                break
        assert self.seen.count(word) >= count, self.seen
        found, self.seen = self.seen, ""
        return found

    def _read(self) -> bool:
        if not select.select([self.fd], [], [], 1.0)[0]:
            return True
        try:
            self.seen += os.read(self.fd, 1 << 16).decode()
        except OSError:  # the program has ended
            return False
        return True

    def finish(self) -> int:
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def plain(text: str) -> list[str]:
    """Give the lines as they are seen."""
    text = text.replace("\x1b[H", "\n")  # the next picture begins at the top
    return [line.rstrip() for line in _ESCAPE.sub("", text).split("\n")]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A directory of three runs."""
    for case in ("crash", "finished", "interrupted"):
        replay(case, tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def watch(runs: Path) -> Iterator[Terminal]:
    """`status --watch 1` in a window of 150 columns."""
    words = ["clusterddp.status", "--runs", str(runs), "--watch", "1"]
    terminal = Terminal(words, 150)
    yield terminal
    os.close(terminal.fd)


def test_watch_refreshes_in_place_and_ends_clean(watch: Terminal) -> None:
    """On a screen of its own; after Ctrl-C the last table stays, exit code 130."""
    first = watch.read_until("DETAIL", 3)
    assert first.count(_SCREEN) == 1
    assert _NO_SCREEN not in first
    assert first.count("\x1b[H") >= 3
    os.write(watch.fd, b"\x03")
    assert watch.finish() == 130
    screen, _, after = watch.seen.partition(_NO_SCREEN)
    assert "Traceback" not in screen + after
    assert sum("toy/" in line for line in plain(after)) == 3
    assert "interrupted" in after


def test_watch_takes_to_another_size(watch: Terminal) -> None:
    """At once: in 60 columns every line has room, and the states are whole."""
    wide = plain(watch.read_until("DETAIL", 1))
    assert any("SAMPLES/S" in line for line in wide)
    watch.resize(60)
    watch.read_until("DETAIL", 1)
    narrow = plain(watch.read_until("DETAIL", 2))
    assert [line for line in narrow if len(line) > 60] == []
    assert not any("SAMPLES/S" in line for line in narrow)
    assert any("finished" in line and "30/30" in line for line in narrow)
    os.kill(watch.pid, signal.SIGINT)
    assert watch.finish() == 130


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_status_has_room(runs: Path, columns: int) -> None:
    """Run, state and step are never cut off."""
    terminal = Terminal(["clusterddp.status", "--runs", str(runs)], columns)
    assert terminal.finish() == 0
    os.close(terminal.fd)
    lines = plain(terminal.seen)
    assert all(len(line) <= columns for line in lines)
    assert "…" not in terminal.seen
    rows = [line.split() for line in lines if line.startswith("toy/")]
    assert sorted(row[1] for row in rows) == ["failed", "finished", "stopped"]
    assert ("╌" in terminal.seen) == (columns == 200)


@pytest.mark.parametrize("words", [("why",), ("report", "--text")])
def test_verbs_have_room(runs: Path, words: tuple[str, ...]) -> None:
    """In 60 columns a paragraph is in shorter lines, a table has fewer columns."""
    verb, *more = words
    command = [f"clusterddp.{verb}", "toy", *more, "--runs", str(runs)]
    terminal = Terminal(command, 60)
    assert terminal.finish() == 0
    os.close(terminal.fd)
    shown = plain(terminal.seen)
    lines = shown[: shown.index("")] if verb == "why" else shown
    assert [line for line in lines if len(line) > 60] == []
    assert len(lines) > 3


def test_columns_are_dropped_in_turn() -> None:
    """Only as many as must be."""
    head, rows = ("RUN", "A", "B", "DETAIL"), [("toy/1", "aaaa", "bbbb", "some words")]
    assert fits(head, rows, 29)
    assert not fits(head, rows, 28)
    assert drop_columns(head, rows, ("B", "A"), 28)[0] == ["RUN", "A", "DETAIL"]
    assert drop_columns(head, rows, ("B", "A"), 5)[1] == [["toy/1", "some words"]]
    assert drop_columns(head, rows, ("B", "A"), 29) == (head, rows)
