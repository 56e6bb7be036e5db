"""`python -m benchmarks.stall`: what a save costs the step that it interrupts.

For a model with Adam's state, in one process: the bare copy of the same bytes between
two buffers, our background save, torch.save with fsync
and rename, and torch.distributed.checkpoint's async_save as it comes. Then the time of
40 steps of training with two saves, all durable at the end, against the same without.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.harness import Variant, arguments, compare, measure, record
from benchmarks.result import Result, Target
from benchmarks.states import State, clock
from clusterddp.dist import init_dist, shutdown

ASKED = "For how long does a save keep the training waiting?"
COPY, OURS = "copy of the same bytes", "ours, background"
# MiB: blocks, and the seconds that they may take.
_BLOCKS = {12: (25, 20), 96: (11, 25), 384: (7, 45), 1536: (5, 60)}
_TRAINED = {12: (7, 20), 96: (5, 50)}
_STEPS, _EVERY = 40, 20


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(_BLOCKS))
    given = arguments(parser)
    sizes = [size for size in given.sizes if size < 200 or not given.quick]
    torch.set_num_threads(1)
    world = init_dist("none")
    first: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as place,
        record("stall", ASKED, given.results) as results,
    ):
        for size in sizes:
            blocks, seconds = (2, 20) if given.quick else _BLOCKS.get(size, (5, 60))
            state = State(size, world, Path(place) / str(size))
            first[f"{size} MiB"] = [clock(state.ours)]
            state.finish()
            results.extend(stalls(size, state, blocks, seconds))
            if size in _TRAINED:
                most, seconds = _TRAINED[size]
                results.append(training(size, state, min(blocks, most), seconds))
        results.append(
            compare("The first save of ours, which makes its buffers", first, unit="ms")
        )
    shutdown()


def stalls(size: int, state: State, blocks: int, seconds: int) -> list[Result]:
    """Ask for the stall; how long until durable is noted beside."""
    ways: dict[str, Callable[[], None]] = {
        OURS: state.ours,
        "torch.save + fsync": state.plain,
        "dcp.async_save": state.dcp,
    }
    durable: dict[str, list[float]] = {name: [] for name in ways}

    def asked(name: str) -> Variant:
        def ask() -> float:
            stall = clock(ways[name])
            durable[name].append(stall + clock(state.finish))
            return stall

        return ask

    stall = measure(
        f"Stall of a save of {size} MiB",
        {COPY: lambda: clock(state.copy), **{name: asked(name) for name in ways}},
        unit="ms",
        blocks=blocks,
        seconds=seconds,
        baseline=COPY,
        targets=[Target(OURS, ratio=1.3)],
    )
    asked_of = {name: len(stall.blocks[name]) for name in ways}
    kept = {name: durable[name][-count:] for name, count in asked_of.items()}
    return [stall, compare(f"The same until durable, {size} MiB", kept, unit="ms")]


def training(size: int, state: State, blocks: int, seconds: int) -> Result:
    """Ask for the time of some steps with and without saves."""

    def train(save: Callable[[], object] | None) -> float:
        def steps() -> None:
            for index in range(_STEPS):
                state.step()
                if save is not None and index % _EVERY == 0:
                    save()
            state.finish()

        return clock(steps)

    return measure(
        f"{_STEPS} steps with two saves of {size} MiB, all durable at the end",
        {
            "without saves": lambda: train(None),
            OURS: lambda: train(state.ours),
            "torch.save + fsync": lambda: train(state.plain),
            "dcp.async_save": lambda: train(state.dcp),
        },
        unit="ms",
        blocks=blocks,
        seconds=seconds,
        baseline="without saves",
    )


if __name__ == "__main__":
    main()
