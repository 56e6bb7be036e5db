"""The parameters of a cluster, and every name, address and path that follows."""

import dataclasses
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.cluster.errors import ClusterError

DEFAULT_STATE_DIR = Path("/var/tmp/clusterddp-cluster")
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_NODES = 64
_MAX_SLOT = 9


@dataclass(frozen=True)
class ClusterParameters:
    """What a cluster is made of; two equal values describe the same cluster.

    Attributes:
        nodes: How many nodes, n1 ... nN.
        cpus_per_node: CPUs that Slurm believes each node has.
        gpus_per_node: Fake GPUs of each node: character devices, no more.
        memory_mb: Memory that Slurm believes each node has; it limits nothing.
        prefix: Where Slurm's programs lie: `<prefix>/bin` and `<prefix>/sbin`.
        proctrack: How Slurm finds a step's processes.  It changes who gets signals.
        cred_expire: Seconds that a requeued job is held for (about);
            None keeps Slurm's default, 121 s.
        state_dir: Everything on disk lies here; other users must be able to enter.
        slurm_conf_lines: Further lines at the end of slurm.conf.
        slot: Which of several clusters on this machine.  Slot 0 has the plain names;
            slot K has names like `kKn1` and the state directory `<state_dir>-K`.
    """

    nodes: int = 4
    cpus_per_node: int = 4
    gpus_per_node: int = 4
    memory_mb: int = 16000
    prefix: Path = Path("/usr")
    proctrack: Literal["linuxproc", "cgroup"] = "linuxproc"
    cred_expire: int | None = 5
    state_dir: Path = DEFAULT_STATE_DIR
    slurm_conf_lines: tuple[str, ...] = ()
    slot: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= _MAX_NODES:
            raise ClusterError(f"nodes={self.nodes}: must be 1 to {_MAX_NODES}")
        if not 0 <= self.slot <= _MAX_SLOT:
            raise ClusterError(f"slot={self.slot}: must be 0 to {_MAX_SLOT}")
        if not self.state_dir.is_absolute():
            raise ClusterError(f"state_dir={self.state_dir}: must be absolute")

    @property
    def root(self) -> Path:
        """The directory that holds everything of this cluster."""
        if self.slot == 0:
            return self.state_dir
        return self.state_dir.with_name(f"{self.state_dir.name}-{self.slot}")

    @property
    def conf_dir(self) -> Path:
        """The directory of slurm.conf and its companions."""
        return self.root / "etc"

    @property
    def log_dir(self) -> Path:
        """The directory of all daemons' log files."""
        return self.root / "log"

    @property
    def shared_dir(self) -> Path:
        """A directory where all nodes and all users may write."""
        return self.root / "shared"

    @property
    def munge_socket(self) -> Path:
        """The socket of this cluster's own munged."""
        return self.root / "munge" / "munge.socket"

    @property
    def database_socket(self) -> Path:
        """The socket of this cluster's own MariaDB, inside its data directory."""
        return self.root / "database" / "mariadb.sock"

    @property
    def name(self) -> str:
        """Slurm's name of the cluster; also the head's network interface."""
        return f"cddp{self.slot}"

    @property
    def head(self) -> str:
        """The host name of the controller and of the accounting daemon."""
        return f"{self._host_prefix}head"

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes' host names, in order."""
        numbers = range(1, self.nodes + 1)
        return tuple(f"{self._host_prefix}n{number}" for number in numbers)

    @property
    def node_expression(self) -> str:
        """The nodes' host names in Slurm's short form."""
        if self.nodes == 1:
            return self.node_names[0]
        return f"{self._host_prefix}n[1-{self.nodes}]"

    @property
    def addresses(self) -> dict[str, str]:
        """The address of the head and of every node."""
        subnet = f"10.77.{self.slot}"
        nodes = enumerate(self.node_names, start=11)
        return {self.head: f"{subnet}.1"} | {
            name: f"{subnet}.{last}" for last, name in nodes
        }

    @property
    def user(self) -> str:
        """The unprivileged user that submits drills."""
        return f"cddp-drill{self.slot or ''}"

    @property
    def switch(self) -> str:
        """The network namespace with the bridge that joins all nodes."""
        return f"{self.name}-switch"

    def namespace(self, node: str) -> str:
        """Give the network namespace of a node."""
        return f"{self.name}-{node}"

    def port(self, daemon: Literal["slurmctld", "slurmd", "slurmdbd"]) -> int:
        """Give the TCP port of one of Slurm's daemons."""
        offsets = {"slurmctld": 7, "slurmd": 8, "slurmdbd": 9}
        return 16810 + 10 * self.slot + offsets[daemon]

    def slurm_program(self, name: str) -> str | None:
        """Find one of Slurm's programs, None when it is not there."""
        return shutil.which(name, path=f"{self.prefix}/sbin:{self.prefix}/bin")

    @property
    def _host_prefix(self) -> str:
        return f"k{self.slot}" if self.slot else ""


def system_path() -> str:
    """Give a PATH that has the administrator's directories, too."""
    return f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}".lstrip(":")


def login_path() -> str:
    """Give the PATH of a clean login shell."""
    return f"/usr/local/bin:{_SYSTEM_PATH}"


def find_program(name: str) -> str | None:
    """Find a program of the operating system, None when it is not there."""
    return shutil.which(name, path=system_path())


def to_json(parameters: ClusterParameters) -> dict[str, object]:
    """Give the parameters as a value that JSON can hold."""
    values = dataclasses.asdict(parameters)
    return {
        key: str(value) if isinstance(value, Path) else value
        for key, value in values.items()
    }


def from_json(values: dict[str, object]) -> ClusterParameters:
    """Read back what `to_json` gave."""
    paths = {key: Path(str(values[key])) for key in ("prefix", "state_dir")}
    lines = values["slurm_conf_lines"]
    if not isinstance(lines, list | tuple):
        raise ClusterError(f"slurm_conf_lines: expected a list, found {lines!r}")
    texts = {"slurm_conf_lines": tuple(str(line) for line in lines)}
    return ClusterParameters(**(values | paths | texts))  # type: ignore[arg-type]
