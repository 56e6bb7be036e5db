"""What a step costs beside the hand-written loop: ours, and the peers'.

    python -m benchmarks.overhead [--quick] [--blocks 9]

The ranks stay up while all loops train the same model on the same batches, in
interleaved blocks (`benchmarks/loops.py`). What is compared is the time between two
calls of the loss function, a mean over a block without its slowest twentieth. A block
is void, and ends the measurement, if our final weights differ from the hand-written
loop's in one bit.
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
_QUESTIONS = [("tiny", 2), ("tiny", 4), ("small", 2), ("small", 4), ("50 ms", 2)]


def main() -> None:
    """Ask for each model and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=9)
    given = arguments(parser)
    blocks = 2 if given.quick else given.blocks
    questions = _QUESTIONS[:1] if given.quick else _QUESTIONS
    asked = "What does a step cost beside the same in a hand-written loop?"
    with record("overhead", asked, given.results) as results:
        for model, ranks in questions:
            results.append(ask(model, ranks, blocks))


def ask(model: str, ranks: int, blocks: int) -> Result:
    """Measure one model at one number of ranks.

    Raises:
        RuntimeError: a rank failed, or our weights differ from the hand-written ones.
    """
    with tempfile.TemporaryDirectory() as place:
        found = _run(model, ranks, blocks, Path(place))
    target = Target("clusterddp", ratio=1.01, extra=25.0)
    question = f"{model} model, {ranks} ranks"
    return compare(question, found["us"], unit="us", baseline=HAND, targets=[target])


def _run(
    model: str, ranks: int, blocks: int, place: Path
) -> dict[str, dict[str, list[float]]]:
    launch = f"-m torch.distributed.run --standalone --nproc-per-node {ranks}".split()
    loops = ["-m", "benchmarks.loops", model, str(blocks), str(place)]
    done = subprocess.run(
        [sys.executable, *launch, *loops],
        cwd=ROOT,
        env=clean_environ({"OMP_NUM_THREADS": "1"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    path = place / "found.json"
    if done.returncode or not path.exists():
        raise RuntimeError(f"{model}, {ranks} ranks: {done.stdout[-2000:]}")
    found: dict[str, dict[str, list[float]]] = json.loads(path.read_text())
    return found


if __name__ == "__main__":
    main()
