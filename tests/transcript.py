"""`python -m tests.transcript --slot N`: writes docs/transcript.md from a real cluster.

Every command is run as an unprivileged user on the cluster's login node, and its output
stands there as it was printed; paths and host names are made neutral.
"""

import argparse
import time
from collections.abc import Iterator

from clusterddp.runs.directory import RunDirectory
from tests.cluster import ClusterParameters, start
from tests.record import Scene, neutral
from tests.runs import ROOT, events, finish, step_of, wait_until, write_job

PAGE = ROOT / "docs" / "transcript.md"
_HEAD = """# A day with runs: a transcript

Made by `python -m tests.transcript` on the real Slurm of the tests; do not edit it.
The toy model's steps are slowed down so that something can happen to them.
"""


class Typist:
    """Runs commands in a scene and keeps what they printed."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.text = _HEAD

    def say(self, text: str) -> None:
        """Write a sentence of one's own."""
        self.text += f"\n{text}\n"

    def type(self, *words: str) -> str:
        """Run `python -m ...` and write down command and output; give stdout."""
        done = finish(self._scene.start(*words))
        shown = " ".join(word if " " not in word else f"'{word}'" for word in words)
        output = neutral(done.err + done.out, self._scene)
        self.text += f"\n```console\n$ python -m {shown}\n{output}```\n"
        return done.out


def play(scene: Scene) -> str:
    """Give the page."""
    typist = Typist(scene)
    for part in _story(scene, typist):
        typist.say(part)
    return typist.text


def _story(scene: Scene, typist: Typist) -> Iterator[str]:
    slow = {"sleep": 0.25, "fault": "SIGKILL", "rank": 3, "at": 14}
    write_job(scene.home, params=slow)
    yield "One job file, sent to two nodes with two ranks each:"
    out = typist.type("clusterddp.submit", "job.yaml", "--nodes", "2")
    run = RunDirectory(scene.home / out.split("\t")[1].strip())
    yield "The same job is not sent twice by mistake:"
    typist.type("clusterddp.submit", "job.yaml", "--nodes", "2")
    wait_until(lambda: step_of(run) >= 7)
    yield "Where it stands:"
    typist.type("clusterddp.status")
    wait_until(lambda: events(run, "attempt_ended"))
    wait_until(lambda: len(run.list_attempts()) == 2)
    yield "Rank 3 was killed (`kill -9`). Why does it run on?"
    typist.type("clusterddp.why", "toy")
    wait_until(lambda: events(run, "finished"))
    time.sleep(3)
    yield "Where the time went:"
    typist.type("clusterddp.report", "toy", "--text")
    yield "A sweep is one array:"
    write_job(
        scene.home, sweep={"grid": {"train.seed": [0, 1], "params.lr": [0.1, 0.2]}}
    )
    word = typist.type("clusterddp.submit", "job.yaml").split("\t")[1].strip()
    home = scene.home / "runs" / "toy"
    runs = [RunDirectory(home / f"{word.split('/')[1]}-{n:04d}") for n in range(4)]
    wait_until(lambda: all(events(one, "finished") for one in runs))
    time.sleep(3)
    typist.type("clusterddp.status", word)
    yield "Mistakes are told with what was meant:"
    typist.type("clusterddp.submit", "job.yaml", "train.epoch=3")


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="tests.transcript", description=__doc__)
    parser.add_argument("--slot", type=int, required=True)
    cluster = start(ClusterParameters(slot=parser.parse_args().slot))
    PAGE.write_text(play(Scene(cluster)))
    cluster.reset()


if __name__ == "__main__":
    main()
