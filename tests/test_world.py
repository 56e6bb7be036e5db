"""Who this process is, for every shape in which Slurm and torchrun start one."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.dist.channel import rendezvous_key
from clusterddp.dist.world import (
    World,
    detect_launcher,
    parse_tasks_per_node,
    world_from_environment,
)
from clusterddp.errors import WorldError
from tests.forked import step_environ, torchrun_environ

SHAPES = json.loads(
    (Path(__file__).parent / "fixtures/slurm_env_22.05.json").read_text()
)
STEPS = [name for name in SHAPES if SHAPES[name]["expected"][0]["in_step"]]
SHELLS = [name for name in SHAPES if name not in STEPS]
TORCHRUN = torchrun_environ(1, 4, 29500) | {"TORCHELASTIC_RUN_ID": "none"}


def expected_world(true: dict[str, int], launcher: str) -> World:
    fields = ("rank", "world_size", "local_rank", "local_world_size")
    numbers = {name: true[name] for name in fields}
    return World(
        **numbers,
        node_rank=true.get("node_rank", 0),
        num_nodes=true["nodes"],
        launcher=launcher,
    )


def ranks_of(shape: str) -> list[tuple[dict[str, str], dict[str, int]]]:
    """Give the captured environment and the truth of each rank of a shape."""
    expected = SHAPES[shape]["expected"]
    nodes = len({true.get("node_rank", 0) for true in expected})
    truths = [true | {"nodes": nodes} for true in expected]
    return list(zip(SHAPES[shape]["environ"], truths, strict=True))


@pytest.mark.parametrize("launcher", ["slurm", "auto", None])
@pytest.mark.parametrize("shape", STEPS)
def test_step_gives_each_rank_its_place(shape: str, launcher: str | None) -> None:
    for environ, true in ranks_of(shape):
        world = world_from_environment(launcher, environ)
        assert world == expected_world(true, "slurm")


@pytest.mark.parametrize("shape", SHELLS)
def test_shell_without_srun_is_alone(shape: str) -> None:
    for environ, true in ranks_of(shape):
        assert world_from_environment(None, environ) == expected_world(true, "none")


@pytest.mark.parametrize("shape", SHELLS)
def test_slurm_asked_for_in_a_shell_of_many_tasks_is_refused(shape: str) -> None:
    environ = SHAPES[shape]["environ"][0]
    with pytest.raises(WorldError, match=r"has \d tasks, but .* with `srun`"):
        world_from_environment("slurm", environ)


def test_batch_script_without_task_count_is_refused_from_the_node_counts() -> None:
    environ = {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_NNODES": "2"}
    environ["SLURM_TASKS_PER_NODE"] = "1(x2)"
    with pytest.raises(WorldError, match="job 5 has 2 tasks"):
        world_from_environment("slurm", environ)


def test_batch_script_of_one_task_is_a_world_of_one() -> None:
    world = world_from_environment("slurm", {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "1"})
    assert world == World(0, 1, 0, 1, 0, 1, "slurm")


@pytest.mark.parametrize("shape", STEPS)
def test_all_ranks_of_a_step_meet_under_one_key(shape: str) -> None:
    assert len({rendezvous_key(environ) for environ, _ in ranks_of(shape)}) == 1


def test_nothing_in_the_environment_is_a_world_of_one() -> None:
    assert world_from_environment(None, {}) == World(0, 1, 0, 1, 0, 1, "none")


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("4", [4]),
        ("4(x2)", [4, 4]),
        ("2(x3),1", [2, 2, 2, 1]),
        ("1(x2),3", [1, 1, 3]),
        ("3,1", [3, 1]),
        ("2, 1", [2, 1]),
    ],
    ids=repr,
)
def test_tasks_per_node_are_expanded(text: str, counts: list[int]) -> None:
    assert parse_tasks_per_node(text) == counts


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), min_size=1))
def test_tasks_per_node_round_trip(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{n}(x{m})" if m > 1 else f"{n}" for n, m in runs)
    assert parse_tasks_per_node(text) == [n for n, m in runs for _ in range(m)]


@pytest.mark.parametrize("text", ["", "x", "2(3)", "2(x)", "2,,1", "-1", "2(x2", "1.5"])
def test_tasks_per_node_in_another_form_are_refused(text: str) -> None:
    with pytest.raises(WorldError, match=r"SLURM_STEP_TASKS_PER_NODE: found .* N\(xM"):
        parse_tasks_per_node(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_PROCID": "4"}, "SLURM_PROCID=4, expected .* less than 4"),
        ({"SLURM_PROCID": "-1"}, "SLURM_PROCID=-1, expected .* at least 0"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID=x, expected a whole number"),
        ({"SLURM_PROCID": "\u0661"}, "expected a whole number"),
        ({"SLURM_NODEID": "2"}, "SLURM_NODEID=2, expected .* less than 2"),
        ({"SLURM_LOCALID": "3"}, "SLURM_LOCALID=3, expected .* less than 3"),
        ({"SLURM_STEP_NUM_TASKS": "6"}, "NUM_TASKS=6, but .*=3,1 adds up to 4"),
        ({"SLURM_STEP_ID": "zero"}, "SLURM_STEP_ID=zero, expected a whole number"),
        ({"SLURM_PROCID": ""}, "SLURM_PROCID not set, expected with .*`srun`"),
        (
            {"SLURM_PROCID": None, "SLURM_NODEID": None},
            "SLURM_PROCID, SLURM_NODEID not set",
        ),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else ",".join(value),
)
def test_contradictory_step_is_refused(
    changes: dict[str, str | None], message: str
) -> None:
    with pytest.raises(WorldError, match=message):
        world_from_environment(None, step_environ(0, [3, 1], **changes))


def test_slurm_asked_for_outside_slurm_is_refused() -> None:
    with pytest.raises(WorldError, match=r"SLURM_STEP_ID, .* not set.*`srun`"):
        world_from_environment("slurm", {})


def test_step_counts_of_an_old_slurm_are_enough() -> None:
    changes = {"SLURM_STEP_TASKS_PER_NODE": None, "SLURM_TASKS_PER_NODE": "1(x2)"}
    world = world_from_environment("slurm", step_environ(1, [1, 1], **changes))
    assert (world.node_rank, world.local_world_size) == (1, 1)


def test_unknown_launcher_is_refused() -> None:
    with pytest.raises(WorldError, match="found 'mpi', expected slurm, pytorch, none"):
        world_from_environment("mpi", {})


def test_stale_torchrun_variables_lose_against_the_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stale = {"RANK": "7", "WORLD_SIZE": "16", "MASTER_PORT": "1234"}
    with caplog.at_level(logging.WARNING):
        world = world_from_environment(None, step_environ(1, [2], **stale))
    assert (world.rank, world.world_size, world.launcher) == (1, 2, "slurm")
    assert "RANK=7, WORLD_SIZE=16: left over" in caplog.text


def test_complete_but_stale_torchrun_variables_lose_against_the_step() -> None:
    stale = torchrun_environ(7, 16, 1234) | {"LOCAL_RANK": "7"}
    world = world_from_environment(None, step_environ(1, [2], **stale))
    assert (world.rank, world.launcher) == (1, "slurm")


def test_variables_that_agree_with_the_step_are_the_pytorch_launcher() -> None:
    environ = step_environ(1, [2], **torchrun_environ(1, 2, 1234))
    assert world_from_environment(None, environ).launcher == "pytorch"


@pytest.mark.parametrize("launcher", ["pytorch", "auto"])
def test_torchrun_gives_each_rank_its_place(launcher: str) -> None:
    environ = TORCHRUN | {"LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
    environ |= {"RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1"}
    world = world_from_environment(launcher, environ)
    assert world == World(3, 4, 1, 2, 1, 2, "pytorch")


def test_launcher_without_local_world_size_is_one_node() -> None:
    environ = {n: v for n, v in TORCHRUN.items() if n != "LOCAL_WORLD_SIZE"}
    assert world_from_environment(None, environ) == World(1, 4, 1, 4, 0, 1, "pytorch")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "-1"}, "RANK=-1, expected .* at least 0"),
        ({"RANK": "4"}, "RANK=4, expected .* less than 4"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0, expected .* at least 1"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT=0, expected .* at least 1"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000, expected .* less than 65536"),
        ({"MASTER_PORT": "abc"}, "MASTER_PORT=abc, expected a whole number"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK=4, expected .* less than 4"),
        ({"LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE=5, expected .* less than 5"),
        ({"LOCAL_RANK": ""}, "LOCAL_RANK not set, .* --use-env"),
        (
            {"MASTER_ADDR": "", "MASTER_PORT": ""},
            "MASTER_ADDR, MASTER_PORT not set, expected with RANK, WORLD_SIZE, LOCAL",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else ",".join(value),
)
def test_contradictory_torchrun_is_refused(
    changes: dict[str, str], message: str
) -> None:
    with pytest.raises(WorldError, match=message):
        world_from_environment("pytorch", TORCHRUN | changes)


def test_pytorch_without_torchrun_says_how_to_start_it() -> None:
    with pytest.raises(WorldError, match="RANK, .* are not set, .* with `torchrun --n"):
        world_from_environment("pytorch", {"PATH": "/bin"})


def test_half_a_torchrun_environment_is_refused_not_run_alone() -> None:
    with pytest.raises(WorldError, match="LOCAL_RANK, MASTER_ADDR, MASTER_PORT not"):
        world_from_environment(None, {"RANK": "1", "WORLD_SIZE": "4"})


def test_port_zero_will_do_for_a_world_of_one() -> None:
    environ = torchrun_environ(0, 1, 0)
    assert world_from_environment(None, environ).world_size == 1


def test_torchrun_in_every_srun_task_is_refused() -> None:
    torchrun = TORCHRUN | {"GROUP_WORLD_SIZE": "1"}
    with pytest.raises(WorldError, match="each of 2 srun tasks .* group of 1 "):
        world_from_environment(None, step_environ(0, [1, 1], **torchrun))


def test_torchrun_as_one_task_per_node_is_right() -> None:
    torchrun = TORCHRUN | {"LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
    world = world_from_environment(None, step_environ(0, [1, 1], **torchrun))
    assert (world.rank, world.num_nodes, world.launcher) == (1, 2, "pytorch")


@pytest.mark.parametrize("name", ["4294967290", "4294967291", "4294967292"])
def test_special_step_is_no_srun_step(name: str) -> None:
    assert detect_launcher(step_environ(0, [1], SLURM_STEP_ID=name)) == "none"


def test_world_comes_without_torch() -> None:
    code = "import sys, clusterddp.dist.world as w; from clusterddp.dist import World"
    code += ", publish_address; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
