"""Sweeps: many runs that differ in some values, sent as arrays of Slurm.

    runs/<name>/.sweeps/<sweep id>/elements.json    the run ids, in the array's order
    runs/<name>/.sweeps/<sweep id>/submitit/        scripts and logs of the batch tasks
    runs/<name>/<sweep id>-0007/sweep.json          what is special about one run

An element of an array finds its run by its place in `elements.json`, which is written
before sbatch: a submitter that is killed after it leaves no orphan.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.files import read_json, write_json
from clusterddp.runs.directory import RunDirectory

__all__ = [
    "SweepDirectory",
    "expand_sweep",
    "find_sweep",
    "read_values",
    "write_values",
]

if TYPE_CHECKING:
    from clusterddp.config.schema import Sweep

Values = Mapping[str, object]


@dataclass(frozen=True)
class SweepDirectory:
    """What is shared by the runs of a sweep: `runs/<name>/.sweeps/<sweep id>/`."""

    path: Path

    @property
    def id(self) -> str:
        """The sweep's id, with which the ids of its runs begin."""
        return self.path.name

    @property
    def home(self) -> Path:
        """The directory in which its runs lie: `runs/<name>/`."""
        return self.path.parent.parent

    def element(self, index: int) -> RunDirectory:
        """One of its runs, by its place."""
        return RunDirectory(self.home / f"{self.id}-{index:04d}")

    def write_elements(self, count: int) -> None:
        """Say, durably, which runs belong to it."""
        ids = [self.element(index).id for index in range(count)]
        write_json(self.path / "elements.json", {"runs": ids})

    def read_elements(self) -> list[RunDirectory]:
        """Give its runs, in the array's order.

        Raises:
            UsageError: it has no list of them.
        """
        ids = (read_json(self.path / "elements.json") or {}).get("runs")
        if not isinstance(ids, list):
            message = (
                f"{self.path}: no elements.json, expected the list of a sweep's runs; "
                "submit the sweep again"
            )
            raise UsageError(message)
        return [RunDirectory(self.home / str(one)) for one in ids]


def expand_sweep(sweep: "Sweep") -> list[dict[str, object]]:
    """Give the values of every run, by dotted key: the list, times the grid; pure."""
    keys, columns = list(sweep.grid), list(sweep.grid.values())
    grid = [dict(zip(keys, row, strict=True)) for row in itertools.product(*columns)]
    rows: Sequence[Values] = sweep.list or [{}]
    return [{**row, **point} for row in rows for point in grid]


def find_sweep(word: str, root: Path) -> SweepDirectory | None:
    """Give the sweep that `NAME/SWEEP_ID` means; None if that is none."""
    name, _, sweep_id = word.rstrip("/").rpartition("/")
    path = root / name / ".sweeps" / sweep_id
    is_one = bool(name) and (path / "elements.json").is_file()
    return SweepDirectory(path) if is_one else None


def write_values(run: RunDirectory, sweep: SweepDirectory, values: Values) -> None:
    """Note what is special about a run of a sweep."""
    text = json.dumps({"sweep": sweep.id, "values": dict(values)})
    (run.path / "sweep.json").write_text(text + "\n")


def read_values(run: RunDirectory) -> dict[str, object]:
    """Give what is special about a run of a sweep; nothing for any other run."""
    values = (read_json(run.path / "sweep.json") or {}).get("values")
    return values if isinstance(values, dict) else {}
