"""Finding runs by the words that people use: a directory, NAME, or NAME/ID."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from clusterddp.errors import UsageError
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.sweeps import find_sweep

__all__ = [
    "find_root",
    "find_run",
    "list_named",
    "list_runs",
    "name_some",
    "select_runs",
]

_SHOWN = 5


def find_root(given: str | None, environ: Mapping[str, str]) -> Path:
    """Give the directory of all runs: `--runs`, `$CLUSTERDDP_RUNS`, else `runs`.

    Relative paths count from the working directory.
    """
    root = given or environ.get("CLUSTERDDP_RUNS") or "runs"
    return Path(os.path.abspath(Path(root).expanduser()))  # noqa: PTH100 - keeps links


def find_run(word: str, root: Path) -> RunDirectory:
    """Give the run that a word means.

    Args:
        word: a run directory, `NAME` (its latest run) or `NAME/ID`.
        root: where runs lie.

    Raises:
        UsageError: there is none; the nearest that there are stand in the message.
    """
    below = root / word
    for path in (Path(word), below / "latest", below):
        if (path / "job.yaml").is_file():
            return RunDirectory(path.resolve())
    newest = _newest_below(below)
    if newest is not None:
        return newest
    message = (
        f"{word}: no run of that name below {root}; expected a run directory, NAME or "
        f"NAME/ID{_name_some(root)} (--runs DIR or $CLUSTERDDP_RUNS is where runs lie)"
    )
    raise UsageError(message)


def list_runs(root: Path) -> list[RunDirectory]:
    """Give all runs below a root, by name, the oldest first."""
    return [run for name in _directories(root) for run in _runs_in(name)]


def list_named(root: Path, name: str) -> list[RunDirectory]:
    """Give all runs of one name, the oldest first; none if there are none."""
    return _runs_in(str(root / name)) if (root / name).is_dir() else []


def _runs_in(parent: str) -> list[RunDirectory]:
    return [
        RunDirectory(Path(run))
        for run in _directories(parent)
        if os.path.isfile(f"{run}/job.yaml")  # noqa: PTH113 - thousands of them
    ]


def select_runs(words: Sequence[str], root: Path) -> list[RunDirectory]:
    """Give the runs that words mean, or, without words, all below the root.

    Raises:
        UsageError: a word means none, or there is no such root.
    """
    if words:
        return [run for word in words for run in _runs_of(word, root)]
    if not root.is_dir():
        message = (
            f"{root}: no such directory; expected the place where runs lie: give "
            "--runs DIR or set $CLUSTERDDP_RUNS"
        )
        raise UsageError(message)
    return list_runs(root)


def _runs_of(word: str, root: Path) -> list[RunDirectory]:
    """Give the runs of a sweep, or the one run that a word means."""
    sweep = find_sweep(word, root)
    return [find_run(word, root)] if sweep is None else sweep.read_elements()


def _directories(parent: Path | str) -> list[str]:
    """Give real directories, no links (`latest`) and no hidden ones (`.code`)."""
    with os.scandir(parent) as entries:
        found = [
            entry.path
            for entry in entries
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
        ]
    return sorted(found)


def _newest_below(parent: Path) -> RunDirectory | None:
    """Give the newest run of a name that has no `latest` (yet)."""
    if not parent.is_dir():
        return None
    runs = [
        path for path in _directories(parent) if (Path(path) / "job.yaml").is_file()
    ]
    return RunDirectory(Path(runs[-1])) if runs else None


def _name_some(root: Path) -> str:
    names = list(_names(root))
    return f"; there are {name_some(names)}" if names else ""


def name_some(names: Sequence[str]) -> str:
    """Give the first of some names, for a message."""
    more = ", ..." if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _names(root: Path) -> Iterator[str]:
    if root.is_dir():
        yield from (Path(path).name for path in _directories(root))
