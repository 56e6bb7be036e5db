"""Where whole runs are measured: processes of this machine, or the real cluster.

Everything that is started here is ended here, by its pid or its job.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from tests.cluster import Cluster, ClusterParameters, can_run, start, stop
from tests.runs import ROOT, clean_environ

SLOT = int(os.environ.get("CLUSTERDDP_TEST_SLOT", "9"))
LOOK_S = 0.02
DEADLINE_S = 120.0
T = TypeVar("T")


@contextlib.contextmanager
def real_cluster(nodes: int = 4) -> Iterator[Cluster]:
    """Bring a Slurm cluster up in the slot, and take it down.

    Raises:
        RuntimeError: this machine cannot have one.
    """
    parameters = ClusterParameters(slot=SLOT, nodes=nodes)
    reason = can_run(parameters)
    if reason is not None:
        raise RuntimeError(f"not measured: {reason}")
    try:
        yield start(parameters)
    finally:
        stop(SLOT)


@contextlib.contextmanager
def program(
    words: Sequence[str | Path], cwd: Path, **environ: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `python ...` on this machine; whatever it left behind is killed."""
    log = (cwd / "output").open("ab")
    process = subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=clean_environ({"OMP_NUM_THREADS": "1", **environ}),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        # torchrun gives its ranks sessions of their own, and Linux shares the cores
        # between sessions: all start alike.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_tree(process.pid)
        process.wait()
        log.close()


def kill_tree(pid: int) -> None:
    """Kill a process and all below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for one in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def await_value(look: Callable[[], T | None], deadline_s: float, what: str) -> T:
    """Look again and again until there is a value.

    Raises:
        TimeoutError: there was none in time.
    """
    end = time.monotonic() + deadline_s
    while (value := look()) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {deadline_s:.0f} s")
        time.sleep(LOOK_S)
    return value


class Pages:
    """Reads the diary that the contenders' ranks keep (`peers.common.Diary`)."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def steps(self) -> list[tuple[float, int, int]]:
        """Give (time, step, pid of rank 0) of all finished steps."""
        lines = self._lines("steps")
        return [(float(t), int(step), int(pid)) for t, step, pid in lines]

    def pids(self, rank: int | None = None) -> list[int]:
        """Give the pids of ranks that live, of one rank or of all."""
        found = [(int(r), int(pid)) for r, pid in self._lines("pids")]
        return [p for r, p in found if rank in (None, r) and is_alive(p)]

    def first_step(self, others: Sequence[int] = ()) -> float | None:
        """Give when a rank 0 that is none of these finished its first step."""
        return next((t for t, _, pid in self.steps() if pid not in others), None)

    def _lines(self, name: str) -> list[list[str]]:
        try:
            text = (self.place / name).read_text()
        except FileNotFoundError:
            return []
        return [
            line.split() for line in text.splitlines(keepends=True) if line[-1:] == "\n"
        ]


def await_first_step(
    cluster: Cluster, job: str, pages: Pages, others: Sequence[int] = ()
) -> float:
    """Give when a job's training finished its first step.

    Raises:
        TimeoutError: it did not; the message has what Slurm says of the job.
    """
    try:
        return await_value(lambda: pages.first_step(others), DEADLINE_S, "a step")
    except TimeoutError as error:
        raise TimeoutError(f"{error}; job {job}: {cluster.show_job(job)}") from None


def is_alive(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def strike(pids: Sequence[int], signum: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to processes of ours."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def peer(name: str) -> Path:
    """Give the path of a contender's file."""
    return ROOT / "benchmarks" / "peers" / name
