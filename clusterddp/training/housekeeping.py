"""What happens at some steps beside the training: garbage, profiles, comparisons."""

import gc
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn

from clusterddp.config.schema import Profile, Train
from clusterddp.dist import World
from clusterddp.training.agreement import check_equal

__all__ = ["Chore", "open_chores"]

Chore = Callable[[int], None]


def open_chores(
    stack: ExitStack, train: Train, model: nn.Module, world: World, profiles: Path
) -> list[Chore]:
    """Give what is to be called after every step with the number of finished steps.

    Args:
        stack: undoes at the end what has to be undone.
        train: says which chores there are; none costs nothing.
        model: whose parameters are compared.
        world: this rank among the others.
        profiles: the directory for what the profiler records.
    """
    chores: list[Chore] = []
    if train.check_equal is not None and world.world_size > 1:
        chores.append(_comparison(model, world, train.check_equal))
    if train.gc_every is not None:
        chores.append(_collection(stack, train.gc_every))
    if train.profile is not None:
        trace = profiles / f"rank-{world.rank:04d}.json"
        chores.append(_recording(stack, train.profile, trace))
    return chores


def _comparison(model: nn.Module, world: World, every: int) -> Chore:
    def compare(step: int) -> None:
        if step % every == 0:
            check_equal(model, world, step)

    return compare


def _collection(stack: ExitStack, every: int) -> Chore:
    """Collect garbage on all ranks at the same steps, or each waits for each.

    What the start has left alive is frozen: it is not looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    stack.callback(gc.unfreeze)
    stack.callback(gc.enable)

    def collect(step: int) -> None:
        if step % every == 0:
            gc.collect()

    return collect


def _recording(stack: ExitStack, window: Profile, trace: Path) -> Chore:
    """Record the steps after `start` of this process, once."""
    trace.parent.mkdir(parents=True, exist_ok=True)
    profiler = torch.profiler.profile(
        schedule=torch.profiler.schedule(
            wait=max(0, window.start - 1), warmup=1, active=window.steps, repeat=1
        ),
        on_trace_ready=lambda done: done.export_chrome_trace(str(trace)),
    )
    stack.enter_context(profiler)

    def record(_step: int) -> None:
        profiler.step()

    return record
