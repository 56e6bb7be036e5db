"""`python -m benchmarks.parts`: what the parts of a step and of a save cost alone.

The look for NaN and Inf in gradients, in one of DDP's buckets and scattered; the
generators, seeded for a sample and put back after a batch; asking torch for a state;
the checksum of a checkpoint's bytes.
"""

import argparse
import itertools
import random
import tempfile
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness import arguments, measure, record, repeated
from benchmarks.loops import MODELS
from benchmarks.result import Result
from benchmarks.states import MIB, State
from clusterddp.dist import init_dist, shutdown
from clusterddp.training.gradients import FiniteCheck
from clusterddp.training.randomness import preserved, seed_all

ASKED = "What do the parts of a step and of a save cost alone?"


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = arguments(parser)
    torch.set_num_threads(1)
    blocks = 3 if given.quick else 15
    with record("parts", ASKED, given.results) as results:
        results.extend(look(model, blocks) for model in MODELS)
        results.append(generators(blocks))
        results.extend([asking(12, blocks), checksum(64, blocks)])


def look(model: str, blocks: int) -> Result:
    """Ask for the look for NaN and Inf in a model's averaged gradients."""
    layers = MODELS[model][0]
    sizes = [width * after for width, after in pairwise(layers)] + list(layers[1:])
    bucket = list(torch.split(torch.randn(sum(sizes)), sizes))
    apart = [grad.clone() for grad in bucket]
    in_bucket, one_by_one = FiniteCheck(), FiniteCheck()
    size = 4 * sum(sizes) / 1e6
    return measure(
        f"The look for NaN and Inf, {model} model, {size:.2g} MB of gradients",
        {
            "in a bucket of DDP": repeated(lambda: in_bucket(bucket), 50),
            "scattered": repeated(lambda: one_by_one(apart), 50),
        },
        unit="us",
        blocks=blocks,
    )


def generators(blocks: int) -> Result:
    """Ask what seeding costs, for each sample and around each batch."""
    numbers = itertools.count()

    def seed_and_draw() -> None:
        seed_all(next(numbers))
        _draw()

    def put_back() -> None:
        with preserved():
            pass

    return measure(
        "The generators of python, numpy and torch",
        {
            "seeded, for a sample": repeated(lambda: seed_all(next(numbers)), 2000),
            "python's alone": repeated(lambda: random.seed(next(numbers)), 2000),
            "seeded, and drawn from once": repeated(seed_and_draw, 2000),
            "drawn from once": repeated(_draw, 2000),
            "kept and put back, for a batch": repeated(put_back, 500),
        },
        unit="us",
        blocks=blocks,
    )


def _draw() -> None:
    random.random()  # noqa: S311 - what is measured
    np.random.rand()  # noqa: NPY002 - what is measured
    torch.rand(())


def asking(size: int, blocks: int) -> Result:
    """Ask for a state of so many MiB, copying nothing."""
    with tempfile.TemporaryDirectory() as place:
        state = State(size, init_dist("none"), Path(place))
        try:
            return measure(
                f"Asking torch for a state of {size} MiB",
                {"state_dict() of model and Adam": repeated(state.values, 20)},
                unit="us",
                blocks=blocks,
            )
        finally:
            shutdown()


def checksum(size: int, blocks: int) -> Result:
    """Ask for CRC-32 on one core; eight at most share the work."""
    content = b"." * (size * MIB)
    return measure(
        f"CRC-32 of {size} MiB in memory, one core",
        {"zlib.crc32": repeated(lambda: zlib.crc32(content), 3)},
        unit="us",
        blocks=blocks,
    )


if __name__ == "__main__":
    main()
