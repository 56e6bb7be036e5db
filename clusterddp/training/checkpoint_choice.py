"""Which checkpoint to resume from: rank 0's choice, made on the disk."""

from collections.abc import Callable, Mapping
from typing import Any

from clusterddp.errors import CheckpointError
from clusterddp.files import read_json, write_json
from clusterddp.runs.directory import RunDirectory
from clusterddp.training import checkpoint_files as disk

__all__ = ["check_fence", "choose"]

_RECORD = "resume.json"


def choose(
    run: RunDirectory, attempt: int, report: Callable[[str], None]
) -> tuple[str, dict[str, Any]] | None:
    """Give name and manifest of the newest checkpoint that verifies, or None.

    Bad and stale ones are set aside; what dead attempts left half written is
    removed. The attempt's directory keeps the step, so that a later attempt can
    tell a checkpoint which a left-over process published after this.

    Args:
        run: the run.
        attempt: the number of this start of the ranks.
        report: told what was set aside, and why.

    Raises:
        OSError: the run directory cannot be read or written.
    """
    disk.remove_leftovers(run.checkpoints, attempt)
    chosen = _newest(run, attempt, report)
    path = run.attempt(attempt).path
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / _RECORD, {"step": chosen[1]["step"] if chosen else 0})
    return chosen


def check_fence(run: RunDirectory, attempt: int) -> None:
    """Refuse to go on when a newer attempt has claimed the run.

    Raises:
        CheckpointError: there is a newer attempt directory.
    """
    attempts = run.list_attempts()
    if attempts and attempts[-1].number > attempt:
        raise CheckpointError(
            f"{run.path}: attempt {attempt} has been replaced by attempt "
            f"{attempts[-1].number}; this process is left over and must not publish a "
            "checkpoint; end it"
        )


def _newest(
    run: RunDirectory, attempt: int, report: Callable[[str], None]
) -> tuple[str, dict[str, Any]] | None:
    for path in disk.list_checkpoints(run.checkpoints):
        try:
            manifest = disk.verify(path)
        except CheckpointError as error:
            aside = disk.set_aside(path, "bad")
            report(f"{error}; set aside as {aside.name}, trying the one before")
            continue
        if not _is_stale(run, attempt, manifest):
            return path.name, manifest
        aside = disk.set_aside(path, "stale")
        report(
            f"{path}: published by attempt {manifest['attempt']} after a later one had "
            f"resumed from before it; set aside as {aside.name}"
        )
    return None


def _is_stale(run: RunDirectory, attempt: int, manifest: Mapping[str, Any]) -> bool:
    """Say whether a later attempt has resumed from before this checkpoint."""
    later = (
        other.path
        for other in run.list_attempts()
        if manifest["attempt"] < other.number < attempt
    )
    records = (read_json(path / _RECORD) for path in later)
    steps = (record.get("step") for record in records if record is not None)
    return any(isinstance(step, int) and step < manifest["step"] for step in steps)
