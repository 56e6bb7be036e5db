"""Options of DDP and of torch: each arrives, and each leaves a resumed run exact."""

import gc
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from clusterddp.config.schema import Ddp, Train
from clusterddp.dist import World, init_dist, shutdown
from clusterddp.errors import UsageError
from clusterddp.training import Experiment
from clusterddp.training.compression import Compression
from clusterddp.training.housekeeping import open_chores
from clusterddp.training.wrapping import prepare, wrap
from tests import training_ranks as ranks
from tests.training_ranks import build_noisy, final_state

CPU = torch.device("cpu")
NEVER = -9
ALONE = World(0, 1, 0, 1, 0, 1, "none")


def build_chosen(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment, with an unused layer or a fused optimizer."""
    experiment = build_noisy(params)
    if "cache" in params:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = params["cache"]
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if params.get("unused"):
        experiment.model.add_module("unused", _Unused())
    if params.get("fused"):
        return replace(
            experiment,
            optimizer=lambda parameters: torch.optim.AdamW(
                parameters, lr=1e-2, fused=True
            ),
        )
    return experiment


class _Unused(nn.Module):
    """A layer whose parameters the loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"ddp": {"static_graph": True}, "accumulate": 2}, {}),
    ({"ddp": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}}, {}),
    ({"ddp": {"find_unused_parameters": True}}, {"unused": True}),
    ({"ddp": {"comm_hook": "fp16"}, "clip_grad_norm": 1.0}, {}),
    ({"ddp": {"comm_hook": "bf16", "bucket_cap_mb": 0.001}}, {}),
    (
        {"ddp": {"comm_hook": "powersgd", "powersgd_start": 2, "bucket_cap_mb": 0.002}},
        {},
    ),
    ({"precision": "fp16"}, {"fused": True}),
]


# Compiling takes seconds in each of nine processes.
SLOW = [pytest.param({"compile": "eager"}, {}, marks=pytest.mark.long)]


def run_and_resume(
    tmp_path: Path, world_size: int, train: dict[str, Any], params: dict[str, Any]
) -> list[dict[str, Any]]:
    """Give the ends of a straight run, and of one stopped once."""
    ends = []
    for stop_at in (NEVER, 3):
        run = tmp_path / f"stopped at {stop_at}"
        chosen = {
            "params": params | {"stop_at": stop_at},
            "train": {"epochs": 2, "global_batch_size": 48, "check_equal": 2, **train},
            "log": {"every": 2},
        }
        for attempt in range(1 if stop_at == NEVER else 2):
            started = ranks.start_training(
                run, attempt, world_size, build_chosen, chosen
            )
            is_last = attempt or stop_at == NEVER
            expected = 0 if is_last else ranks.STOPPED
            assert set(started.wait(300)) == {expected}, started.output()
        ends.append(final_state(run))
    return ends


@pytest.mark.parametrize(("train", "params"), [*OPTIONS, *SLOW], ids=str)
def test_an_option_leaves_a_resumed_run_exact(
    tmp_path: Path, train: dict[str, Any], params: dict[str, Any]
) -> None:
    """On three ranks, where the order of sums would show."""
    straight, resumed = run_and_resume(tmp_path, 3, train, params)
    assert resumed == straight


def test_without_its_errors_a_resumed_power_sgd_is_another(tmp_path: Path) -> None:
    """The comparison above notices when they are not taken over."""
    train = OPTIONS[-2][0]
    straight, resumed = run_and_resume(tmp_path, 2, train, {"without": ["errors"]})
    assert "powersgd" in straight
    assert resumed["model"] != straight["model"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a compiler")
def test_a_compiled_model_is_as_exact(tmp_path: Path, world_size: int) -> None:
    """By inductor, a minute at first; its code is kept, so a second start is short."""
    params = {"cache": str(tmp_path / "cache")}
    train = {"compile": "inductor"}
    straight, resumed = run_and_resume(tmp_path, world_size, train, params)
    assert resumed == straight
    assert list((tmp_path / "cache").rglob("*.so"))


def describe_wrapped(world: World, given: dict[str, Any]) -> dict[str, Any]:
    """Give what DDP has made of some options."""
    wrapped = wrap(nn.Linear(2, 2), Ddp(**given), world, CPU)
    assert wrapped is not None
    return {
        "gradient_as_bucket_view": wrapped.gradient_as_bucket_view,
        "static_graph": wrapped.static_graph,
        "find_unused_parameters": wrapped.find_unused_parameters,
        "bucket_cap_mb": wrapped.bucket_bytes_cap / (1 << 20),
    }


def test_options_arrive_at_ddp(tmp_path: Path) -> None:
    """By their own names; what is not given is torch's own default."""
    given = {
        "gradient_as_bucket_view": True,
        "static_graph": True,
        "find_unused_parameters": True,
        "bucket_cap_mb": 3.0,
    }
    started = ranks.start(2, tmp_path, ranks.with_world, describe_wrapped, given)
    assert started.values() == [given, given]


def average_by(world: World, options: dict[str, Any]) -> list[Any]:
    """Give some averaged gradients, twice, and what the compression remembers."""
    torch.manual_seed(0)
    ddp = wrap(nn.Linear(30, 30, bias=False), Ddp(**options), world, CPU)
    assert ddp is not None
    compression = Compression(ddp, Ddp(**options), world)
    x = torch.randn(4, 30, generator=torch.Generator().manual_seed(world.rank))
    grads = []
    with compression.idle():
        ddp(x).square().mean().backward()
    for _ in range(3):
        ddp.zero_grad()
        ddp(x).square().mean().backward()
        grads.append(ddp.module.weight.grad.clone())
    error = (grads[-1] - grads[0]).norm() / grads[0].norm()
    state = compression.state()
    kept = [] if state is None else [len(each) for each in state["errors"].values()]
    return [float(error), int(torch.linalg.matrix_rank(grads[-1])), kept]


@pytest.mark.parametrize(
    ("hook", "rank", "kept"),
    [(None, 8, []), ("bf16", 8, []), ("powersgd", 1, [2])],
    ids=str,
)
def test_what_a_hook_sends(
    tmp_path: Path, hook: str | None, rank: int, kept: list[int]
) -> None:
    """The average of 2 x 4 samples has rank 8; PowerSGD sends one, and keeps the rest.

    Not in its first two steps, nor in the throw-away one before.
    """
    options = {"comm_hook": hook, "powersgd_start": 2}
    values = ranks.start(2, tmp_path, ranks.with_world, average_by, options).values()
    for world_rank, (error, found, remembered) in enumerate(values):
        assert found >= rank if hook == "bf16" else found == rank
        assert (error > 0.1) is (hook == "powersgd")
        assert remembered == (kept if world_rank == 0 else [0] * len(kept))


def test_errors_of_other_numbers_of_ranks_are_shared_out(tmp_path: Path) -> None:
    """What counts is their mean, so each rank takes that."""
    started = ranks.start(2, tmp_path, ranks.with_world, take_over_errors)
    assert started.values() == [[2.0, 2.0], [2.0, 2.0]]


def take_over_errors(world: World) -> list[float]:
    options = Ddp(comm_hook="powersgd")
    ddp = wrap(nn.Linear(2, 2, bias=False), options, world, CPU)
    compression = Compression(ddp, options, world)
    errors = [torch.full((2,), float(value)) for value in (1, 2, 3)]
    one = {0: torch.ones(2)}
    compression.load({"steps": 9, "p": one, "q": one, "errors": {0: errors}})
    state = compression.state()
    assert state is not None
    assert state["steps"] == 9
    kept: list[float] = compression._power.error_dict[0].tolist()  # noqa: SLF001
    return kept


def test_alone_there_is_nothing_to_wrap() -> None:
    """And a comm hook has nobody to talk to."""
    assert wrap(nn.Linear(2, 2), Ddp(comm_hook="fp16"), ALONE, CPU) is None


def test_batch_norms_are_synchronised_on_gpus_only() -> None:
    """On a CPU torch would fail at the first step; the message says what to do."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(UsageError, match="found a CPU, expected a GPU"):
        prepare(model, Train(sync_batchnorm=True), CPU)
    meta = prepare(model, Train(sync_batchnorm=True), torch.device("meta"))
    assert isinstance(meta[1], nn.SyncBatchNorm)  # type: ignore[index]


class Own(nn.Module):
    """A module of the user's own class."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(x)).relu()


@pytest.mark.parametrize("make", [Own, lambda: nn.Sequential(nn.Linear(2, 2))])
def test_models_are_compiled_and_keep_their_names(
    make: Callable[[], nn.Module],
) -> None:
    """Of torch's own classes too; and a run may go on without it."""
    torch.compiler.reset()
    counters.clear()
    names = set(make().state_dict())
    compiled = prepare(make(), Train(compile="eager"), CPU)
    assert set(compiled.state_dict()) == names
    for size in range(2, 13):
        assert compiled(torch.ones(size, 2)).shape == (size, 2)
        assert compiled(torch.ones(2, 2)).shape == (2, 2)
        assert counters["stats"]["unique_graphs"] == size - 1, "each shape for itself"


@pytest.fixture
def world() -> Iterator[World]:
    """Give a world of one."""
    yield init_dist("none")
    shutdown()


def test_garbage_is_collected_at_the_same_steps(world: World, tmp_path: Path) -> None:
    """And at no others; afterwards as before."""
    seen: list[str] = []
    with ExitStack() as stack:
        chores = open_chores(stack, Train(gc_every=3), nn.Linear(1, 1), world, tmp_path)
        gc.callbacks.append(lambda phase, _info: seen.append(phase))
        assert not gc.isenabled()
        for step in range(1, 8):
            for chore in chores:
                chore(step)
        gc.callbacks.pop()
    assert seen == ["start", "stop"] * 2
    assert gc.isenabled()


def test_nothing_is_called_that_nobody_asked_for(world: World, tmp_path: Path) -> None:
    """Steps cost nothing more."""
    with ExitStack() as stack:
        assert open_chores(stack, Train(), nn.Linear(1, 1), world, tmp_path) == []


def test_the_profiler_records_its_window(tmp_path: Path) -> None:
    """On every rank, into the run directory, as a trace that browsers show."""
    chosen = {
        "train": {
            "global_batch_size": 24,
            "profile": {"start": 2, "steps": 2},
        },
    }
    started = ranks.start_training(tmp_path, 0, 2, build_noisy, chosen)
    assert started.wait() == [0, 0], started.output()
    for rank in (0, 1):
        trace = json.loads(
            (tmp_path / "profiles" / f"rank-{rank:04d}.json").read_text()
        )
        steps = {
            event["name"]
            for event in trace["traceEvents"]
            if str(event.get("name", "")).startswith("ProfilerStep")
        }
        assert steps == {"ProfilerStep#2", "ProfilerStep#3"}
