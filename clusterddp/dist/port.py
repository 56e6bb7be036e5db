"""A free port for a local launch, held until its server has taken it.

The usual way, bind to port 0 and close again, lets anybody have the port in between.
Here the socket stays bound without listening. To Linux that means: no program that
asks for any free port is given this one, and none may bind it plainly; but a server
that sets SO_REUSEADDR, as TCPStore and torchrun do, may listen on it (tcp(7), and
measured with both back-ends of TCPStore on torch 2.13).
"""

import socket
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["HeldPort", "free_port"]


class HeldPort:
    """A port that is kept free for one server; a context manager."""

    def __init__(self, holder: socket.socket) -> None:
        self._holder = holder
        self.number: int = holder.getsockname()[1]

    def hand_over(self) -> None:
        """Let go of the port, once its server listens or is not coming."""
        self._holder.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hand_over()

    def __str__(self) -> str:
        return str(self.number)


def free_port() -> HeldPort:
    """Give a port of this machine that nobody uses, and hold it.

    Keep the holder until the server listens::

        with free_port() as port:
            subprocess.run(["torchrun", f"--master-port={port}", ...])

    Raises:
        OSError: this machine has no free port.
    """
    dual = socket.has_dualstack_ipv6()
    holder = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if dual:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(("", 0))
    except BaseException:
        holder.close()
        raise
    return HeldPort(holder)
