"""A free port that stays free until its server has taken it."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from clusterddp.dist.port import free_port


def plain_bind(port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_usual_way_lets_anybody_have_the_port() -> None:
    """What `free_port` is for: bound to port 0 and closed, the port is anybody's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    plain_bind(port)


def test_held_port_is_nobody_elses() -> None:
    """A plain bind fails while it is held, and works once it is handed over."""
    with free_port() as port:
        with pytest.raises(OSError, match="in use"):
            plain_bind(port.number)
        assert str(port) == str(port.number)
    plain_bind(port.number)


def test_kernel_gives_a_held_port_to_nobody() -> None:
    """Of many who ask for any port, none gets one that is held."""
    held = [free_port() for _ in range(50)]
    numbers = {port.number for port in held}
    others = [socket.create_server(("127.0.0.1", 0)) for _ in range(500)]
    taken = {other.getsockname()[1] for other in others}
    for port in held:
        port.hand_over()
    for other in others:
        other.close()
    assert len(numbers) == 50
    assert not numbers & taken


@pytest.mark.parametrize("libuv", [True, False])
def test_store_takes_the_port_while_it_is_held(libuv: bool) -> None:  # noqa: FBT001
    """So there is no moment at which it is free."""
    with free_port() as port:
        store = TCPStore(
            *("127.0.0.1", port.number),
            is_master=True,
            wait_for_workers=False,
            use_libuv=libuv,
        )
        store.set("here", "1")
    assert store.get("here") == b"1"


@pytest.mark.parametrize("module", ["run", "launch"])
def test_torch_launchers_take_the_port_while_it_is_held(
    module: str, tmp_path: Path
) -> None:
    """Also torchrun and the old torch.distributed.launch, used as they are."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "from clusterddp.dist import init_dist, reduce_sums, shutdown\n"
        "for turn in range(2):\n"
        "    before = dict(os.environ)\n"
        "    world = init_dist('pytorch', timeout='1m')\n"
        "    assert dict(os.environ) == before, 'the environment was touched'\n"
        "    sums = reduce_sums([world.rank + 1])\n"
        "    assert world.launcher == 'pytorch' and sums == [3.0], (world, sums)\n"
        "    shutdown()\n"
    )
    root = str(Path(__file__).parents[1])
    with free_port() as port:
        done = subprocess.run(
            [
                *(sys.executable, "-m", f"torch.distributed.{module}"),
                *("--nnodes=1", "--nproc-per-node=2", f"--master-port={port}"),
                *(["--use-env"] if module == "launch" else []),
                str(script),
            ],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
