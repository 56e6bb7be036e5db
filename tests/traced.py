"""Saves under strace: real system calls, recorded, made to fail, or the last ones.

A forked process gets ready, strace takes hold of its main thread, and it saves.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from clusterddp.config.schema import Checkpoint
from clusterddp.runs.directory import RunDirectory
from clusterddp.training.checkpoint_writer import CheckpointWriter, Task
from tests import training_ranks as ranks

CHANGING = "mkdir,openat,write,fsync,rename,unlink,unlinkat,rmdir,close,ftruncate"
READING = "read,getdents64,newfstatat,fstat,lseek,statfs,fstatfs,stat"
_CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+|\?)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD = re.compile(r"^\d+<((?:\\x[0-9a-f]{2})+)>")


@dataclass(frozen=True)
class Call:
    """One system call that had an effect.

    Attributes:
        name: of the system call.
        path: what it was done to.
        data: what was written, or the second path.
        flags: its arguments as text.
    """

    name: str
    path: str
    data: bytes
    flags: str


def writer(run: Path, attempt: int = 0) -> CheckpointWriter:
    """Give a writer that keeps two checkpoints."""
    rules = Checkpoint(keep=2, max_failures=100)
    return CheckpointWriter(
        RunDirectory(run), attempt, rules, report=lambda _text: None
    )


def task(step: int, attempt: int = 0) -> Task:
    """Give a small checkpoint whose weights all equal the step."""
    contents = {
        "model.pt": {"w": torch.full((3000,), float(step))},
        "state.json": {"step": step},
    }
    return Task(step, contents, {"step": step, "attempt": attempt})


def save_when_told(run: Path, directory: Path, first: int, step: int) -> None:
    """Save two steps, get ready, wait for the word, save one more, and report."""
    target = writer(run)
    for earlier in range(first, first + 2):
        assert target.write(task(earlier)).error is None
    ranks.mark(directory, "ready")
    while not os.access(directory / "go", os.F_OK):  # a call that is never traced
        time.sleep(0.002)
    result = target.write(task(step))
    (directory / "result").write_text(json.dumps(result.error))
    again = target.write(task(step + 1))
    (directory / "again").write_text(json.dumps(again.error))


def trace(
    run: Path, options: list[str], *, step: int = 3, function: Callable[..., None]
) -> tuple[int | None, str]:
    """Run a save under strace; give the exit code and what strace saw."""
    run.joinpath("attempts", "0000").mkdir(parents=True)
    run.joinpath("checkpoints").mkdir()
    directory = run / "child"
    started = ranks.start(1, directory, function, run, directory, 1, step)
    started.wait_for("ready")
    log = run / "strace.log"
    pid = started.processes[0].pid
    tracer = subprocess.Popen(
        ["strace", "-qq", "-o", str(log), "-p", str(pid), *options],
        stderr=subprocess.PIPE,
    )
    _wait_until_traced(pid, tracer)
    (directory / "go").touch()
    (code,) = started.wait()
    tracer.wait(30)
    if tracer.stderr is not None:
        tracer.stderr.close()
    assert code in (0, -signal.SIGKILL), started.output()
    return code, log.read_text()


def _wait_until_traced(pid: int | None, tracer: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 20
    status = Path(f"/proc/{pid}/status")
    while re.search(r"TracerPid:\s+0\n", status.read_text()):
        assert tracer.poll() is None, "strace could not attach"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def parse(log: str, parent: Path) -> list[Call]:
    """Give the calls that succeeded below a directory, in their order."""
    calls = []
    for line in log.splitlines():
        match = _CALL.match(line)
        if match is None or match[3].startswith("-"):
            continue
        call = _parse_call(match[1], match[2])
        if call is not None and Path(call.path).is_relative_to(parent):
            calls.append(call)
    return calls


def _parse_call(name: str, arguments: str) -> Call | None:
    texts = [_decode(text) for text in _TEXT.findall(arguments)]
    described = _FD.match(arguments)
    flags = _TEXT.sub("", arguments)
    if described is not None:
        path = _decode(described[1]).decode()
        if name == "unlinkat" and texts:
            return Call(name, f"{path}/{texts[0].decode()}", b"", flags)
        return Call(name, path, texts[0] if texts else b"", flags)
    if not texts:
        return None
    return Call(name, texts[0].decode(), texts[1] if len(texts) > 1 else b"", flags)


def _decode(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
