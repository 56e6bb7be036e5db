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
from pathlib import Path

from benchmarks.harness import arguments, compare, record
from benchmarks.loops import HAND
from benchmarks.result import Result, Target
from tests.runs import ROOT, clean_environ

_DEADLINE_S = 900
# Alone, without gloo's spread of hundreds of us, the loop itself can be seen.
# The peers, which need most of the time, are asked with two ranks. Model, ranks,
# blocks, seconds that they may take, peers:
_QUESTIONS = [
    ("tiny", 1, 12, 20, False),
    ("tiny", 2, 8, 60, True),
    ("tiny", 4, 8, 45, False),
    ("small", 1, 7, 20, False),
    ("small", 2, 6, 60, True),
    ("small", 4, 5, 30, False),
    ("50 ms", 2, 5, 40, False),
]


def main() -> None:
    """Ask for each model and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = arguments(parser)
    questions = _QUESTIONS[:1] if given.quick else _QUESTIONS
    asked = "What does a step cost beside the same in a hand-written loop?"
    with record("overhead", asked, given.results) as results:
        for model, ranks, blocks, seconds, peers in questions:
            results.append(ask(model, ranks, blocks, seconds, peers=peers))


def ask(model: str, ranks: int, blocks: int, seconds: int, *, peers: bool) -> Result:
    """Measure one model at one number of ranks.

    Raises:
        RuntimeError: a rank failed, or our weights differ from the hand-written ones.
    """
    with tempfile.TemporaryDirectory() as place:
        whom = "all" if peers else "ours"
        found = _run(ranks, model, str(blocks), str(seconds), place, whom)
    target = Target("clusterddp", ratio=1.01, extra=25.0)
    question = f"{model} model, {ranks} rank{'s' if ranks > 1 else ''}"
    return compare(question, found["us"], unit="us", baseline=HAND, targets=[target])


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
