"""Where the ranks of a step meet: a record in a directory that all of them see.

Rank 0 binds a port once and publishes it; nobody derives a port from a job id
(two steps, or two jobs 10000 apart, would share it). A reader trusts a record only
after it has reached the server named there and found the record's cookie in it,
so a stale record costs a moment and never mixes two groups. No torch in here.
"""

import errno
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from clusterddp.errors import RendezvousError
from clusterddp.files import make_private_directory, write_json

__all__ = [
    "AddressRecord",
    "channel_directory",
    "fixed_address",
    "publish_address",
    "rendezvous_key",
    "unpublish_address",
    "wait_for_address",
]

T = TypeVar("T")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
# What a shared file system answers while another node replaces the file.
_TRANSIENT = {errno.ENOENT, errno.ESTALE, errno.EIO, errno.ENOTDIR}


@dataclass(frozen=True)
class AddressRecord:
    """Where rank 0 listens; the cookie proves that a server is the one meant."""

    key: str
    addresses: tuple[str, ...]
    port: int
    cookie: str
    world_size: int
    host: str
    pid: int


def rendezvous_key(environ: Mapping[str, str], generation: int = 0) -> str:
    """Name one meeting of one step, equal on all its ranks and on no others.

    A requeued job has the same job and step id (only SLURM_RESTART_COUNT differs),
    and concurrent steps on the parts of a heterogeneous job may share both (only
    the node list differs). An array element has a job id of its own.
    """
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")
    parts = [environ.get(name) or "none" for name in names]
    nodes = environ.get("SLURM_STEP_NODELIST", "")
    digest = hashlib.sha256(nodes.encode()).hexdigest()[:8]
    parts += [environ.get("SLURM_RESTART_COUNT") or "0", str(generation), digest]
    return re.sub(r"[^A-Za-z0-9._-]", "_", ".".join(parts))


def fixed_address(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Give MASTER_ADDR and MASTER_PORT where both are set; one alone is left over.

    Raises:
        RendezvousError: the port is none.
    """
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if not (host and port):
        return None
    if not (re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 1 << 16):
        message = (
            f"rendezvous: found MASTER_PORT={port}, expected a port from 1 to 65535; "
            "correct it, or unset MASTER_ADDR and MASTER_PORT"
        )
        raise RendezvousError(message)
    # torch takes an IPv6 literal bare; people write the brackets of a URL.
    return host.strip("[]"), int(port)


def channel_directory(environ: Mapping[str, str], num_nodes: int) -> Path:
    """Give the directory in which the ranks of this step meet.

    On one node: private and local, unless $CLUSTERDDP_RDZV_DIR says otherwise. On
    several: of the attempt, $CLUSTERDDP_RDZV_DIR, or below the submit directory, or
    where that is unknown below the working directory.

    Raises:
        RendezvousError: a local one belongs to somebody else.
    """
    chosen = environ.get("CLUSTERDDP_RDZV_DIR")
    if num_nodes == 1 and not chosen:
        return _local_directory()
    run, attempt = (
        environ.get(f"CLUSTERDDP_{name}") for name in ("RUN_DIR", "ATTEMPT")
    )
    if run and attempt:
        return Path(run) / "attempts" / attempt / "rendezvous"
    if chosen:
        return Path(chosen)
    # Without the variable (srun --export=NONE of some sites) srun still starts every
    # task in the directory that srun itself was started in (srun(1), --chdir).
    submitted_from = environ.get("SLURM_SUBMIT_DIR") or Path.cwd()
    return Path(submitted_from) / ".clusterddp" / "rdzv"


def _local_directory() -> Path:
    shared_memory = Path("/dev/shm")  # noqa: S108 - the private one is below it
    parent = shared_memory if os.access(shared_memory, os.W_OK) else None
    path = (parent or Path(tempfile.gettempdir())) / f"clusterddp-{os.geteuid()}"
    make_private_directory(path)
    status = path.lstat()
    if status.st_uid != os.geteuid() or not path.is_dir() or path.is_symlink():
        message = (
            f"rendezvous: {path} belongs to user id {status.st_uid}, expected "
            f"{os.geteuid()}; set CLUSTERDDP_RDZV_DIR to a directory of your own"
        )
        raise RendezvousError(message)
    path.chmod(0o700)
    return path


def publish_address(directory: Path, key: str, record: AddressRecord) -> Path:
    """Write the record of a meeting for the others to find; give its path.

    Raises:
        RendezvousError: the directory cannot be made or written.
    """
    path = directory / f"{key}.json"
    try:
        make_private_directory(directory)
        write_json(path, asdict(record), mode=0o600)
    except OSError as error:
        message = (
            f"rendezvous: cannot write {path}: {error.strerror}; set "
            "CLUSTERDDP_RDZV_DIR to a writable directory that all nodes see"
        )
        raise RendezvousError(message) from error
    return path


def unpublish_address(directory: Path, key: str) -> None:
    """Remove the record of a meeting; a failure is harmless, cookies tell."""
    try:
        (directory / f"{key}.json").unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in _TRANSIENT:
            raise


def wait_for_address(
    directory: Path,
    key: str,
    accept: Callable[[AddressRecord], T | None],
    timeout_s: float,
) -> T:
    """Poll for the record of a meeting until `accept` makes something of it.

    Args:
        directory: where rank 0 publishes.
        key: the meeting, see `rendezvous_key`.
        accept: connects and checks the cookie; None means "not this server".
        timeout_s: how long to go on.

    Raises:
        RendezvousError: nothing acceptable appeared in time.
    """
    deadline = time.monotonic() + timeout_s
    pause = _FIRST_PAUSE_S
    while True:
        record = _read_record(directory, key)
        accepted = accept(record) if isinstance(record, AddressRecord) else None
        if accepted is not None:
            return accepted
        if time.monotonic() + pause > deadline:
            raise RendezvousError(_nothing_found(directory, key, record, timeout_s))
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)


def _read_record(directory: Path, key: str) -> AddressRecord | str:
    """Give the record, or why there is none yet."""
    try:
        # Opening the directory anew makes NFS forget that the name was absent.
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            name = os.open(f"{key}.json", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(name, "rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            content = file.read()
    except OSError as error:
        return f"{error.strerror}"
    if owner != os.geteuid():
        return f"a record that belongs to user id {owner}"
    return _parse_record(content)


def _parse_record(content: bytes) -> AddressRecord | str:
    try:
        fields = json.loads(content)
        fields["addresses"] = tuple(fields["addresses"])
        return AddressRecord(**fields)
    except (ValueError, KeyError, TypeError):
        return "a record that is incomplete"


def _nothing_found(
    directory: Path, key: str, found: AddressRecord | str, timeout_s: float
) -> str:
    if isinstance(found, AddressRecord):
        addresses = ", ".join(found.addresses)
        found = (
            f"one of {found.host}, but no server with its cookie answers at port "
            f"{found.port} of {addresses} (left over, or a firewall in between?)"
        )
    return (
        f"rendezvous: rank 0 published no usable address within {timeout_s:g} s; "
        f"found in {directory / key}.json: {found}; is rank 0 running, and do all "
        "nodes see this directory? Otherwise set CLUSTERDDP_RDZV_DIR to one that "
        "they all see, or both MASTER_ADDR and MASTER_PORT"
    )
