"""What the disk says of a run, read once: the facts that status, why and report use."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterddp.files import read_json
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.ledger import Event, read_events
from clusterddp.runs.sweeps import read_values
from clusterddp.runs.verdict import Summary, read_summary

__all__ = ["Facts", "Point", "Shape", "read_facts", "read_points"]

Point = Mapping[str, float]
"""One line of metrics.jsonl: `step`, `epoch`, `time`, `loss`, ... by name."""

_TAIL = 1 << 18
_CHECKPOINT = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Shape:
    """What the job file asks for; None where it cannot be read."""

    nodes: int | None = None
    ranks: int | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Facts:
    """What a run's directory holds.

    Attributes:
        run: the directory.
        events: the ledger, oldest first.
        attempt: the number of the newest attempt; None before the first.
        owner: who claimed the newest attempt; None if it could not say.
        summary: rank 0's word on the newest attempt.
        progress: rank 0's word on where the training stands.
        points: log points, oldest first; of a large file only the last.
        saved: step and time of the newest published checkpoint.
        shape: how many nodes, ranks and samples a step.
        is_whole: whether `points` begins with the first one.
        values: of a run of a sweep, what is special about it, by dotted key.
    """

    run: RunDirectory
    events: tuple[Event, ...] = ()
    attempt: int | None = None
    owner: Mapping[str, object] | None = None
    summary: Summary | None = None
    progress: Mapping[str, object] | None = None
    points: tuple[Point, ...] = ()
    saved: tuple[int, float] | None = None
    shape: Shape = Shape()
    is_whole: bool = True
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the job file."""
        return self.run.path.parent.name

    @property
    def job_id(self) -> str | None:
        """The id of the Slurm job that has or had the run last; None: local."""
        for event in reversed(self.events):
            if event.kind in ("submitted", "attempt_started") and "job" in event.values:
                job = event.values["job"]
                return None if job is None else str(job)
        owner = (self.owner or {}).get("job")
        return None if owner is None else str(owner)

    def last(self, *kinds: str) -> Event | None:
        """Give the newest event of some kinds."""
        found = (event for event in reversed(self.events) if event.kind in kinds)
        return next(found, None)

    @property
    def began(self) -> float | None:
        """When the run was submitted, or its first attempt started."""
        return self.events[0].time if self.events else None


def read_facts(run: RunDirectory, *, whole: bool = False) -> Facts:
    """Read a run's directory; whatever is missing or half written is passed over.

    Args:
        run: the run.
        whole: read all log points, however many there are.
    """
    attempts = run.list_attempts()
    newest = attempts[-1] if attempts else None
    events = tuple(read_events(run))
    points, is_whole = read_points(run.metrics, None if whole else _TAIL)
    return Facts(
        run,
        events,
        None if newest is None else newest.number,
        None if newest is None else read_json(newest.owner),
        None if newest is None else read_summary(newest),
        read_json(run.progress),
        tuple(points),
        _newest_checkpoint(run.checkpoints),
        _shape(events) or _read_shape(run.job_file),
        is_whole,
        read_values(run),
    )


def _shape(events: Sequence[Event]) -> Shape | None:
    """Take the shape from the newest submission: a thousand YAML files are slow."""
    for event in reversed(events):
        found = [event.values.get(key) for key in ("nodes", "ranks", "batch")]
        if event.kind == "submitted" and all(isinstance(one, int) for one in found):
            return Shape(*found)  # type: ignore[arg-type]
    return None


def _read_shape(path: Path) -> Shape:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        values = yaml.load(path.read_bytes(), loader)  # noqa: S506 - a safe one
        slurm = values["slurm"]
        nodes, tasks = int(slurm["nodes"]), int(slurm["tasks_per_node"])
        return Shape(nodes, nodes * tasks, int(values["train"]["global_batch_size"]))
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return Shape()


def read_points(path: Path, tail: int | None = None) -> tuple[list[Point], bool]:
    """Give the log points of a metrics file, or those in its last `tail` bytes.

    Returns:
        The points, and whether these are all.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = 0 if tail is None else max(0, size - tail)
            file.seek(start)
            lines = file.read().splitlines()
    except OSError:
        return [], True
    found = [_point(line) for line in lines[1 if start else 0 :]]
    return [point for point in found if point is not None], start == 0


def _point(line: bytes) -> Point | None:
    try:
        value = json.loads(line)
        step, time = value["step"], value["time"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(step, int) or not isinstance(time, int | float):
        return None
    return {key: one for key, one in value.items() if isinstance(one, int | float)}


def _newest_checkpoint(parent: Path) -> tuple[int, float] | None:
    try:
        matches = [_CHECKPOINT.fullmatch(name) for name in os.listdir(parent)]  # noqa: PTH208 - quick
    except OSError:
        return None
    whole = [(int(match[1]), match[0]) for match in matches if match]
    if not whole:
        return None
    step, name = max(whole)
    try:
        return step, (parent / name).stat().st_mtime
    except OSError:  # deleted in between
        return None
