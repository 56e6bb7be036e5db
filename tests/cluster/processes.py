"""What this cluster has running, how it is remembered, and how it is ended.

A process is known by its pid *and* its start time, so that a pid that the kernel
gave to somebody else is never killed.  The signal goes through a pidfd that was
opened before the start time was compared.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.parameters import ClusterParameters, from_json, to_json

RUN_DIR = Path("/run/clusterddp-cluster")
MARKER = "CLUSTERDDP_TEST_CLUSTER"
_FIRST_POLL_S, _LAST_POLL_S = 0.03, 0.3
_STATE_FIELD, _START_FIELD = 0, 19
_SIGNALS_TO_RESET = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)


def wait_until(
    condition: Callable[[], bool], deadline: float, failure: Callable[[], Exception]
) -> None:
    """Return as soon as the condition holds.

    Args:
        condition: Asked again and again, at least once.
        deadline: Seconds to wait at most.
        failure: Makes the exception to raise when the time is over.

    Raises:
        Exception: What `failure` gave.
    """
    end = time.monotonic() + deadline
    pause = _FIRST_POLL_S
    while not condition():
        if time.monotonic() > end:
            raise failure()
        time.sleep(pause)
        pause = min(1.1 * pause, _LAST_POLL_S)


@dataclass(frozen=True)
class Process:
    """A process, told apart from a later one with the same pid.

    Attributes:
        name: What it is to us, e.g. `slurmd-n1`.
        pid: The kernel's number.
        started: Its start, in clock ticks since the machine's boot.
    """

    name: str
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return start_ticks(self.pid) == self.started

    def kill(self) -> None:
        """Send SIGKILL, unless it has gone already."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            os.close(descriptor)


@dataclass
class Record:
    """What is known of a running cluster, kept in a file under /run."""

    parameters: ClusterParameters
    digest: str
    daemons: dict[str, Process] = field(default_factory=dict)
    complete: bool = False

    def save(self) -> None:
        """Write the record, atomically."""
        path = record_path(self.parameters.slot)
        path.parent.mkdir(mode=0o755, exist_ok=True)
        values = {
            "parameters": to_json(self.parameters),
            "digest": self.digest,
            "daemons": [asdict(daemon) for daemon in self.daemons.values()],
            "complete": self.complete,
        }
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(values, indent=2))
        draft.replace(path)


def record_path(slot: int) -> Path:
    """Give the file that remembers the cluster of a slot."""
    return RUN_DIR / f"slot{slot}.json"


def load_record(slot: int) -> Record | None:
    """Read the record of a slot; None when there is none that can be read."""
    try:
        values = json.loads(record_path(slot).read_text())
        daemons = [Process(**daemon) for daemon in values["daemons"]]
        return Record(
            parameters=from_json(values["parameters"]),
            digest=values["digest"],
            daemons={daemon.name: daemon for daemon in daemons},
            complete=values["complete"],
        )
    except (OSError, ValueError, KeyError, TypeError, ClusterError):
        return None


def start_ticks(pid: int) -> int | None:
    """Give the start time of a process that runs, None for a zombie or nobody."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if fields[_STATE_FIELD] in "ZX":
        return None
    return int(fields[_START_FIELD])


def spawn(
    name: str, argv: Sequence[str], environment: Mapping[str, str], output: Path
) -> Process:
    """Start a daemon: own session, no input, both streams appended to a file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=_SIGNALS_TO_RESET,
    )
    return Process(name, pid, start_ticks(pid) or 0)


def marked(slot: int) -> Iterator[Process]:
    """Find daemons of a slot by the variable that we put into their environment."""
    wanted = f"{MARKER}={slot}".encode()
    return _matching(lambda pid: wanted in _environment(pid))


def inside(namespaces: Iterable[str]) -> Iterator[Process]:
    """Find all processes in network namespaces, given by name."""
    inodes = set()
    for name in namespaces:
        path = Path("/run/netns", name)
        if path.exists():
            inodes.add(path.stat().st_ino)
    return _matching(lambda pid: Path(f"/proc/{pid}/ns/net").stat().st_ino in inodes)


def owned_by(uid: int) -> Iterator[Process]:
    """Find all processes of a user."""
    return _matching(lambda pid: Path(f"/proc/{pid}").stat().st_uid == uid)


def kill_all(find: Callable[[], Iterable[Process]], deadline: float, what: str) -> None:
    """Kill what `find` gives, again and again, until it gives nothing."""
    killed = set()

    def nothing_left() -> bool:
        found = [process for process in find() if process.alive]
        for process in found:
            process.kill()
            killed.add(process.pid)
        return not found

    def failure() -> ClusterError:
        left = ", ".join(f"{process.name} ({process.pid})" for process in find())
        return ClusterError(
            f"{what}: still alive {deadline:.0f} s after SIGKILL: {left};"
            " see /proc/<pid>/stack for what they wait for"
        )

    wait_until(nothing_left, deadline, failure)
    for pid in killed:
        reap(pid)


def reap(pid: int) -> None:
    """Collect the exit code of a dead process, when it happens to be our child."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _environment(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def _matching(belongs: Callable[[int], bool]) -> Iterator[Process]:
    names = (path.name for path in Path("/proc").iterdir())
    for pid in (int(name) for name in names if name.isdigit()):
        if pid == os.getpid():
            continue
        try:
            started = start_ticks(pid)
            if started is not None and belongs(pid):
                yield Process(_command_name(pid), pid, started)
        except OSError:
            continue


def _command_name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
