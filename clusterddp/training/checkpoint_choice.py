"""Which checkpoint to resume from: rank 0's choice, made on the disk."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clusterddp.errors import CheckpointError
from clusterddp.files import read_json, write_json
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.published import NewerFormatError
from clusterddp.training import checkpoint_files as disk

__all__ = ["check_fence", "check_place", "choose"]

_RECORD = "resume.json"
Report = Callable[[Path, Path, str], None]


def choose(
    run: RunDirectory, attempt: int, report: Report
) -> tuple[str, dict[str, Any]] | None:
    """Give name and manifest of the newest checkpoint that verifies, or None.

    Bad and stale ones are set aside; what dead attempts left half written is
    removed. The attempt's directory keeps the step, so that a later attempt can
    tell a checkpoint which a left-over process published after this.

    Args:
        run: the run.
        attempt: the number of this start of the ranks.
        report: told what was set aside, as what, and why.

    Raises:
        OSError: the run directory cannot be read or written.
        CheckpointError: the newest one is whole, but of a newer version's format.
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
        CheckpointError: there is a newer attempt directory; names who claimed it.
    """
    attempts = run.list_attempts()
    if attempts and attempts[-1].number > attempt:
        newer = attempts[-1]
        raise CheckpointError(
            f"{run.path}: attempt {attempt} has been replaced by attempt "
            f"{newer.number}{_say_whose(read_json(newer.owner))}; this process is left "
            "over and must not publish a checkpoint; end it"
        )


def check_place(target: Path, attempt: int) -> None:
    """Refuse to replace a checkpoint that a later attempt has published.

    Raises:
        CheckpointError: there is one.
    """
    there = read_json(target / disk.MANIFEST)
    owner = there.get("attempt") if there is not None else None
    if isinstance(owner, int) and owner > attempt:
        raise CheckpointError(
            f"{target}: published by attempt {owner}, which is later than this one, "
            f"{attempt}; this process is left over and must not replace it; end it"
        )


def _say_whose(owner: Mapping[str, object] | None) -> str:
    if owner is None:
        return ""
    job = f", job {owner['job']}" if owner.get("job") else ""
    return f" (process {owner.get('pid')} on {owner.get('host')}{job})"


def _newest(
    run: RunDirectory, attempt: int, report: Report
) -> tuple[str, dict[str, Any]] | None:
    for path in disk.list_checkpoints(run.checkpoints):
        try:
            manifest = disk.verify(path)
        except NewerFormatError:
            raise
        except CheckpointError as error:
            report(path, disk.set_aside(path, "bad"), str(error))
            continue
        if not _is_stale(run, attempt, manifest):
            return path.name, manifest
        reason = (
            f"{path}: published by attempt {manifest['attempt']} after a later one had "
            "resumed from before it"
        )
        report(path, disk.set_aside(path, "stale"), reason)
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
