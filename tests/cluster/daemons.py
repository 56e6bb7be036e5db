"""How each daemon is started, when it is ready, and where it writes its log."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import network, processes
from tests.cluster.errors import ClusterError, CommandError
from tests.cluster.parameters import ClusterParameters, find_program, system_path
from tests.cluster.processes import MARKER, Process, Record, wait_until

READY_DEADLINE_S = 60
_LOG_LINES = 25


@dataclass(frozen=True)
class Daemon:
    """One daemon of the cluster.

    Attributes:
        name: E.g. `slurmd-n1`.
        argv: What to execute; the first word is an absolute path.
        log: The file it writes its log to; what it says on its standard streams
            goes to `<name>.out` beside it.
        is_ready: Whether it does its work.
        hint: What to look at when it does not.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    is_ready: Callable[[], bool]
    hint: str


def central_daemons(parameters: ClusterParameters) -> tuple[Daemon, ...]:
    """Give munged, MariaDB, slurmdbd and slurmctld; each needs those before it."""
    return (
        _munged(parameters),
        _mariadbd(parameters),
        _slurmdbd(parameters),
        _slurmctld(parameters),
    )


def node_daemons(parameters: ClusterParameters) -> tuple[Daemon, ...]:
    """Give one slurmd per node."""
    return tuple(_slurmd(parameters, node) for node in parameters.node_names)


def start_daemon(record: Record, daemon: Daemon) -> Process:
    """Start a daemon and remember it; do not wait for it."""
    parameters = record.parameters
    environment = {
        "PATH": system_path(),
        "LANG": "C.UTF-8",
        "SLURM_CONF": str(parameters.conf_dir / "slurm.conf"),
        "MYSQL_UNIX_PORT": str(parameters.database_socket),
        MARKER: str(parameters.slot),
    }
    argv = ("/bin/sh", "-c", 'cd / && umask 022 && exec "$@"', "sh", *daemon.argv)
    output = _output(daemon)
    process = processes.spawn(daemon.name, argv, environment, output)
    record.daemons[daemon.name] = process
    record.save()
    return process


def wait_ready(record: Record, daemon: Daemon) -> None:
    """Return when the daemon does its work.

    Raises:
        ClusterError: It died, or was not ready in time.
    """
    process = record.daemons[daemon.name]

    def ready_or_dead() -> bool:
        return not process.alive or daemon.is_ready()

    def late() -> ClusterError:
        return _failure(daemon, f"not ready after {READY_DEADLINE_S} s")

    wait_until(ready_or_dead, READY_DEADLINE_S, late)
    if not process.alive:
        raise _failure(daemon, "died while starting")


def ensure_running(record: Record, daemons: Iterable[Daemon]) -> None:
    """Start those daemons that do not run, in order, and wait for them."""
    for daemon in daemons:
        process = record.daemons.get(daemon.name)
        if process is not None and not process.alive:
            processes.reap(process.pid)
            process = None
        if process is None:
            start_daemon(record, daemon)
            wait_ready(record, daemon)


def install_database(parameters: ClusterParameters) -> None:
    """Make a new, empty database; root may connect through the socket."""
    data = parameters.database_socket.parent
    data.mkdir(mode=0o700)
    mysql = pwd.getpwnam("mysql")
    os.chown(data, mysql.pw_uid, mysql.pw_gid)
    run_tool(
        parameters,
        find_program("mariadb-install-db") or "mariadb-install-db",
        f"--defaults-file={parameters.conf_dir}/my.cnf",
        "--auth-root-authentication-method=socket",
        "--skip-test-db",
        "--skip-name-resolve",
    )


def install_munge_key(parameters: ClusterParameters) -> None:
    """Make a key of this cluster's own; the system's munged is left alone."""
    directory = parameters.munge_socket.parent
    directory.mkdir(mode=0o755)
    key = directory / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))


def run_tool(parameters: ClusterParameters, *argv: str) -> str:
    """Run a program as root with the cluster's environment; give its output.

    Raises:
        CommandError: It left with a code other than 0.
    """
    environment = {
        "PATH": system_path(),
        "LANG": "C.UTF-8",
        "SLURM_CONF": str(parameters.conf_dir / "slurm.conf"),
    }
    done = _completed(argv, environment)
    if done.returncode:
        raise CommandError(argv, done.returncode, done.stdout, done.stderr)
    return done.stdout


def slurm_tool(parameters: ClusterParameters, name: str, *arguments: str) -> str:
    """Run one of Slurm's programs as root; give its output."""
    program = parameters.slurm_program(name)
    if program is None:
        raise ClusterError(f"{name}: not found under {parameters.prefix}")
    return run_tool(parameters, program, *arguments)


def node_states(parameters: ClusterParameters) -> dict[str, str]:
    """Ask the controller for the state of every node, e.g. `idle` or `down*`."""
    text = slurm_tool(parameters, "sinfo", "-N", "-h", "-p", "main", "-o", "%N %T")
    return dict(line.split() for line in text.splitlines())


def nodes_not_idle(parameters: ClusterParameters) -> dict[str, str]:
    """Give the nodes that could not start a job now, with their states."""
    states = node_states(parameters)
    return {node: state for node, state in states.items() if state != "idle"}


def tail(path: Path) -> str:
    """Give the last lines of a log file, or say that there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return "(no such file)"
    return "\n".join(lines[-_LOG_LINES:]) or "(empty)"


def nodes_failure(parameters: ClusterParameters) -> ClusterError:
    """Explain which nodes are not idle, with the first one's log."""
    bad = nodes_not_idle(parameters)
    first = _slurmd(parameters, min(bad, default=parameters.node_names[0]))
    states = ", ".join(f"{node} {state}" for node, state in bad.items())
    return _failure(first, f"nodes are not idle: {states}")


def _munged(parameters: ClusterParameters) -> Daemon:
    directory = parameters.munge_socket.parent
    log = parameters.log_dir / "munged.log"
    argv = (
        find_program("munged") or "munged",
        "--foreground",
        f"--socket={parameters.munge_socket}",
        f"--key-file={directory}/munge.key",
        f"--pid-file={directory}/munged.pid",
        f"--seed-file={directory}/munged.seed",
        f"--log-file={log}",
        "--num-threads=4",
    )
    hint = "munged refuses directories that other users may write"
    return Daemon(
        "munged", argv, log, lambda: _listens_unix(parameters.munge_socket), hint
    )


def _mariadbd(parameters: ClusterParameters) -> Daemon:
    log = parameters.log_dir / "mariadbd.log"
    program = find_program("mariadbd") or "mariadbd"
    argv = (program, f"--defaults-file={parameters.conf_dir}/my.cnf")
    return Daemon(
        "mariadbd",
        argv,
        log,
        lambda: _database_answers(parameters),
        "user mysql must be able to enter the state directory; is the disk full?",
    )


def _slurmdbd(parameters: ClusterParameters) -> Daemon:
    argv = _with_hostname(parameters.head, _program(parameters, "slurmdbd"), "-D")
    address = (parameters.addresses[parameters.head], parameters.port("slurmdbd"))
    log = parameters.log_dir / "slurmdbd.log"
    hint = f"does mariadbd run, is port {address[1]} free?"
    return Daemon("slurmdbd", argv, log, lambda: _listens_tcp(address), hint)


def _slurmctld(parameters: ClusterParameters) -> Daemon:
    argv = _with_hostname(parameters.head, _program(parameters, "slurmctld"), "-D")
    return Daemon(
        "slurmctld",
        argv,
        parameters.log_dir / "slurmctld.log",
        lambda: _controller_answers(parameters),
        f"is port {parameters.port('slurmctld')} free? Try other slurm_conf_lines",
    )


def _slurmd(parameters: ClusterParameters, node: str) -> Daemon:
    nsenter = find_program("nsenter") or "nsenter"
    inside = (nsenter, f"--net={network.path_of(parameters.namespace(node))}")
    slurmd = (_program(parameters, "slurmd"), "-D", "-N", node)
    return Daemon(
        f"slurmd-{node}",
        (*inside, *_with_hostname(node, *slurmd)),
        parameters.log_dir / f"slurmd-{node}.log",
        lambda: _listens_tcp((parameters.addresses[node], parameters.port("slurmd"))),
        "are control groups mounted as cgroup.conf says?",
    )


def _with_hostname(name: str, *argv: str) -> tuple[str, ...]:
    """Run a program with a host name of its own; it keeps the process id."""
    script = 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"'
    unshare = find_program("unshare") or "unshare"
    return (unshare, "--uts", "/bin/sh", "-c", script, name, *argv)


def _program(parameters: ClusterParameters, name: str) -> str:
    return parameters.slurm_program(name) or name


def _listens_unix(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def _listens_tcp(address: tuple[str, int]) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(address) == 0


def _database_answers(parameters: ClusterParameters) -> bool:
    if not parameters.database_socket.exists():
        return False
    admin = find_program("mariadb-admin") or "mariadb-admin"
    with contextlib.suppress(CommandError):
        text = run_tool(
            parameters, admin, "-uroot", f"-S{parameters.database_socket}", "ping"
        )
        return "is alive" in text
    return False


def _controller_answers(parameters: ClusterParameters) -> bool:
    with contextlib.suppress(CommandError):
        return " is UP" in slurm_tool(parameters, "scontrol", "ping")
    return False


def _output(daemon: Daemon) -> Path:
    return daemon.log.with_name(f"{daemon.name}.out")


def _failure(daemon: Daemon, what: str) -> ClusterError:
    out = _output(daemon)
    return ClusterError(
        f"{daemon.name}: {what}; {daemon.hint}\n"
        f"--- end of {daemon.log}\n{tail(daemon.log)}\n"
        f"--- end of {out}\n{tail(out)}"
    )


def _completed(
    argv: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=READY_DEADLINE_S,
        check=False,
    )


def keep_old_logs(parameters: ClusterParameters) -> None:
    """Set the logs of the cluster before this one aside, once."""
    old = parameters.log_dir.with_name("log.old")
    if parameters.log_dir.exists():
        shutil.rmtree(old, ignore_errors=True)
        parameters.log_dir.rename(old)
