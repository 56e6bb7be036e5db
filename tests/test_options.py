"""Options of DDP and of torch: each arrives, and each leaves a resumed run exact."""

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clusterddp.config.schema import Ddp, Train
from clusterddp.dist import World, init_dist, shutdown
from clusterddp.errors import UsageError
from clusterddp.training import Experiment
from clusterddp.training.housekeeping import open_chores
from clusterddp.training.wrapping import prepare, wrap
from tests import training_ranks as ranks
from tests.training_ranks import build_noisy, final_state

CPU = torch.device("cpu")
ALONE = World(0, 1, 0, 1, 0, 1, "none")


def build_chosen(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment, with an unused layer or a fused optimizer."""
    experiment = build_noisy(params)
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
    ({"precision": "fp16"}, {"fused": True}),
]


# Compiling takes seconds in each of nine processes.
LONG = pytest.param({"compile": "eager"}, {}, marks=pytest.mark.long)


@pytest.mark.parametrize(("train", "params"), [*OPTIONS, LONG], ids=str)
def test_an_option_leaves_a_resumed_run_exact(
    tmp_path: Path, train: dict[str, Any], params: dict[str, Any]
) -> None:
    """On three ranks, where the order of sums would show."""
    chosen: dict[str, Any] = {
        "params": params,
        "train": {"epochs": 2, "global_batch_size": 48, "check_equal": 2, **train},
        "log": {"every": 2},
    }
    straight = tmp_path / "straight"
    started = ranks.start_training(straight, 0, 3, build_chosen, chosen)
    assert started.wait() == [0] * 3, started.output()
    chosen["params"] = params | {"stop_at": 3}
    run = tmp_path / "stopped"
    started = ranks.start_training(run, 0, 3, build_chosen, chosen)
    assert started.wait() == [ranks.STOPPED] * 3, started.output()
    started = ranks.start_training(run, 1, 3, build_chosen, chosen)
    assert started.wait() == [0] * 3, started.output()
    assert final_state(run) == final_state(straight)


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


def ask_for_bf16(world: World) -> str:
    try:
        wrap(nn.Linear(2, 2), Ddp(comm_hook="bf16"), world, CPU)
    except UsageError as error:
        return str(error)
    return "accepted"


def test_a_hook_that_the_backend_lacks_is_refused(tmp_path: Path) -> None:
    """Before torch says it in its own words; fp16 works on gloo too."""
    started = ranks.start(2, tmp_path, ranks.with_world, ask_for_bf16)
    assert "found bf16 with the backend gloo, expected nccl" in started.values()[0]


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


def test_compilation_keeps_the_names_in_checkpoints() -> None:
    """So that a run may go on without it."""
    compiled = prepare(nn.Linear(2, 2), Train(compile="eager"), CPU)
    assert set(compiled.state_dict()) == {"weight", "bias"}
    assert compiled(torch.ones(1, 2)).shape == (1, 2)


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
