"""Bring a cluster up, and take down whatever is left of one."""

import contextlib
import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import account, configs, daemons, network, processes
from tests.cluster.client import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.interpreter import prune_interpreters, unmount_all
from tests.cluster.parameters import ClusterParameters, find_program
from tests.cluster.processes import Process, Record, wait_until

_SLURM_PROGRAMS = (
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "sbatch",
    "srun",
    "sacct",
    "sinfo",
    "scontrol",
)
_SYSTEM_PROGRAMS = (
    "munged",
    "mariadbd",
    "mariadb-install-db",
    "mariadb-admin",
    "ip",
    "nsenter",
    "unshare",
    "mount",
    "umount",
    "useradd",
    "userdel",
)
_PACKAGES = "slurmctld slurmd slurm-client slurmdbd munge mariadb-server iproute2"
_THROWN_AWAY = (
    "controller",
    "database",
    "devices",
    "etc",
    "home",
    "munge",
    "run",
    "shared",
    "spool",
)
_OUR_MARK = ".clusterddp-cluster"
_KILL_DEADLINE_S = 20


def can_run(parameters: ClusterParameters | None = None) -> str | None:
    """Say why this machine cannot have the cluster; None when it can."""
    parameters = parameters or ClusterParameters()
    if sys.platform != "linux":
        return "the Slurm cluster needs Linux"
    if os.geteuid() != 0:
        return "the Slurm cluster needs root: it makes network namespaces and a user"
    missing = [n for n in _SLURM_PROGRAMS if parameters.slurm_program(n) is None]
    missing += [name for name in _SYSTEM_PROGRAMS if find_program(name) is None]
    if missing:
        return (
            f"the Slurm cluster needs {', '.join(missing)}:"
            f" apt-get install --no-install-recommends {_PACKAGES}"
        )
    argv = [find_program("unshare") or "unshare", "--net", "--uts", "--mount", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        return f"the Slurm cluster needs namespaces: {done.stderr.strip()}"
    return None


def start(parameters: ClusterParameters | None = None) -> Cluster:
    """Give a cluster that is up: the running one if it is the same, else a new one.

    Raises:
        ClusterError: This machine cannot have one, or a daemon did not come up;
            then nothing is left behind but the log files.
    """
    parameters = parameters or ClusterParameters()
    if reason := can_run(parameters):
        raise ClusterError(reason)
    with _lock():
        if not _is_up(parameters):
            _refuse_foreign(parameters)
            _clear(parameters.slot)
            _throw_away(parameters.root)
            with _clear_on_failure(parameters.slot):
                _build(parameters)
    return Cluster(parameters)


def stop(slot: int = 0) -> None:
    """Take the cluster down; log files and a copied interpreter stay on disk."""
    with _lock():
        _clear(slot)


def status(slot: int = 0) -> tuple[ClusterParameters, list[str]] | None:
    """Give the parameters and what is wrong, None when no cluster is up."""
    record = processes.load_record(slot)
    if record is None:
        return None
    dead = [f"{d.name} is dead" for d in record.daemons.values() if not d.alive]
    if not record.complete:
        return record.parameters, ["it was not built to the end", *dead]
    if not dead:
        states = daemons.node_states(record.parameters)
        gone = ("down", "drain", "fail", "unk")
        dead = [f"{n} is {s}" for n, s in states.items() if s.startswith(gone)]
    return record.parameters, dead


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """Let one process at a time build or clear."""
    processes.RUN_DIR.mkdir(mode=0o755, exist_ok=True)
    with (processes.RUN_DIR / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _clear_on_failure(slot: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _clear(slot)
        raise


def _is_up(parameters: ClusterParameters) -> bool:
    record = processes.load_record(parameters.slot)
    if record is None or not record.complete or record.parameters != parameters:
        return False
    files = configs.config_files(parameters, cgroup_version())
    if record.digest != configs.digest(files):
        return False
    found = status(parameters.slot)
    return found is not None and not found[1]


def _build(parameters: ClusterParameters) -> None:
    files = configs.config_files(parameters, cgroup_version())
    record = Record(parameters, configs.digest(files))
    record.save()
    _make_directories(parameters)
    _write_configs(parameters, files)
    account.create_user(parameters)
    daemons.install_munge_key(parameters)
    daemons.install_database(parameters)
    munged, mariadbd, slurmdbd, slurmctld = daemons.central_daemons(parameters)
    daemons.start_daemon(record, munged)
    daemons.start_daemon(record, mariadbd)
    network.build_network(parameters)
    for daemon in (munged, mariadbd):
        daemons.wait_ready(record, daemon)
    daemons.ensure_running(record, (slurmdbd, slurmctld))
    for daemon in daemons.node_daemons(parameters):
        daemons.start_daemon(record, daemon)
    _wait_idle(record)
    record.complete = True
    record.save()


def _wait_idle(record: Record) -> None:
    for daemon in daemons.node_daemons(record.parameters):
        daemons.wait_ready(record, daemon)
    wait_until(
        lambda: not daemons.nodes_not_idle(record.parameters),
        daemons.READY_DEADLINE_S,
        lambda: daemons.nodes_failure(record.parameters),
    )


def _make_directories(parameters: ClusterParameters) -> None:
    root = parameters.root
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    root.chmod(0o755)
    (root / _OUR_MARK).touch()
    for parent in root.parents:
        if not parent.stat().st_mode & stat.S_IXOTH:
            raise ClusterError(
                f"state_dir={parameters.state_dir}: other users cannot enter"
                f" {parent}; choose a directory that they can reach"
            )
    daemons.keep_old_logs(parameters)
    for name in ("controller", "devices", "etc", "log", "run", "spool"):
        (root / name).mkdir(mode=0o755)
    mysql = pwd.getpwnam("mysql")
    for path, mode in ((parameters.shared_dir, 0o1777), (parameters.log_dir, 0o775)):
        path.mkdir(exist_ok=True)
        path.chmod(mode)
    os.chown(parameters.log_dir, 0, mysql.pw_gid)
    for number in range(parameters.gpus_per_node):
        device = root / "devices" / f"nvidia{number}"
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))


def _write_configs(parameters: ClusterParameters, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = parameters.conf_dir / name
        path.touch(mode=0o600 if name == "slurmdbd.conf" else 0o644)
        path.write_text(text)


def _clear(slot: int) -> None:
    """Remove what a cluster of this slot has left, however it ended."""
    record = processes.load_record(slot)
    expected = record.parameters if record else ClusterParameters(slot=slot)
    processes.kill_all(
        lambda: _ours(slot, record, expected.user), _KILL_DEADLINE_S, f"slot {slot}"
    )
    network.remove_network(slot)
    account.remove_user(expected.user)
    _remove_cgroups(expected)
    if record is not None or (expected.root / _OUR_MARK).exists():
        _throw_away(expected.root)
    processes.record_path(slot).unlink(missing_ok=True)


def _ours(slot: int, record: Record | None, user: str) -> Iterator[Process]:
    if record is not None:
        yield from record.daemons.values()
    yield from processes.marked(slot)
    yield from processes.inside(network.namespaces(slot))
    if entry := account.find_user(user):
        yield from processes.owned_by(entry.pw_uid)


def _refuse_foreign(parameters: ClusterParameters) -> None:
    """Leave a directory alone that no cluster has made; check before any change.

    Raises:
        ClusterError: The state directory has something in it that is not ours.
    """
    root = parameters.root
    record = processes.load_record(parameters.slot)
    if record is not None and record.parameters.root == root:
        return
    if root.exists() and any(root.iterdir()) and not (root / _OUR_MARK).exists():
        raise ClusterError(
            f"{root}: has something in it that is not a cluster's;"
            " choose another state_dir"
        )


def _throw_away(root: Path) -> None:
    """Empty a state directory of ours, except for logs and interpreters."""
    if not root.exists():
        return
    (root / _OUR_MARK).touch()
    unmount_all(root)
    for mount_point in (root / "mounts").glob("*"):
        mount_point.rmdir()
    for name in _THROWN_AWAY:
        shutil.rmtree(root / name, ignore_errors=True)
    prune_interpreters(root)


def cgroup_version() -> int:
    """Give the version of control groups that this machine mounts, 1 or 2."""
    return 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1


def _remove_cgroups(parameters: ClusterParameters) -> None:
    """Remove the empty control groups that each slurmd made for its node."""
    base = Path("/sys/fs/cgroup")
    for node in parameters.node_names:
        tops = [
            *base.glob(f"*/slurm_{node}"),
            *base.glob(f"**/{node}_slurmstepd.scope"),
        ]
        below = [path for top in tops for path in top.rglob("*") if path.is_dir()]
        for path in sorted([*tops, *below], reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()
