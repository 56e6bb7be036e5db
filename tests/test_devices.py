"""Which device a rank takes, for every way in which Slurm was seen to bind GPUs."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from clusterddp.dist import World, devices, init
from clusterddp.dist.devices import choose_device, choose_index
from clusterddp.dist.world import world_from_environment
from clusterddp.errors import LaunchError

WORLD = World(0, 2, 0, 2, 0, 1, "slurm")
SHAPES = json.loads(
    (Path(__file__).parent / "fixtures/slurm_env_22.05.json").read_text()
)
CVD = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("visible", "on_node", "local_rank", "index"),
    [
        (2, 2, 0, 0),
        (2, 2, 1, 1),
        (1, 2, 0, 0),
        (1, 2, 1, 0),
        (2, 4, 1, 0),
        (1, 1, 0, 0),
        (8, 8, 7, 7),
    ],
)
def test_device_index(visible: int, on_node: int, local_rank: int, index: int) -> None:
    assert choose_index(visible, on_node, local_rank) == index


@pytest.mark.parametrize(
    ("visible", "local_rank", "message"),
    [(0, 0, "found no visible GPU"), (2, 2, "local rank 2 needs 3 GPUs, but 2 are")],
)
def test_rank_without_a_gpu_is_refused(
    visible: int, local_rank: int, message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        choose_index(visible, visible, local_rank)


@pytest.mark.parametrize(
    ("backend", "visible", "environ", "launcher", "expected"),
    [
        ("gloo", 2, {}, "slurm", "cpu"),
        ("mpi", 2, {}, "slurm", "cpu"),
        ("nccl", 2, {"SLURM_GPUS_ON_NODE": "2"}, "slurm", "cuda:1"),
        ("nccl", 1, {"SLURM_GPUS_ON_NODE": "2"}, "slurm", "cuda:0"),
        ("nccl", 2, {"SLURM_GPUS_ON_NODE": "4"}, "pytorch", "cuda:1"),
        ("nccl", 2, {"SLURM_GPUS_ON_NODE": "gpu:4"}, "slurm", "cuda:1"),
        ("cpu:gloo,cuda:nccl", 2, {}, "slurm", "cuda:1"),
        ("other", 0, {}, "slurm", "cpu"),
    ],
)
def test_device_of_a_backend(
    backend: str,
    visible: int,
    environ: Mapping[str, str],
    launcher: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "_visible", lambda: visible)
    world = replace(WORLD, local_rank=1, launcher=launcher)
    assert str(choose_device(backend, world, environ)) == expected


def test_nccl_without_a_gpu_is_refused() -> None:
    with pytest.raises(LaunchError, match="found no visible GPU"):
        choose_device("nccl", WORLD, {})


# Captured shapes: the fake count is the number of entries of CUDA_VISIBLE_DEVICES.

CAPTURED: dict[str, list[str | None]] = {
    "gpus_per_node_2": ["0", "1", "0", "1"],
    "gpus_per_task_1": ["0", "1", "0", "1"],
    "gpu_bind_single1": ["0", "0", "1", "1"],
    "gpu_bind_map": ["3", "1"],
    "shared_node_gpus_2_3": ["2", "3"],
    "oversubscribed_4tasks_2gpus": ["0", "1", None, None],
}


def taken(environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Give the entry of CUDA_VISIBLE_DEVICES that a rank takes; None if refused."""
    entries = environ[CVD].split(",")
    monkeypatch.setattr(devices, "_visible", lambda: len(entries))
    try:
        chosen = choose_device("nccl", world_from_environment(None, environ), environ)
    except LaunchError as error:
        assert f"but {len(entries)} are visible" in str(error)  # noqa: PT017
        return None
    return entries[chosen.index]


@pytest.mark.parametrize("shape", CAPTURED)
def test_captured_shape_gives_each_rank_its_gpu(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No two ranks of a node share one, and none belongs to another job."""
    environs = SHAPES[shape]["environ"]
    assert {name for name in SHAPES if CVD in SHAPES[name]["environ"][0]} == set(
        CAPTURED
    )
    found = [taken(environ, monkeypatch) for environ in environs]
    assert sorted(found, key=str) == sorted(CAPTURED[shape], key=str)
    owners = [
        (environ["SLURMD_NODENAME"], gpu)
        for environ, gpu in zip(environs, found, strict=True)
        if gpu is not None
    ]
    assert len(set(owners)) == len(owners)


@pytest.mark.parametrize(
    "names",
    [
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-0d7c"),
        ("MIG-d9f5b3c8-2a6a-5fdc-a3a1-0a3b7e0f5a8c", "MIG-GPU-8932f937/1/0"),
    ],
    ids=["GPU", "MIG"],
)
def test_gpu_names_are_never_read_as_numbers(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries may be UUIDs; what counts is how many there are."""
    for rank, environ in enumerate(SHAPES["gpus_per_node_2"]["environ"][:2]):
        changed = environ | {CVD: ",".join(names)}
        local = world_from_environment(None, changed).local_rank
        assert taken(changed, monkeypatch) == names[local], rank


def test_no_module_writes_cuda_visible_devices() -> None:
    """It is Slurm's word; re-indexing it takes the GPUs of other jobs."""
    root = Path(__file__).parents[1] / "clusterddp"
    for path in root.rglob("*.py"):
        text = path.read_text()
        assert f'environ["{CVD}"] =' not in text, path
        assert f'"{CVD}":' not in text, path


@pytest.mark.parametrize(
    ("backend", "version", "given"),
    [
        ("nccl", "2.13.0", True),
        ("cpu:gloo,cuda:nccl", "2.7.1", True),
        ("nccl", "2.7.0+cu126", False),
        ("other", "2.13.0", False),
    ],
)
def test_torch_is_told_the_device_where_that_is_safe(
    backend: str, version: str, *, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL then fails at once, not at the first barrier; 2.7.0 hangs with it."""
    told: dict[str, object] = {}
    current: list[object] = []
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(
        dist, "init_process_group", lambda _, **options: told.update(options)
    )
    chosen = torch.device("cuda", 1)
    init._form_group(WORLD, backend, chosen, timedelta(seconds=9), {})  # noqa: SLF001
    assert current == [chosen]
    assert told.get("device_id") == (chosen if given else None)
    assert told["timeout"] == timedelta(seconds=9)
