"""The addresses under which this machine may be reached, and the way to a peer.

Gloo binds to whatever the host name resolves to, which on Debian and Ubuntu is
127.0.1.1; a Slurm node name need not resolve at all. So several candidates are
published and the peers try them in order.
"""

import errno
import ipaddress
import socket
from collections.abc import Mapping

import psutil

from clusterddp.dist.arguments import PortRange
from clusterddp.errors import RendezvousError

__all__ = [
    "address_candidates",
    "check_interface_names",
    "interface_of",
    "is_hostname_loopback",
    "listen",
    "listen_within",
    "source_address",
]

LOOPBACK = "127.0.0.1"


def listen(port: int = 0, *, loopback: bool = False) -> socket.socket:
    """Bind and listen, on all addresses of both families or on loopback alone.

    The socket is never closed and bound again, so no other process can take its
    port in between. Port 0 lets the kernel choose.

    Raises:
        RendezvousError: the port given is in use.
    """
    try:
        return _server(port, loopback=loopback)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        message = (
            f"rendezvous: port {port} (MASTER_PORT) is in use on "
            f"{socket.gethostname()}, expected a free one; "
            f"`ss -ltnp 'sport = :{port}'` there names its owner, or unset "
            "MASTER_ADDR and MASTER_PORT and a free port is found"
        )
        raise RendezvousError(message) from error


def listen_within(ports: PortRange, *, loopback: bool = False) -> socket.socket:
    """Bind and listen as `listen` does, on the first free port of a range.

    Raises:
        RendezvousError: none of them is free, or none may be bound.
    """
    low, high = ports
    for port in range(low, high + 1):
        try:
            return _server(port, loopback=loopback)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    message = (
        f"rendezvous: found no free port from {low} to {high} (port_range) on "
        f"{socket.gethostname()}, expected one at least; widen dist_params.port_range, "
        f"or see who holds them: `ss -ltnp 'sport >= :{low} and sport <= :{high}'`"
    )
    raise RendezvousError(message)


def _server(port: int, *, loopback: bool) -> socket.socket:
    if loopback:
        return socket.create_server((LOOPBACK, port), backlog=1024)
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(
        ("", port), family=family, backlog=1024, dualstack_ipv6=dual
    )


def address_candidates(environ: Mapping[str, str], *, loopback: bool) -> list[str]:
    """Give the names and addresses of this machine, the preferred first.

    Names that do not resolve here, or resolve to loopback, are dropped. Loopback
    stands only where it is asked for, or where this machine has nothing else.
    """
    if loopback:
        return [LOOPBACK]
    names = [environ.get("SLURMD_NODENAME", ""), socket.gethostname()]
    candidates = [name for name in names if name and not _is_loopback(name)]
    candidates += _interface_addresses()
    return list(dict.fromkeys(candidates)) or [LOOPBACK]


def _is_loopback(name: str) -> bool:
    """Tell whether a name leads here only, or nowhere."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return True
    return any(_ip(str(entry[4][0])).is_loopback for entry in found)


def is_hostname_loopback() -> bool:
    """Tell whether gloo, left to itself, would bind where no peer can come."""
    return _is_loopback(socket.gethostname())


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(text.partition("%")[0])


def _interface_addresses() -> list[str]:
    """Give the addresses of the interfaces that are up, IPv4 first."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    addresses = [
        entry.address
        for family in (socket.AF_INET, socket.AF_INET6)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if name in up and entry.family == family
    ]
    return [
        text
        for text in addresses
        if not (_ip(text).is_loopback or _ip(text).is_link_local)
    ]


def source_address(peer: str) -> str | None:
    """Give the address from which packets to a peer leave; None if unknown.

    Connecting a datagram socket only looks up the route, nothing is sent (udp(7)).
    """
    try:
        entries = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, target = entries[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return None


def interface_of(address: str) -> str | None:
    """Name the interface that holds an address; None if no one does."""
    wanted = _ip(address)
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            inet = entry.family in (socket.AF_INET, socket.AF_INET6)
            if inet and _ip(entry.address) == wanted:
                return name
    return None


def check_interface_names(environ: Mapping[str, str], present: list[str]) -> None:
    """Refuse interface names that this machine does not have.

    Gloo takes names, separated by commas. NCCL takes prefixes, `=` for exact names
    and `^` for exclusions (NCCL_SOCKET_IFNAME in NCCL's list of variables); either
    one fails obscurely on a misspelt name.

    Raises:
        RendezvousError: a name fits no interface.
    """
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        text = environ.get(variable, "")
        gloo = variable.startswith("GLOO")
        if not text or (text.startswith("^") and not gloo):
            continue
        exact = gloo or text.startswith("=")
        wanted = text.split(",") if gloo else text.lstrip("=").split(",")
        unknown = [name for name in wanted if not _fits(name, present, exact=exact)]
        if len(unknown) == len(wanted) or (gloo and unknown):
            message = (
                f"{variable}={text}: found no interface {', '.join(unknown)} on "
                f"{socket.gethostname()}, expected of {', '.join(present)}; "
                "correct it or unset it"
            )
            raise RendezvousError(message)


def _fits(name: str, present: list[str], *, exact: bool) -> bool:
    # NCCL lets a port follow the name after a colon.
    name = name.partition(":")[0]
    if exact:
        return name in present
    return any(entry.startswith(name) for entry in present)
