"""The process group forms under every launcher, or says why it did not."""

import os
import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

import clusterddp.dist
from clusterddp.dist import (
    clone_store,
    default_store,
    device,
    free_port,
    init_dist,
    new_group,
    shutdown,
)
from clusterddp.dist.address import is_hostname_loopback
from clusterddp.dist.init import ArgumentError
from clusterddp.dist.session import current_session, reconnect
from clusterddp.errors import LaunchError, RendezvousError, UsageError, WorldError
from tests.forked import run_ranks, step_environ, torchrun_environ

EXPORTED = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
    *("GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
)


def train() -> dict[str, object]:
    """Form the group, sum the ranks, and report what this rank saw."""
    before = dict(os.environ)
    world = init_dist(rendezvous_timeout=timedelta(seconds=20))
    total = torch.tensor(float(world.rank + 1))
    dist.all_reduce(total)
    seen: dict[str, object] = {name: os.environ.get(name) for name in EXPORTED}
    seen |= {"sum": total.item(), "launcher": world.launcher, "device": str(device())}
    seen["gloo"] = os.environ.get("GLOO_SOCKET_IFNAME")
    shutdown()
    assert dict(os.environ) == before, "the environment is restored"
    assert not dist.is_initialized()
    return seen


def seen_by(environs: list[dict[str, str]]) -> list[dict[str, object]]:
    outcomes = run_ranks(train, environs)
    assert [outcome.error for outcome in outcomes] == [""] * len(environs)
    return [outcome.value for outcome in outcomes]  # type: ignore[misc]


@pytest.mark.parametrize("tasks", [1, 2, 3, 4])
def test_srun_step_on_one_node(tasks: int) -> None:
    seen = seen_by([step_environ(rank, [tasks]) for rank in range(tasks)])
    assert {rank["sum"] for rank in seen} == {tasks * (tasks + 1) / 2}
    assert [rank["RANK"] for rank in seen] == [str(rank) for rank in range(tasks)]
    assert {rank["MASTER_ADDR"] for rank in seen} == {"127.0.0.1"}
    assert len({rank["MASTER_PORT"] for rank in seen}) == 1
    assert {rank["LOCAL_WORLD_SIZE"] for rank in seen} == {str(tasks)}
    assert {rank["device"] for rank in seen} == {"cpu"}


def test_srun_step_on_uneven_nodes_meets_in_the_attempt(tmp_path: Path) -> None:
    run = {"CLUSTERDDP_RUN_DIR": str(tmp_path), "CLUSTERDDP_ATTEMPT": "0003"}
    seen = seen_by([step_environ(rank, [2, 1], **run) for rank in range(3)])
    assert {rank["sum"] for rank in seen} == {6.0}
    assert [rank["NODE_RANK"] for rank in seen] == ["0", "0", "1"]
    assert [rank["LOCAL_WORLD_SIZE"] for rank in seen] == ["2", "2", "1"]
    assert [rank["LOCAL_RANK"] for rank in seen] == ["0", "1", "0"]
    assert len({rank["MASTER_PORT"] for rank in seen}) == 1
    rendezvous = tmp_path / "attempts/0003/rendezvous"
    assert not list(rendezvous.iterdir()), "rank 0 takes its record away"
    # Where gloo would bind to 127.0.1.1 by itself it is told the interface.
    needed = is_hostname_loopback()
    assert all(bool(rank["gloo"]) == needed for rank in seen)


def test_rank_zero_may_be_on_any_node(tmp_path: Path) -> None:
    places = [("2", "0"), ("0", "0"), ("0", "1"), ("1", "0")]
    environs = [
        step_environ(0, [2, 1, 1], CLUSTERDDP_RDZV_DIR=str(tmp_path))
        | {"SLURM_PROCID": str(rank), "SLURM_NODEID": node, "SLURM_LOCALID": local}
        for rank, (node, local) in enumerate(places)
    ]
    seen = seen_by(environs)
    assert {rank["sum"] for rank in seen} == {10.0}
    assert [rank["NODE_RANK"] for rank in seen] == ["2", "0", "0", "1"]


def test_two_steps_of_one_job_meet_apart(tmp_path: Path) -> None:
    environs = [
        step_environ(r, [1, 1], SLURM_STEP_ID=s, CLUSTERDDP_RDZV_DIR=str(tmp_path))
        for s in ("0", "1")
        for r in range(2)
    ]
    seen = seen_by(environs)
    ports = [rank["MASTER_PORT"] for rank in seen]
    assert ports[0] == ports[1] != ports[2] == ports[3]


def test_stale_torchrun_variables_do_no_harm() -> None:
    stale = {"RANK": "7", "WORLD_SIZE": "16", "MASTER_PORT": "1234"}
    stale["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    seen = seen_by([step_environ(rank, [2], **stale) for rank in range(2)])
    assert [(rank["RANK"], rank["WORLD_SIZE"]) for rank in seen] == [
        ("0", "2"),
        ("1", "2"),
    ]


def test_fixed_address_is_honoured_under_srun() -> None:
    with free_port() as held:
        port = str(held)
        fixed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        seen = seen_by([step_environ(rank, [2], **fixed) for rank in range(2)])
    assert {rank["MASTER_PORT"] for rank in seen} == {port}


@pytest.mark.parametrize("ranks", [1, 2])
def test_pytorch_launcher_leaves_the_environment_alone(ranks: int) -> None:
    with free_port() as held:
        port = held.number
        seen = seen_by([torchrun_environ(rank, ranks, port) for rank in range(ranks)])
    assert {rank["sum"] for rank in seen} == {ranks * (ranks + 1) / 2}
    assert {rank["launcher"] for rank in seen} == {"pytorch"}
    assert {rank["MASTER_PORT"] for rank in seen} == {str(port)}
    assert {rank["NODE_RANK"] for rank in seen} == {None}


@pytest.mark.parametrize("ranks", [1, 2])
def test_second_meeting_under_the_pytorch_launcher(ranks: int) -> None:
    """The same variables, the same port: rank 0 has left it by then."""

    def body() -> object:
        return [train()["sum"], train()["sum"]]

    with free_port() as port:
        environs = [torchrun_environ(r, ranks, port.number) for r in range(ranks)]
        outcomes = run_ranks(body, environs)
    assert [outcome.error for outcome in outcomes] == [""] * ranks
    assert [outcome.value for outcome in outcomes] == [
        [sum(range(ranks + 1))] * 2
    ] * ranks


def test_second_meeting_while_rank_0_still_leaves_the_first() -> None:
    """The others find the old store open, see it close, and come to the new one."""

    def body() -> object:
        world = init_dist(rendezvous_timeout=timedelta(seconds=20))
        held = [default_store()] if world.rank == 0 else []
        shutdown()
        time.sleep(0.5 * len(held))
        held.clear()
        return train()["sum"]

    with free_port() as port:
        environs = [torchrun_environ(r, 3, port.number) for r in range(3)]
        outcomes = run_ranks(body, environs)
    assert [outcome.error for outcome in outcomes] == [""] * 3
    assert [outcome.value for outcome in outcomes] == [6.0] * 3


def test_second_meeting_that_rank_0_never_comes_to() -> None:
    """The others say so, as at a first one."""

    def body() -> object:
        rank = init_dist(rendezvous_timeout=timedelta(seconds=20)).rank
        shutdown()
        return init_dist(rendezvous_timeout=timedelta(seconds=1)).rank if rank else 0

    with free_port() as port:
        environs = [torchrun_environ(r, 2, port.number) for r in range(2)]
        first, second = run_ranks(body, environs)
    assert first.error == ""
    assert second.error.startswith("RendezvousError: rendezvous: ")
    assert second.seconds < 30


def test_alone_without_any_launcher() -> None:
    (seen,) = seen_by([{}])
    assert (seen["sum"], seen["launcher"], seen["MASTER_PORT"]) == (1.0, "none", None)


def test_launcher_comes_from_the_environment() -> None:
    environ = step_environ(0, [2], CLUSTERDDP_LAUNCHER="none")
    assert seen_by([environ])[0]["launcher"] == "none"


def test_second_meeting_of_the_same_processes() -> None:
    def body() -> object:
        return [train()["sum"], train()["sum"]]

    outcomes = run_ranks(body, [step_environ(rank, [2]) for rank in range(2)])
    assert [outcome.value for outcome in outcomes] == [[3.0, 3.0]] * 2


def short() -> object:
    return init_dist(rendezvous_timeout=timedelta(seconds=1)).rank


def patient() -> object:
    """Where the outcome does not hang on the time: a busy machine may take it."""
    return init_dist(rendezvous_timeout=timedelta(seconds=30)).rank


def test_missing_rank_is_named_on_every_rank(tmp_path: Path) -> None:
    environs = [
        step_environ(rank, [2, 2], CLUSTERDDP_RDZV_DIR=str(tmp_path))
        for rank in (0, 1, 3)
    ]
    outcomes = run_ranks(short, environs)
    assert not list(tmp_path.iterdir()), "no record outlives its server"
    for outcome in outcomes:
        assert "RendezvousError: rendezvous: rank 2 of 4 did not" in outcome.error
        assert "expected on gpu002 (1 of 2 came)" in outcome.error
        assert outcome.seconds < 4


def test_missing_rank_zero_is_named(tmp_path: Path) -> None:
    environ = step_environ(1, [1, 1], CLUSTERDDP_RDZV_DIR=str(tmp_path))
    (outcome,) = run_ranks(short, [environ])
    assert "rank 0 published no usable address within 1 s" in outcome.error


def test_rank_that_comes_twice_is_named_on_every_rank() -> None:
    environs = [step_environ(rank, [3]) for rank in (0, 1, 1)]
    outcomes = run_ranks(patient, environs)
    assert all("rank 1" in outcome.error for outcome in outcomes)
    assert "rank 1 came twice: process" in outcomes[0].error


def test_ranks_of_different_worlds_are_named() -> None:
    environs = [step_environ(0, [2]), step_environ(1, [3])]
    for outcome in run_ranks(patient, environs):
        assert "RendezvousError" in outcome.error
        assert "world size 3" in outcome.error
        assert "world size 2" in outcome.error


def test_rank_zero_that_dies_is_told_to_the_others(tmp_path: Path) -> None:
    def body() -> object:
        if os.environ["SLURM_PROCID"] == "0":
            threading.Timer(0.5, os._exit, [9]).start()
        return init_dist(rendezvous_timeout=timedelta(seconds=20)).rank

    environs = [
        step_environ(rank, [1, 1, 1], CLUSTERDDP_RDZV_DIR=str(tmp_path))
        for rank in (0, 1)
    ]
    outcomes = run_ranks(body, environs)
    assert "rank 1 lost rank 0 while waiting for the others" in outcomes[1].error
    assert outcomes[1].seconds < 10


def test_missing_peer_under_torchrun_is_told() -> None:
    with free_port() as port:
        (outcome,) = run_ranks(short, [torchrun_environ(0, 2, port.number)])
    assert "env:// at 127.0.0.1:" in outcome.error
    assert "failed on rank 0 of 2" in outcome.error


def test_port_in_use_under_srun_is_told_by_rank_zero() -> None:
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
        fixed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        (outcome,) = run_ranks(short, [step_environ(0, [1, 1], **fixed)])
    assert f"port {port} (MASTER_PORT) is in use" in outcome.error


def test_rank_zero_leaves_last() -> None:
    def body() -> object:
        world = init_dist()
        if world.rank:
            time.sleep(0.5)
            default_store().set("late", "1")
        start = time.monotonic()
        shutdown()
        return time.monotonic() - start

    outcomes = run_ranks(body, [step_environ(rank, [2]) for rank in range(2)])
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert 0.3 < outcomes[0].value < 9  # type: ignore[operator]


@pytest.mark.parametrize("timeout", [timedelta(seconds=17), 17, "17s"], ids=repr)
def test_timeout_holds_for_store_group_and_subgroups(timeout: object) -> None:
    """Also of ours; torch's own new_group starts from 30 minutes again."""

    def limit(group: object) -> float:
        backend = group._get_backend(torch.device("cpu"))  # type: ignore[attr-defined]  # noqa: SLF001
        seconds: float = backend.options._timeout.total_seconds()  # noqa: SLF001
        return seconds

    def body() -> object:
        init_dist(timeout=timeout)  # type: ignore[arg-type]
        seconds = [
            default_store().timeout.total_seconds(),  # type: ignore[attr-defined]
            limit(dist.distributed_c10d._get_default_group()),  # noqa: SLF001
            limit(new_group()),
            limit(new_group([0, 1])),
            limit(new_group(timeout="3m")),
            limit(dist.new_group()),
        ]
        shutdown()
        return seconds

    outcomes = run_ranks(body, [step_environ(rank, [2]) for rank in range(2)])
    expected = [17.0, 17.0, 17.0, 17.0, 180.0, 1800.0]
    assert [outcome.value for outcome in outcomes] == [expected] * 2


def test_clone_waits_without_blocking_the_store() -> None:
    def body() -> object:
        world = init_dist()
        clone = clone_store(default_store())
        waiter = threading.Thread(target=lambda: clone.wait(["bell"]))
        waiter.start()
        time.sleep(0.2)
        default_store().set(f"free/{world.rank}", "1")
        default_store().wait(["free/0", "free/1"], timedelta(seconds=5))
        again = reconnect(current_session())
        again.set("bell", "1")
        waiter.join(5)
        ended = not waiter.is_alive()
        shutdown()
        return ended

    outcomes = run_ranks(body, [step_environ(rank, [2]) for rank in range(2)])
    assert [outcome.value for outcome in outcomes] == [True, True]


def test_world_of_one_clones_to_the_same_store() -> None:
    def body() -> object:
        init_dist("none")
        store = default_store()
        session = replace(current_session(), base=HashStore())
        with pytest.raises(LaunchError, match="found a HashStore, expected a TCPStore"):
            reconnect(session)
        same = clone_store(store) is store
        shutdown()
        return same

    assert run_ranks(body, [{}])[0].value is True


@pytest.mark.parametrize("name", ["timeout", "rendezvous_timeout"])
@pytest.mark.parametrize("value", ["30", None, 0, True], ids=repr)
def test_timeout_that_is_none_is_refused_before_anything(
    name: str, value: object
) -> None:
    with pytest.raises(ArgumentError, match=f"{name}=") as caught:
        init_dist("none", **{name: value})  # type: ignore[arg-type]
    assert isinstance(caught.value, UsageError | TypeError)
    assert not dist.is_initialized()


def test_what_the_launcher_decides_is_refused_as_an_argument() -> None:
    with pytest.raises(ArgumentError, match="found rank, store, expected them to"):
        init_dist("none", rank=0, store=None)


def test_second_init_is_refused() -> None:
    def body() -> object:
        init_dist("none")
        return init_dist("none").rank

    assert "a process group exists already" in run_ranks(body, [{}])[0].error


def test_failed_init_leaves_no_trace() -> None:
    def body() -> object:
        before = dict(os.environ)
        for _ in range(2):
            with pytest.raises(ValueError, match="group_name"):
                init_dist("slurm", pg_options=None, group_name=object())
        return dict(os.environ) == before

    def broken(*_: object, **__: object) -> None:
        message = "group_name"
        raise ValueError(message)

    real, dist.init_process_group = dist.init_process_group, broken
    try:
        outcome = run_ranks(body, [step_environ(0, [1])])[0]
    finally:
        dist.init_process_group = real
    assert outcome.value is True, outcome.error


def test_wrong_world_is_refused_before_anything_is_waited_for() -> None:
    with pytest.raises(WorldError, match="found 'mpi'"):
        init_dist("mpi")


def test_shutdown_without_a_group_does_nothing() -> None:
    shutdown()


def test_nothing_is_there_before_init() -> None:
    for function in (device, default_store):
        with pytest.raises(LaunchError, match="expected init_dist"):
            function()


def test_public_names_are_exact() -> None:
    for name in clusterddp.dist.__all__:
        assert callable(getattr(clusterddp.dist, name))
    assert sorted(clusterddp.dist._HOMES) == clusterddp.dist.__all__  # noqa: SLF001
    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        _ = clusterddp.dist.no_such


def test_errors_are_launch_errors_of_exit_code_three() -> None:
    assert issubclass(RendezvousError, LaunchError)
    assert RendezvousError.exit_code == 3
