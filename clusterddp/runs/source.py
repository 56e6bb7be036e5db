"""A checkpoint of another run: found by RUN[@STEP], verified, and copied into a run."""

import json
from collections.abc import Mapping
from pathlib import Path

from clusterddp.config.schema import Job
from clusterddp.errors import CheckpointError, UsageError
from clusterddp.files import fsync_directory, write_atomic
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.finding import find_run
from clusterddp.runs.published import (
    MANIFEST,
    checkpoint_name,
    list_checkpoints,
    manifest_sum,
    step_of,
    verify,
)

__all__ = ["copy_checkpoint", "find_checkpoint", "find_named", "fix_source"]

_FORKED = -1  # earlier than any attempt of the run that it is copied into
_SHOWN = 8


def find_checkpoint(run: RunDirectory, step: int | None = None) -> Path:
    """Give a run's checkpoint of a step, or the newest that verifies; changes nothing.

    Raises:
        UsageError: there is none of that step, or none at all.
        CheckpointError: there is, but it does not verify.
    """
    there = list_checkpoints(run.checkpoints)
    if step is not None:
        path = run.checkpoints / checkpoint_name(step)
        if path not in there:
            raise UsageError(
                f"{run.path}: no checkpoint of step {step}; there are "
                f"{_name_steps(there)}"
            )
        verify(path)
        return path
    findings = []
    for path in there:
        try:
            verify(path)
        except CheckpointError as error:
            findings.append(str(error))
        else:
            return path
    if findings:
        raise CheckpointError(f"{run.path}: no good checkpoint: {'; '.join(findings)}")
    raise UsageError(
        f"{run.path}: no checkpoint yet; wait for the first, or name another run"
    )


def find_named(word: str, root: Path) -> Path:
    """Give the checkpoint that `RUN[@STEP]` means.

    Args:
        word: a run directory, NAME or NAME/ID, and perhaps a step.
        root: where runs lie.

    Raises:
        UsageError: there is no such run, or no such checkpoint of it.
        CheckpointError: there is, but it does not verify.
    """
    name, at, step = word.rpartition("@")
    if at and not step.isdigit():
        raise UsageError(f"{word}: expected RUN@STEP with a number, as in {name}@1200")
    run = find_run(name if at else word, root)
    return find_checkpoint(run, int(step) if at else None)


def fix_source(job: Job, root: Path) -> Job:
    """Give the job with the absolute path of what `init_from` names.

    So it starts from the same weights whenever it is started again.

    Raises:
        UsageError: `init_from` names nothing that there is.
        CheckpointError: a checkpoint that does not verify.
    """
    init = job.init_from
    if init is None:
        return job
    given = Path(init.source).expanduser()
    path = given.absolute() if is_weights(given) else find_named(init.source, root)
    fixed = init.model_copy(update={"source": str(path)})
    return job.model_copy(update={"init_from": fixed})


def is_weights(path: Path) -> bool:
    """Say whether a path is a checkpoint's directory or a file, not a run."""
    return path.is_file() or (path / MANIFEST).is_file()


def copy_checkpoint(source: Path, run: RunDirectory) -> Path:
    """Copy a verified checkpoint into a new run, which will go on from it; durable.

    Raises:
        OSError: it cannot be read, or the run directory cannot be written.
    """
    target = run.checkpoints / source.name
    aside = target.with_name(f"{target.name}.tmp-0")
    aside.mkdir(parents=True)
    manifest = verify(source)
    for name in manifest["files"]:
        write_atomic(aside / name, (source / name).read_bytes())
    write_atomic(aside / MANIFEST, _forked(manifest, source))
    verify(aside)
    aside.rename(target)
    fsync_directory(target.parent)
    return target


def _forked(manifest: Mapping[str, object], source: Path) -> bytes:
    changed = {**manifest, "attempt": _FORKED, "forked_from": str(source)}
    changed["crc32"] = manifest_sum(changed)
    return (json.dumps(changed) + "\n").encode()


def _name_steps(there: list[Path]) -> str:
    steps = [str(step_of(path)) for path in there]
    if not steps:
        return "none"
    more = ", ..." if len(steps) > _SHOWN else ""
    return f"{', '.join(steps[:_SHOWN])}{more}"
