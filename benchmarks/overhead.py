"""What a step costs beside the hand-written loop: ours, and the peers'.

    python -m benchmarks.overhead [--quick]

The ranks stay up while all loops train the same model on the same batches, in
interleaved blocks (`benchmarks/loops.py`). What is compared is the time between two
calls of the loss function. A block is void, and ends the measurement, if our final
weights differ from the hand-written loop's in one bit.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.harness import arguments, compare, measure, record, repeated
from benchmarks.loops import HAND, MODELS
from benchmarks.result import Result, Target
from clusterddp.training.gradients import FiniteCheck
from tests.runs import ROOT, clean_environ

_DEADLINE_S = 900
# Alone, without gloo's spread of hundreds of us, the loop itself can be seen.
# The peers, which need most of the time, are asked with two ranks. Model, ranks,
# blocks, seconds that they may take, peers:
_QUESTIONS = [
    ("tiny", 1, 12, 20, False),
    ("tiny", 2, 8, 80, True),
    ("tiny", 4, 8, 60, False),
    ("small", 1, 7, 20, False),
    ("small", 2, 6, 80, True),
    ("small", 4, 5, 40, False),
    ("50 ms", 2, 4, 50, False),
]


def main() -> None:
    """Ask for each model and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = arguments(parser)
    questions = _QUESTIONS[:1] if given.quick else _QUESTIONS
    asked = "What does a step cost beside the same in a hand-written loop?"
    with record("overhead", asked, given.results) as results:
        for model, ranks, blocks, seconds, peers in questions:
            results.extend(ask(model, ranks, blocks, seconds, peers=peers))
        results.extend(look(model, 5 if given.quick else 15) for model in MODELS)


def ask(
    model: str, ranks: int, blocks: int, seconds: int, *, peers: bool
) -> Iterator[Result]:
    """Measure one model at one number of ranks: a step's time, then its CPU time.

    Raises:
        RuntimeError: a rank failed, or our weights differ from the hand-written ones.
    """
    with tempfile.TemporaryDirectory() as place:
        whom = "all" if peers else "ours"
        found = _run(ranks, model, str(blocks), str(seconds), place, whom)
    target = Target("clusterddp", ratio=1.01, extra=25.0)
    question = f"{model} model, {ranks} rank{'s' if ranks > 1 else ''}"
    yield compare(question, found["us"], unit="us", baseline=HAND, targets=[target])
    if ranks > 1:
        question += ", CPU time of a rank"
        yield compare(question, found["cpu us"], unit="us", baseline=HAND)


def look(model: str, blocks: int) -> Result:
    """Measure the look for NaN and Inf alone: in a bucket of DDP, and scattered."""
    torch.set_num_threads(1)
    layers = MODELS[model][0]
    sizes = [width * after for width, after in pairwise(layers)] + list(layers[1:])
    bucket = list(torch.split(torch.randn(sum(sizes)), sizes))
    apart = [grad.clone() for grad in bucket]
    in_bucket, one_by_one = FiniteCheck(), FiniteCheck()
    size = 4 * sum(sizes) / 1e6
    return measure(
        f"The look for NaN and Inf alone, {model} model, {size:.2g} MB of gradients",
        {
            "in a bucket of DDP": repeated(lambda: in_bucket(bucket), 50),
            "scattered": repeated(lambda: one_by_one(apart), 50),
        },
        unit="us",
        blocks=blocks,
    )


def _run(ranks: int, model: str, *words: str) -> dict[str, dict[str, list[float]]]:
    launch = f"-m torch.distributed.run --standalone --nproc-per-node {ranks}".split()
    done = subprocess.run(
        [sys.executable, *launch, "-m", "benchmarks.loops", model, *words],
        cwd=ROOT,
        env=clean_environ({"OMP_NUM_THREADS": "1"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    path = Path(words[2]) / "found.json"
    if done.returncode or not path.exists():
        raise RuntimeError(f"{model}, {ranks} ranks: {done.stdout[-2000:]}")
    found: dict[str, dict[str, list[float]]] = json.loads(path.read_text())
    return found


if __name__ == "__main__":
    main()
