"""Recorded runs: put back as they were, with what Slurm said of them."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterddp.runs.directory import RunDirectory
from clusterddp.slurm.programs import Completed
from tests.runs import ROOT

RECORDED = ROOT / "tests" / "recorded"
CASES = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())


@dataclass
class Replay:
    """A recorded run in a directory of its own.

    Attributes:
        home: stands for the user's directory; `/shared/ada` in the recording.
        run: the run, at `home/runs/toy/ID`.
        now: when it was looked at.
        said: what squeue and sacct answered, by program.
        calls: what was asked since.
    """

    home: Path
    run: RunDirectory
    now: float
    said: dict[str, str]
    calls: list[Sequence[str]] = field(default_factory=list)

    def program(self, words: Sequence[str]) -> Completed:
        """Answer for squeue and sacct as they did."""
        self.calls.append(words)
        return Completed(0, self.said.get(words[0], ""), "")

    def neutral(self, text: str) -> str:
        """Give a text as it would read in the user's directory."""
        return text.replace(str(self.home), "/shared/ada")


def replay(case: str, home: Path) -> Replay:
    """Put a recorded run back below `home/runs/toy`."""
    about = json.loads((RECORDED / case / "recorded.json").read_text())
    run = RunDirectory(home / "runs" / "toy" / about["id"])
    shutil.copytree(RECORDED / case, run.path)
    for name, time in about["checkpoints"].items():
        path = run.checkpoints / name
        path.mkdir(parents=True)
        os.utime(path, (time, time))
    said = {name: about.get(name, "") for name in ("squeue", "sacct")}
    return Replay(home, run, about["now"], said)
