"""What the machine is on which numbers were taken, and how busy it was."""

import os
import platform
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_MEASURED = ("torch", "submitit", "lightning", "accelerate")


def describe_machine() -> dict[str, str]:
    """Give the parts that a reader needs to judge a figure; loads no torch."""
    return {
        "cpu": cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version_of(name) for name in _MEASURED},
        "file system": file_system(Path(tempfile.gettempdir()).resolve()),
    }


def load() -> float:
    """Give how many processes wanted to run, over the last minute."""
    return round(os.getloadavg()[0], 2)


def cpu_model() -> str:
    """Give the processor's name as the kernel tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def version_of(package: str) -> str:
    """Give an installed package's version."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def file_system(path: Path) -> str:
    """Give the kind of the file system that holds a path."""
    kinds = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        kinds[place] = kind
    for parent in (path, *path.parents):
        if str(parent) in kinds:
            return kinds[str(parent)]
    return "unknown"
