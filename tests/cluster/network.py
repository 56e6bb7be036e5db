"""One network namespace per node, joined by a bridge in a namespace of its own.

The bridge does not lie in the machine's own namespace: firewall rules there (Docker
sets some) would drop what nodes say to each other.  The machine itself is `head`.
"""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.cluster.errors import ClusterError, CommandError
from tests.cluster.parameters import ClusterParameters, find_program

HOSTS = Path("/etc/hosts")
_NETNS_DIR = Path("/run/netns")


def ip(*arguments: str) -> str:
    """Run the program `ip`; give what it prints."""
    return _ip(arguments)


def build_network(parameters: ClusterParameters) -> None:
    """Make the namespaces and their links, and name all hosts in /etc/hosts."""
    switch = parameters.switch
    spaces = [parameters.namespace(node) for node in parameters.node_names]
    _batch(f"netns add {space}" for space in [switch, *spaces])
    ip("-n", switch, "link", "add", "bridge", "type", "bridge")
    ip("-n", switch, "link", "set", "bridge", "up")
    _batch(_links(parameters))
    _batch(_ports(parameters), switch)
    _batch(_head_commands(parameters))
    _notice_dead_nodes_soon(parameters.name)
    for node in parameters.node_names:
        address = parameters.addresses[node]
        _batch(_node_commands(address), parameters.namespace(node))
    write_hosts(parameters)


def remove_network(slot: int) -> None:
    """Remove whatever namespaces and links a cluster of this slot has left."""
    name = f"cddp{slot}"
    if Path("/sys/class/net", name).exists():
        ip("link", "del", name)
    for space in namespaces(slot):
        with contextlib.suppress(CommandError):
            ip("netns", "del", space)
        (_NETNS_DIR / space).unlink(missing_ok=True)
    remove_hosts(slot)


def namespaces(slot: int) -> list[str]:
    """List the network namespaces of a slot that exist."""
    return sorted(path.name for path in _NETNS_DIR.glob(f"cddp{slot}-*"))


def set_link(parameters: ClusterParameters, node: str, state: str) -> None:
    """Cut a node off (`down`) or join it again (`up`)."""
    ip("-n", parameters.namespace(node), "link", "set", "eth0", state)


def render_hosts(parameters: ClusterParameters) -> str:
    """Give the lines for /etc/hosts, each with the slot's mark."""
    mark = _mark(parameters.slot)
    pairs = parameters.addresses.items()
    return "".join(f"{address} {name} {mark}\n" for name, address in pairs)


def write_hosts(parameters: ClusterParameters) -> None:
    """Name the head and all nodes in /etc/hosts.

    Raises:
        ClusterError: A name means another machine here.
    """
    text = _without_marked(HOSTS.read_text(), parameters.slot)
    separator = "" if text.endswith("\n") or not text else "\n"
    _replace_hosts(text + separator + render_hosts(parameters))
    for name, address in parameters.addresses.items():
        if (found := socket.gethostbyname(name)) != address:
            raise ClusterError(
                f"/etc/hosts: {name} resolves to {found}, expected {address};"
                f" remove the other entry, or use another slot"
            )


def remove_hosts(slot: int) -> None:
    """Take our lines out of /etc/hosts."""
    text = HOSTS.read_text()
    kept = _without_marked(text, slot)
    if kept != text:
        _replace_hosts(kept)


def _mark(slot: int) -> str:
    return f"# clusterddp-cluster slot {slot}"


def _without_marked(text: str, slot: int) -> str:
    mark = _mark(slot)
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.rstrip().endswith(mark))


def _replace_hosts(text: str) -> None:
    """Replace the file at once; in a container it is a mount and cannot be."""
    draft = HOSTS.with_name("hosts.clusterddp-draft")
    draft.write_text(text)
    shutil.copymode(HOSTS, draft)
    try:
        draft.replace(HOSTS)
    except OSError:
        HOSTS.write_text(text)
        draft.unlink()


def _links(parameters: ClusterParameters) -> Iterable[str]:
    end = f"netns {parameters.switch}"
    yield f"link add {parameters.name} type veth peer name head {end}"
    for node in parameters.node_names:
        space = parameters.namespace(node)
        yield f"link add eth0 netns {space} type veth peer name {node} {end}"


def _ports(parameters: ClusterParameters) -> Iterable[str]:
    for port in ("head", *parameters.node_names):
        yield f"link set {port} master bridge"
        yield f"link set {port} up"


def _head_commands(parameters: ClusterParameters) -> Iterable[str]:
    address = parameters.addresses[parameters.head]
    yield f"address add {address}/24 dev {parameters.name}"
    yield f"link set {parameters.name} up"


def _node_commands(address: str) -> Iterable[str]:
    yield "link set lo up"
    yield f"address add {address}/24 dev eth0"
    yield "link set eth0 up"


def _notice_dead_nodes_soon(interface: str) -> None:
    """Let the head learn in 0.3 s, not 3 s, that an address does not answer.

    The controller tries ten times to reach a node before it believes that it is gone.
    """
    settings = Path("/proc/sys/net/ipv4/neigh", interface)
    (settings / "retrans_time_ms").write_text("100")
    (settings / "base_reachable_time_ms").write_text("1000")
    (settings / "delay_first_probe_time").write_text("1")


def _batch(commands: Iterable[str], namespace: str | None = None) -> None:
    inside = () if namespace is None else ("-n", namespace)
    _ip((*inside, "-batch", "-"), stdin="\n".join(commands))


def _ip(arguments: Sequence[str], stdin: str = "") -> str:
    argv = (find_program("ip") or "ip", *arguments)
    done = subprocess.run(
        argv, input=stdin, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        raise CommandError(
            argv, done.returncode, done.stdout, f"{done.stderr}\n{stdin}"
        )
    return done.stdout


def is_link_up(parameters: ClusterParameters, node: str) -> bool:
    """Say whether a node's link is switched on."""
    text = ip("-n", parameters.namespace(node), "-o", "link", "show", "eth0")
    flags = text.partition("<")[2].partition(">")[0].split(",")
    return "UP" in flags


def path_of(namespace: str) -> str:
    """Give the file by which nsenter enters a namespace."""
    return os.fspath(_NETNS_DIR / namespace)
