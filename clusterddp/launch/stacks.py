"""Stacks of hanging ranks: each is asked for its own; the silent are looked at.

First all are asked through their store; a thread of each answers, wherever its main
thread hangs (`clusterddp.training.stacks`). Those that do not get a SIGQUIT: with it
faulthandler writes from the C level, also where C code holds the interpreter. A rank
that stands still (SIGSTOP, a dead file system) does not answer that either, and is
described from /proc. For these two the supervisor runs this module once on every node
of the attempt: `python -m clusterddp.launch.stacks RUN_DIR ATTEMPT`.
"""

import contextlib
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from clusterddp.files import read_json, write_json
from clusterddp.launch.environment import ATTEMPT, RUN_DIR
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.stackfiles import ask, list_told, rank_file, stacks_directory

__all__ = [
    "answer_on_request",
    "collect_here",
    "collect_stacks",
    "find_ranks",
    "find_silent",
    "stacks_directory",
]

_NODE = "SLURMD_NODENAME"
_ASKING_S = 4.0
_LOOK_S = 0.1
_ANSWER_S = 3.0
_LONGEST_S = 40.0
Found = tuple[int, psutil.Process]
"""A rank's number and its process."""


def answer_on_request(attempt: AttemptDirectory, rank: int) -> None:
    """Let this rank write the stacks of its threads whenever it gets a SIGQUIT."""
    directory = stacks_directory(attempt)
    directory.mkdir(parents=True, exist_ok=True)
    file = rank_file(directory, rank).open("a")  # the side thread writes there, too
    faulthandler.register(signal.SIGQUIT, file=file, all_threads=True)


def collect_stacks(
    run: RunDirectory,
    attempt: AttemptDirectory,
    step: Sequence[str] | None,
    world_size: int,
) -> None:
    """Ask all ranks of an attempt for their stacks; bounded in time, never raises.

    Args:
        run: the run.
        attempt: the attempt that hangs.
        step: the srun words that start Python once on each node; None: the ranks
            are on this machine.
        world_size: how many ranks there should be; if all tell, that is all.
    """
    here = [] if step is not None else list(find_ranks(run, attempt))
    if _have_told(attempt, world_size, here):
        return
    if step is None:
        collect_here(run, attempt)
        return
    module = ("-m", "clusterddp.launch.stacks")
    command = [*step, *module, str(run.path), attempt.path.name]
    with attempt.step_errors.open("ab") as sink:
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                timeout=_LONGEST_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            sink.write(f"stacks: {error}\n".encode())


def _have_told(
    attempt: AttemptDirectory, world_size: int, here: Sequence[Found]
) -> bool:
    """Ask through the store; True once that many ranks have told their stacks.

    Those on this machine that stand still are not waited for, and nobody is if rank 0
    does: it is the one that passes the question on.
    """
    directory = stacks_directory(attempt)
    with contextlib.suppress(OSError):
        ask(directory)
        deadline = time.monotonic() + _ASKING_S
        while time.monotonic() < deadline:
            told, still = list_told(directory), _find_still(here)
            if len(told) >= world_size:
                return True
            if 0 in still or len(told | still) >= world_size:
                break
            time.sleep(_LOOK_S)
    return False


def collect_here(run: RunDirectory, attempt: AttemptDirectory) -> None:
    """Ask the ranks on this node that have not told, and describe the silent ones."""
    directory = stacks_directory(attempt)
    told = list_told(directory)
    ranks = [found for found in find_ranks(run, attempt) if found[0] not in told]
    for _, process in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGQUIT)
    deadline = time.monotonic() + _ANSWER_S
    while _awaited(directory, ranks) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    time.sleep(_LOOK_S)  # for the rest of an answer that has begun
    for rank, process in ranks:
        if not _has_answered(directory, rank):
            words = {"rank": rank, "host": socket.gethostname(), **_describe(process)}
            write_json(directory / f"silent-{rank:04d}.json", words)


def _awaited(directory: Path, ranks: Sequence[Found]) -> set[int]:
    """Give the ranks that may still answer."""
    asked = {rank for rank, _ in ranks if not _has_answered(directory, rank)}
    return asked - _find_still(ranks)


def _has_answered(directory: Path, rank: int) -> bool:
    answer = rank_file(directory, rank)
    return answer.exists() and answer.stat().st_size > 0


def _find_still(ranks: Sequence[Found]) -> set[int]:
    """Give the ranks that are stopped or gone, and answer nobody."""
    return {rank for rank, process in ranks if _is_still(process)}


def _is_still(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return True


def find_silent(attempt: AttemptDirectory) -> tuple[int, str] | None:
    """Give the first rank that did not answer, and its node; None if all did."""
    for path in sorted(stacks_directory(attempt).glob("silent-*.json")):
        words = read_json(path) or {}
        rank, host = words.get("rank"), words.get("host")
        if isinstance(rank, int) and isinstance(host, str):
            return rank, host
    return None


def find_ranks(
    run: RunDirectory, attempt: AttemptDirectory
) -> Iterator[tuple[int, psutil.Process]]:
    """Give number and process of an attempt's ranks on this node."""
    for process in psutil.process_iter():
        try:
            environ = process.environ() if _is_rank(process) else {}
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        is_ours = environ.get(RUN_DIR) == str(run.path) and _is_here(environ)
        if is_ours and environ.get(ATTEMPT) == attempt.path.name:
            rank = environ.get("RANK") or environ.get("SLURM_PROCID") or "0"
            yield int(rank), process


def _is_here(environ: Mapping[str, str]) -> bool:
    """Say whether a rank is this node's; several slurmds may share one machine."""
    mine, node = os.environ.get(_NODE), environ.get(_NODE)
    return mine is None or node is None or mine == node


def _is_rank(process: psutil.Process) -> bool:
    """Say whether this is a rank: not its forked loader worker, and not its srun.

    srun has the rank's words at the end of its own, and a SIGQUIT ends the step.
    """
    if not _has_words(process):
        return False
    parent = process.parent()
    return parent is None or not _has_words(parent)


def _has_words(process: psutil.Process) -> bool:
    words = process.cmdline()
    return "clusterddp.train" in words and Path(words[0]).name != "srun"


def _describe(process: psutil.Process) -> dict[str, object]:
    proc = Path("/proc") / str(process.pid)
    threads = {
        path.name: {"state": _state(path), "waits_in": _read(path / "wchan")}
        for path in sorted(proc.glob("task/*"))
    }
    command = _read(proc / "cmdline").replace("\0", " ").strip()
    return {"pid": process.pid, "command": command, "threads": threads}


def _state(path: Path) -> str:
    """Give a thread's state, e.g. `T (stopped)` (proc(5), status)."""
    lines = _read(path / "status").splitlines()
    return next((line[6:].strip() for line in lines if line.startswith("State:")), "")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    _run = RunDirectory(Path(sys.argv[1]))
    collect_here(_run, _run.attempt(int(sys.argv[2])))
