"""What can be seen of a test that failed on the cluster, before the next resets it."""

from pathlib import Path

from tests.cluster import Cluster

_LINES = 40
_FILES = ("events/*", "attempts/*/*.log", "submitit/*.out", "submitit/*.err")


def look_around(cluster: Cluster, home: Path) -> str:
    """Give Slurm's view, and the last lines of what the runs below `home` wrote."""
    commands = (("squeue", "--all", "--long"), ("sinfo", "--Node", "--long"))
    parts = [_ask(cluster, command) for command in commands]
    parts.append(_tail(cluster.log_dir / "slurmctld.log"))
    for run in sorted(home.glob("runs/*/*")):
        if not run.is_symlink():
            parts += [_tail(path) for name in _FILES for path in sorted(run.glob(name))]
    return "\n".join(parts)


def _ask(cluster: Cluster, command: tuple[str, ...]) -> str:
    try:
        return cluster.run(command, check=False, timeout=20).stdout
    except Exception as error:  # noqa: BLE001 - it must not hide the failure itself
        return f"{command[0]}: {error}\n"


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()[-_LINES:]
    except OSError as error:
        lines = [str(error)]
    return "\n".join([f"--- {path}", *lines, ""])
