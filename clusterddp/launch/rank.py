"""One rank from its start to its end: which run, which code, which verdict.

Supervised ranks find their run directory in the environment. Ranks started by hand
(srun, torchrun) meet first; then rank 0 picks the run, claims the attempt and tells
the others.
"""

import importlib
import importlib.util
import re
import runpy
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from clusterddp.config import Job, read_job, render_job, runs_root
from clusterddp.config.references import parse_reference
from clusterddp.errors import UsageError, WorldError
from clusterddp.files import write_atomic
from clusterddp.launch.environment import ATTEMPT, RUN_DIR
from clusterddp.runs.directory import (
    AttemptDirectory,
    RunDirectory,
    claim_attempt,
    create_run,
    new_id,
    point_latest,
)
from clusterddp.runs.holder import describe_owner, take_over
from clusterddp.runs.snapshot import snapshot_path
from clusterddp.runs.verdict import Failure
from clusterddp.slurm.environment import job_address

if TYPE_CHECKING:
    from clusterddp.training import Experiment

__all__ = [
    "Seat",
    "build_experiment",
    "choose_run",
    "describe_failure",
    "name_cause",
    "run_script",
    "seat_from_environment",
]

# torch's own, on a GPU and on the CPU: OutOfMemoryError and a RuntimeError.
_NO_MEMORY = re.compile(r"OutOfMemoryError|out of memory|can't allocate memory")
# What an experiment that cannot work raises, today and at every further try.
_WRONG_JOB = (
    UsageError,
    WorldError,
    ImportError,
    SyntaxError,
    NameError,
    AttributeError,
    TypeError,
    KeyError,
)


@dataclass(frozen=True)
class Seat:
    """The run and the attempt that a rank belongs to."""

    run: RunDirectory
    attempt: AttemptDirectory


def seat_from_environment(environ: Mapping[str, str]) -> Seat | None:
    """Give the seat that a supervisor assigned; None when started by hand."""
    path, number = environ.get(RUN_DIR), environ.get(ATTEMPT)
    if not path or not number:
        return None
    run = RunDirectory(Path(path))
    return Seat(run, run.attempt(int(number)))


def choose_run(job: Job, given: Path | None, environ: Mapping[str, str]) -> Seat:
    """Pick, on rank 0 of ranks started by hand, the run that they belong to.

    `--run DIR`, else `slurm-<job>[_<task>].<step>`, which a requeue finds again,
    else a new one. The attempt is claimed.

    Raises:
        UsageError: the directory holds the run of another job file.
        LaunchError: somebody else holds the run, and is alive; it is named.
    """
    root = runs_root(job, None, environ)
    path = given.absolute() if given else root / job.name / _id(environ)
    run = RunDirectory(path)
    text = render_job(job)
    if not run.job_file.is_file():
        run = create_run(run.path.parent.parent, run.path.parent.name, run.id)
        write_atomic(run.job_file, text.encode())
        point_latest(run)
    elif render_job(read_job(run.job_file)) != text:
        message = (
            f"{run.path}: holds a run of another job file; compare {run.job_file}, or "
            "name another directory with --run"
        )
        raise UsageError(message)
    take_over(run, None)
    return Seat(run, claim_attempt(run, describe_owner(None, environ)))


def _id(environ: Mapping[str, str]) -> str:
    job, step = job_address(environ), environ.get("SLURM_STEP_ID")
    return f"slurm-{job}.{step}" if job and step else new_id()


def build_experiment(job: Job, run: RunDirectory) -> "Experiment":
    """Import the function that `experiment:` names, from the snapshot, and call it.

    Raises:
        UsageError: there is no such module, or it has no such function.
        ImportError: the module is there, but something that it imports is not.
    """
    reference = parse_reference(job.experiment or "")
    if reference.is_file:
        path = snapshot_path(job, run, Path(reference.target))
        module = _import_file(path)
    else:
        module = _import_module(reference.target)
    builder = getattr(module, reference.attribute, None)
    if not callable(builder):
        message = (
            f"experiment {job.experiment}: found no function {reference.attribute} in "
            f"{module.__file__}; define it, or name the one you mean"
        )
        raise UsageError(message)
    experiment: Experiment = builder(job.params)
    return experiment


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise  # the user's module is there; what it imports is not
        message = (
            f"experiment {name}: found no module {missing} on the import path, "
            f"expected one; install it, put its directory on PYTHONPATH, or name the "
            f"file, as in {name.replace('.', '/')}.py:build"
        )
        raise UsageError(message) from error


def _import_file(path: Path) -> ModuleType:
    """Import a .py file by its path, with its neighbours importable, as a script's."""
    sys.path.insert(0, str(path.parent))
    name = path.stem
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        message = f"{path}: cannot be imported; expected a Python file"
        raise UsageError(message)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def run_script(job: Job, run: RunDirectory | None) -> None:
    """Run the user's script as main, in this process, with its arguments.

    Raises:
        SystemExit: the script's own.
    """
    reference = parse_reference(job.script or "")
    if not reference.is_file:
        sys.argv = [reference.target, *job.args]
        runpy.run_module(reference.target, run_name="__main__", alter_sys=True)
        return
    path = Path(reference.target)
    path = snapshot_path(job, run, path) if run is not None else path
    sys.argv = [str(path), *job.args]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


def describe_failure(error: BaseException) -> Failure:
    """Give an exception as a verdict tells it; the innermost user frame says where."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not _is_library(frame.filename)]
    where = "nowhere"
    for frame in (users or frames)[-1:]:
        where = f"{frame.filename}:{frame.lineno} in {frame.name}"
    text = "".join(traceback.format_exception(error))
    lines = str(error).strip().splitlines()
    message = lines[0] if lines else ""
    return Failure(type(error).__name__, message, where, text)


def name_cause(error: BaseException, *, is_started: bool) -> str:
    """Give the cause that a verdict names for an error.

    Args:
        error: what ended the rank.
        is_started: whether a step was finished; what worked once is no wrong job.
    """
    is_memory = isinstance(error, MemoryError) or _NO_MEMORY.search(
        f"{type(error).__name__} {error}"
    )
    if is_memory:
        return "out of memory"
    return "wrong job" if isinstance(error, _WRONG_JOB) and not is_started else "crash"


def _is_library(filename: str) -> bool:
    package = str(Path(__file__).resolve().parent.parent)
    return "site-packages" in filename or filename.startswith(
        (package, "<frozen", sys.base_prefix)
    )
