"""How the ranks find one another, and what they say when they do not."""

import errno
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore, TCPStore

from clusterddp.dist import address, arrival, client
from clusterddp.dist.address import (
    address_candidates,
    check_interface_names,
    interface_of,
    listen,
    listen_within,
    source_address,
)
from clusterddp.dist.arrival import Arrival, node_tasks, roll_call
from clusterddp.dist.channel import (
    AddressRecord,
    channel_directory,
    publish_address,
    rendezvous_key,
    unpublish_address,
    wait_for_address,
)
from clusterddp.dist.port import free_port
from clusterddp.dist.rendezvous import meet, meet_store, meeting_place
from clusterddp.dist.world import world_from_environment
from clusterddp.errors import RendezvousError
from tests.forked import run_ranks, step_environ

RECORD = AddressRecord("k", ("127.0.0.1",), 1, "secret", 2, "gpu001", 7)
SECOND = timedelta(seconds=1)


def wait_until(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def identity(record: AddressRecord) -> AddressRecord:
    return record


# The published record


def test_published_record_is_private_and_found(tmp_path: Path) -> None:
    directory = tmp_path / "attempt" / "rendezvous"
    path = publish_address(directory, "k", RECORD)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert wait_for_address(directory, "k", identity, 0) == RECORD
    assert [entry.name for entry in directory.iterdir()] == ["k.json"]
    unpublish_address(directory, "k")
    unpublish_address(directory, "k")
    assert not list(directory.iterdir())


def test_reader_outlasts_whatever_a_shared_file_system_shows(tmp_path: Path) -> None:
    directory = tmp_path / "later"
    found: list[AddressRecord] = []
    reader = threading.Thread(
        target=lambda: found.append(wait_for_address(directory, "k", identity, 20))
    )
    reader.start()
    time.sleep(0.05)
    directory.mkdir()
    for partial in ("", "{", '{"key": "k"}', "[]", "null", '{"addresses": 3}'):
        (directory / "k.json").write_text(partial)
        time.sleep(0.05)
    publish_address(directory, "k", RECORD)
    reader.join(20)
    assert found == [RECORD]


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO], ids=errno.errorcode.get)
def test_reader_outlasts_a_stale_handle(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_address(tmp_path, "k", RECORD)
    real, failures = os.open, iter([code, code])

    def failing(*arguments: object, **options: object) -> int:
        if number := next(failures, 0):
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", failing)
    assert wait_for_address(tmp_path, "k", identity, 5) == RECORD


def test_reader_waits_for_a_record_that_it_can_accept(tmp_path: Path) -> None:
    publish_address(tmp_path, "k", RECORD)
    seen: list[int] = []

    def accept(record: AddressRecord) -> str | None:
        seen.append(record.port)
        publish_address(tmp_path, "k", replace(record, port=record.port + 1))
        return "it" if record.port == 3 else None

    assert wait_for_address(tmp_path, "k", accept, 5) == "it"
    assert seen == [1, 2, 3]


def test_nothing_published_is_told_with_the_directory_and_both_ways_out(
    tmp_path: Path,
) -> None:
    with pytest.raises(RendezvousError, match="No such file") as caught:
        wait_for_address(tmp_path, "k", identity, 0)
    text = str(caught.value)
    assert str(tmp_path) in text
    assert "all nodes see" in text
    assert "CLUSTERDDP_RDZV_DIR" in text
    assert "MASTER_ADDR" in text


def test_unreachable_server_is_told_with_its_address(tmp_path: Path) -> None:
    publish_address(tmp_path, "k", RECORD)
    with pytest.raises(RendezvousError, match="gpu001, but no server .* port 1 of 127"):
        wait_for_address(tmp_path, "k", lambda _: None, 0)


def test_record_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_address(tmp_path, "k", RECORD)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(RendezvousError, match=f"belongs to user id {os.getuid()}"):
        wait_for_address(tmp_path, "k", identity, 0)


def test_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RendezvousError, match="cannot write .*CLUSTERDDP_RDZV_DIR"):
        publish_address(tmp_path / "file", "k", RECORD)


def test_unpublishing_in_a_directory_that_is_no_more_is_harmless(
    tmp_path: Path,
) -> None:
    unpublish_address(tmp_path / "gone", "k")


def test_key_tells_meetings_apart() -> None:
    base = step_environ(0, [1, 1])
    variants = [
        base,
        base | {"SLURM_STEP_ID": "1"},
        base | {"SLURM_RESTART_COUNT": "1"},
        base | {"SLURM_CLUSTER_NAME": "other"},
        base | {"SLURM_JOB_ID": "8"},
        base | {"SLURM_STEP_NODELIST": "r1n1"},
    ]
    keys = {rendezvous_key(environ) for environ in variants}
    keys.add(rendezvous_key(base, 1))
    assert len(keys) == 7


def test_key_is_a_file_name() -> None:
    environ = step_environ(0, [1], SLURM_CLUSTER_NAME="../a b")
    assert "/" not in rendezvous_key(environ)


@pytest.mark.parametrize(
    ("environ", "nodes", "expected"),
    [
        ({"CLUSTERDDP_RUN_DIR": "/r", "CLUSTERDDP_ATTEMPT": "0003"}, 2, "/r/attempts/"),
        ({"CLUSTERDDP_RDZV_DIR": "/d", "SLURM_SUBMIT_DIR": "/s"}, 2, "/d"),
        ({"SLURM_SUBMIT_DIR": "/s"}, 2, "/s/.clusterddp/rdzv"),
        ({"CLUSTERDDP_RDZV_DIR": "/d"}, 1, "/d"),
    ],
    ids=["run", "chosen", "submit directory", "chosen on one node"],
)
def test_channel_directory(environ: dict[str, str], nodes: int, expected: str) -> None:
    assert str(channel_directory(environ, nodes)).startswith(expected)


def test_directory_of_one_node_is_private() -> None:
    directory = channel_directory({"SLURM_SUBMIT_DIR": "/s"}, 1)
    assert directory.name == f"clusterddp-{os.geteuid()}"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_local_directory_of_somebody_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(RendezvousError, match="belongs to user id .* expected 54321"):
        channel_directory({}, 1)


def test_unknown_submit_directory_is_where_srun_was_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slurm starts every task in the directory of srun, so the ranks agree on it."""
    monkeypatch.chdir(tmp_path)
    assert channel_directory({}, 2) == tmp_path / ".clusterddp" / "rdzv"


def test_channel_works_without_torch() -> None:
    code = "import sys, clusterddp.dist.channel, clusterddp.dist.address"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Addresses


def test_one_node_listens_on_loopback_alone() -> None:
    with listen(loopback=True) as server:
        assert server.getsockname()[0] == "127.0.0.1"
    assert address_candidates({}, loopback=True) == ["127.0.0.1"]


def test_several_nodes_are_reached_at_each_address() -> None:
    with listen() as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", *address_candidates({}, loopback=False)):
            socket.create_connection((host, port), timeout=5).close()


def test_port_in_use_is_told_with_its_owner() -> None:
    with listen() as server, pytest.raises(RendezvousError) as caught:
        listen(server.getsockname()[1])
    assert "is in use on" in str(caught.value)
    assert "ss -ltnp" in str(caught.value)


def test_port_that_may_not_be_bound_is_an_os_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(PermissionError):
        listen(80)


def resolve_as(monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> None:
    def getaddrinfo(name: str, *_: object, **__: object) -> list[object]:
        if name not in names:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (names[name], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    monkeypatch.setattr(address, "_interface_addresses", lambda: ["192.0.2.9"])


@pytest.mark.parametrize(
    ("names", "candidates"),
    [
        ({"here": "127.0.1.1"}, ["192.0.2.9"]),
        ({"here": "192.0.2.1"}, ["here", "192.0.2.9"]),
        ({"n1": "192.0.2.1", "here": "192.0.2.1"}, ["n1", "here", "192.0.2.9"]),
        ({"n1": "127.0.0.1", "here": "::1"}, ["192.0.2.9"]),
        ({}, ["192.0.2.9"]),
    ],
    ids=["debian", "host", "node and host", "loopback", "nothing resolves"],
)
def test_candidates_leave_out_loopback_and_what_does_not_resolve(
    names: dict[str, str], candidates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_as(monkeypatch, names)
    found = address_candidates({"SLURMD_NODENAME": "n1"}, loopback=False)
    assert found == candidates


def test_route_to_loopback_is_the_loopback_interface() -> None:
    assert source_address("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"


def test_route_and_interface_of_nowhere_are_unknown() -> None:
    assert source_address("no.such.host.invalid") is None
    assert interface_of("192.0.2.254") is None


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("GLOO_SOCKET_IFNAME", "eth9"),
        ("GLOO_SOCKET_IFNAME", "^lo"),
        ("GLOO_SOCKET_IFNAME", "eth0,eth9"),
        ("NCCL_SOCKET_IFNAME", "ib"),
        ("NCCL_SOCKET_IFNAME", "=eth"),
    ],
)
def test_interface_that_is_not_there_is_refused(variable: str, text: str) -> None:
    with pytest.raises(RendezvousError, match=f"{variable}=.*expected of lo, eth0"):
        check_interface_names({variable: text}, ["lo", "eth0"])


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo"),
        ("NCCL_SOCKET_IFNAME", "eth"),
        ("NCCL_SOCKET_IFNAME", "ib,eth"),
        ("NCCL_SOCKET_IFNAME", "=eth0:1"),
        ("NCCL_SOCKET_IFNAME", ""),
    ],
)
def test_interface_that_is_there_is_fine(variable: str, text: str) -> None:
    check_interface_names({variable: text}, ["lo", "eth0"])


# The roll call

ME = Arrival(0, 4, 0, "gpu001", 11, "gloo")


def sign_in_others(store: HashStore, *others: Arrival) -> None:
    for other in others:
        store.set(f"here/{other.rank}", json.dumps(asdict(other)))


def test_missing_ranks_are_named_with_their_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrival, "_let_them_read", lambda *_: None)
    store = HashStore()
    sign_in_others(store, replace(ME, rank=1, pid=12))
    with pytest.raises(RendezvousError) as caught:
        roll_call(store, ME, [("gpu001", 2), ("gpu002", 2)], SECOND / 10)
    assert "ranks 2-3 of 4 did not arrive within 0.1 s" in str(caught.value)
    assert "expected on gpu002 (0 of 2 came)" in str(caught.value)
    assert "arrived: ranks 0-1 from gpu001" in str(caught.value)


def test_two_ranks_on_one_gpu_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "_let_them_read", lambda *_: None)
    store, me = HashStore(), replace(ME, world_size=3, gpu="GPU-1")
    sign_in_others(store, replace(me, rank=1, host="gpu002"), replace(me, rank=2))
    with pytest.raises(RendezvousError, match="ranks 0 and 2 use the same GPU GPU-1"):
        roll_call(store, me, [], SECOND)


def test_second_process_of_a_rank_is_told_who_was_first() -> None:
    store = HashStore()
    sign_in_others(store, replace(ME, rank=1, pid=12))
    store.set("terms", "world size 4, backend gloo")
    with pytest.raises(RendezvousError, match="came twice: process 12 .* process 13"):
        roll_call(store, replace(ME, rank=1, pid=13), [], SECOND)
    assert b"came twice" in store.get("fault")


@pytest.mark.parametrize("change", [{"world_size": 8}, {"backend": "nccl"}], ids=str)
def test_ranks_that_disagree_are_told_both_words(change: dict[str, object]) -> None:
    store = HashStore()
    store.set("terms", "world size 4, backend gloo")
    other = replace(ME, rank=1, **change)  # type: ignore[arg-type]
    with pytest.raises(RendezvousError, match="but another rank has world size 4"):
        roll_call(store, other, [], SECOND)


def test_rank_zero_that_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "_FAREWELL_S", 0.0)
    with pytest.raises(
        RendezvousError, match="rank 1 heard nothing from rank 0 within"
    ):
        roll_call(HashStore(), replace(ME, rank=1), [], SECOND / 10)


def test_rank_numbers_are_written_short() -> None:
    assert arrival._ranks([3]) == "rank 3"  # noqa: SLF001
    assert arrival._ranks([0, 1, 2, 7]) == "ranks 0-2, 7"  # noqa: SLF001


def test_nodes_of_a_step_and_their_tasks() -> None:
    assert node_tasks(step_environ(0, [3, 1])) == [("gpu001", 3), ("gpu002", 1)]
    assert node_tasks({}) == []


# Meetings of real processes


def test_one_port_alone_is_left_over_and_published_instead() -> None:
    place = meeting_place(step_environ(0, [2], MASTER_PORT="1234"), 1)
    assert place.fixed is None
    assert place.loopback


@pytest.mark.parametrize("port", ["0", "70000", "abc", "-1"])
def test_master_port_that_is_none_is_refused(port: str) -> None:
    environ = step_environ(0, [2], MASTER_PORT=port, MASTER_ADDR="gpu001")
    with pytest.raises(RendezvousError, match=f"found MASTER_PORT={port}, expected"):
        meeting_place(environ, 2)


@pytest.fixture
def silent_port() -> object:
    """Give a port where somebody takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("kind", ["dead", "silent", "foreign", "another cookie"])
def test_stale_record_is_seen_through(
    kind: str,
    tmp_path: Path,
    silent_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_ANSWER", timedelta(seconds=0.5))
    foreign = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    if kind == "another cookie":
        foreign.set("clusterddp/cookie", "other")
    with listen(loopback=True) as closed:
        dead = closed.getsockname()[1]
    port = {"dead": dead, "silent": silent_port}.get(kind, foreign.port)
    keys = foreign.num_keys()
    environs = [
        step_environ(r, [2], CLUSTERDDP_RDZV_DIR=str(tmp_path)) for r in range(2)
    ]
    place = meeting_place(environs[0], 1)
    publish_address(tmp_path, place.key, replace(RECORD, port=port))
    met: list[object] = []
    joiner = threading.Thread(
        target=lambda: met.append(meet(place, 1, 2, 20 * SECOND)), daemon=True
    )
    joiner.start()
    time.sleep(0.1)
    host = meet(place, 0, 2, 20 * SECOND)
    joiner.join(20)
    assert [meeting.port for meeting in met] == [host.port]  # type: ignore[attr-defined]
    assert foreign.num_keys() == keys


def test_fixed_address_is_kept_to() -> None:
    with listen() as free:
        port = free.getsockname()[1]
    environs = [
        step_environ(r, [1, 1], MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        for r in range(2)
    ]

    def body() -> object:
        rank = int(os.environ["SLURM_PROCID"])
        place = meeting_place(os.environ, 2)
        meeting = meet(place, rank, 2, 20 * SECOND)
        meeting.store.set(f"done/{rank}", "1")
        meeting.store.wait(["done/0", "done/1"], 20 * SECOND)
        if rank == 0:
            time.sleep(0.3)
        return [meeting.address, meeting.port]

    outcomes = run_ranks(body, environs)
    assert [outcome.value for outcome in outcomes] == [["127.0.0.1", port]] * 2


def test_ports_of_the_site_are_kept_to(tmp_path: Path) -> None:
    """Of the range the first free one; a wider range is asked for if all are taken."""
    with free_port() as held:
        low = held.number
    directory = {"CLUSTERDDP_RDZV_DIR": str(tmp_path)}
    environ = step_environ(0, [1, 1], **directory)
    place = meeting_place(environ, 2, ports=(low, low))
    first = meet(place, 0, 2, SECOND)
    assert first.port == low
    with pytest.raises(RendezvousError) as caught:
        meet(place, 0, 2, SECOND)
    assert f"no free port from {low} to {low} (port_range)" in str(caught.value)
    assert "widen dist_params.port_range" in str(caught.value)
    wider = meet(replace(place, ports=(low, 65535)), 0, 2, SECOND)
    assert wider.port > low


def test_port_range_that_may_not_be_bound_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Low ports belong to root; another trouble of the machine is passed on."""

    def fail(code: int) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(socket, "create_server", refuse)

    fail(errno.EACCES)
    with pytest.raises(RendezvousError, match="no free port from 1 to 2"):
        listen_within((1, 2))
    fail(errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        listen_within((1, 2))


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_literal_as_the_fixed_address(host: str) -> None:
    """Bare, as torch takes it, or in the brackets of a URL."""
    with free_port() as held:
        fixed = {"MASTER_ADDR": host, "MASTER_PORT": str(held)}
        place = meeting_place(step_environ(0, [1, 1], **fixed), 2)
        first = meet(place, 0, 2, 20 * SECOND)
    other = meet(place, 1, 2, 20 * SECOND)
    other.store.set("k", "v")
    assert first.store.get("k") == b"v"
    assert other.address == "::1"


def test_store_of_another_step_at_the_fixed_address_is_not_joined() -> None:
    other = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    other.set("clusterddp/cookie", "the key of another step")
    environ = step_environ(
        1, [1, 1], MASTER_ADDR="127.0.0.1", MASTER_PORT=str(other.port)
    )
    with pytest.raises(RendezvousError, match=f"answered at 127.0.0.1:{other.port}"):
        meet(meeting_place(environ, 2), 1, 2, SECOND / 2)


def test_launchers_of_two_nodes_share_a_store(tmp_path: Path) -> None:
    def body() -> object:
        world = world_from_environment("slurm", os.environ)
        store = meet_store(tmp_path, world, 20 * SECOND, name="agents")
        store.set(f"agent/{world.rank}", "here")
        store.wait(["agent/0", "agent/1"], 20 * SECOND)
        if world.rank == 0:
            time.sleep(0.3)
        return world.num_nodes

    outcomes = run_ranks(body, [step_environ(r, [1, 1]) for r in range(2)])
    assert [outcome.value for outcome in outcomes] == [2, 2]
    assert not list(tmp_path.iterdir())


def test_missing_launcher_is_named_on_its_node(tmp_path: Path) -> None:
    def body() -> object:
        world = world_from_environment("slurm", os.environ)
        return meet_store(tmp_path, world, SECOND, name="agents").port

    environs = [step_environ(r, [1, 1, 1]) for r in (0, 2)]
    for outcome in run_ranks(body, environs):
        assert "rank 1 of 3 did not arrive within 1 s" in outcome.error
        assert "gpu002 (0 of 1 came)" in outcome.error
