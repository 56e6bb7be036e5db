"""Handing a run to Slurm through submitit: the script is a pure function of a job.

submitit runs the supervisor once, in the batch step (`use_srun=False`), and as the
batch task itself (`python="exec ..."`), so that it receives the job's signals: with
proctrack/cgroup a scancel kills a bash in between and Python gets nothing
(measured on 22.05).
"""

import contextlib
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from submitit.core.utils import FailedJobError
from submitit.slurm.slurm import SlurmExecutor, _make_sbatch_string

from clusterddp.config.schema import Job
from clusterddp.errors import SlurmError
from clusterddp.runs.directory import RunDirectory
from clusterddp.slurm.patience import is_full

__all__ = [
    "Array",
    "render_array",
    "render_script",
    "send",
    "send_array",
    "written_options",
]

_ERROR = "sbatch: error: "
_NO_ROOM = (
    "; as many jobs are submitted as this limit allows, and one more fits when one of "
    "them has ended"
)
_NO_SBATCH = (
    "sbatch: not found on this machine; submit where Slurm's programs are, or run the "
    "job here with --launcher pytorch"
)


def render_script(
    job: Job,
    run: RunDirectory,
    python: str,
    token: str = "",
    after: str | None = None,
) -> str:
    """Give the sbatch script that `send` would hand to Slurm; pure.

    Args:
        job: the job.
        run: where the run's directory is, or would be.
        python: the interpreter of the supervisor.
        token: what the job's comment ends with.
        after: sbatch's --dependency.
    """
    command = (
        f"{_exec(python)} -u -m submitit.core._submit {shlex.quote(str(run.submitit))}"
    )
    return _make_sbatch_string(
        command, run.submitit, **_parameters(job, run, token, after)
    )


def send(
    job: Job,
    run: RunDirectory,
    environ: Mapping[str, str],
    entry: Callable[[str], None],
    token: str = "",
    after: str | None = None,
) -> str:
    """Submit the run's supervisor and give the job's id.

    Args:
        job: the resolved job.
        run: its directory, which exists.
        environ: what sbatch is given as environment.
        entry: what runs as the batch task, given the run directory; a callable of
            a module, because submitit pickles it by name.
        token: what the job's comment ends with, so that it can be found again when
            sbatch's answer got lost.
        after: sbatch's --dependency, such as `afterok:12`.

    Raises:
        SlurmError: sbatch is missing or refuses; its words are in the message.
    """
    with _environment(environ):
        try:
            executor = SlurmExecutor(folder=run.submitit, python=_exec(sys.executable))
            executor.update_parameters(**_parameters(job, run, token, after))
            return str(executor.submit(entry, str(run.path)).job_id)
        except FailedJobError as error:
            raise SlurmError(_say_refusal(str(error))) from error
        except RuntimeError as error:  # submitit's word for "no srun here"
            raise SlurmError(_NO_SBATCH) from error


@dataclass(frozen=True)
class Array:
    """A part of a sweep that Slurm gets as one array.

    Attributes:
        sweep: the sweep's directory.
        offset: the place in the sweep of the array's first element.
        count: how many elements it has.
        parallel: how many of them may run at once; None: no limit.
    """

    sweep: Path
    offset: int
    count: int
    parallel: int | None = None

    @property
    def nominal_run(self) -> RunDirectory:
        """What the array's comment names, in the way of a run's job."""
        return RunDirectory(self.sweep.parent.parent / self.sweep.name)

    @property
    def token(self) -> str:
        """What the array's comment ends with."""
        return f"array-{self.offset}"


def render_array(job: Job, array: Array, python: str) -> str:
    """Give the sbatch script of an array; pure.

    Its elements find their runs by their place, not by a pickle: nothing that is
    written after sbatch has answered is needed by any of them.
    """
    parameters = {
        **_parameters(job, array.nominal_run, array.token),
        "array_parallelism": array.parallel or array.count,
        "map_count": array.count,
    }
    return _make_sbatch_string(
        _element(array, python), array.sweep / "submitit", **parameters
    )


def send_array(job: Job, array: Array, environ: Mapping[str, str]) -> str:
    """Submit an array and give its id.

    Raises:
        SlurmError: sbatch is missing or refuses; its words are in the message.
    """
    with _environment(environ):
        try:
            executor = SlurmExecutor(folder=array.sweep / "submitit")
            executor.update_parameters(
                **_parameters(job, array.nominal_run, array.token),
                array_parallelism=array.parallel or array.count,
            )
            # submitit's own array path drops python= and names pickles after sbatch.
            executor.parameters["map_count"] = array.count
            return str(
                executor._submit_command(_element(array, sys.executable)).job_id  # noqa: SLF001
            )
        except FailedJobError as error:
            raise SlurmError(_say_refusal(str(error))) from error
        except RuntimeError as error:
            raise SlurmError(_NO_SBATCH) from error


def _element(array: Array, python: str) -> str:
    place = f"{shlex.quote(str(array.sweep))} {array.offset}"
    return f"{_exec(python)} -u -m clusterddp.element {place}"


def written_options(job: Job) -> frozenset[str]:
    """Give the keys of `slurm:` that the script has a line for."""
    section = job.slurm.model_dump(exclude_none=True)
    return frozenset(section) | {key.replace("-", "_") for key in job.slurm.extra}


def _parameters(
    job: Job, run: RunDirectory, token: str = "", after: str | None = None
) -> dict[str, Any]:
    slurm = job.slurm
    waits = [str(slurm.extra.get("dependency") or ""), after or ""]
    dependency = ",".join(filter(None, waits))
    extra = {**slurm.extra, **({"dependency": dependency} if dependency else {})}
    wanted: dict[str, Any] = {
        "job_name": job.name,
        "nodes": slurm.nodes + slurm.spare_nodes,
        "ntasks_per_node": slurm.tasks_per_node,
        "cpus_per_task": slurm.cpus_per_task,
        "gpus_per_node": slurm.gpus_per_node or None,
        "mem": slurm.mem,
        "time": math.ceil(slurm.time / 60),
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "exclude": slurm.exclude,
        "setup": list(slurm.setup) or None,
        "signal_delay_s": math.ceil(slurm.first_delay_s),
        "comment": f"clusterddp {run.path.parent.name}/{run.id} {token}".strip(),
        "stderr_to_stdout": True,
        "use_srun": False,
        "additional_parameters": {"requeue": True, **_outlive_nodes(job), **extra},
    }
    # wckey=None removes submitit's own, which sites that enforce wckeys refuse.
    return {k: v for k, v in wanted.items() if v is not None} | {"wckey": None}


def _outlive_nodes(job: Job) -> dict[str, bool]:
    """A job that goes on without a node must not end with it (sbatch(1), --no-kill)."""
    return {"no_kill": True} if job.outlives_nodes else {}


def _exec(python: str) -> str:
    return f"exec {shlex.quote(python)}"


@contextlib.contextmanager
def _environment(environ: Mapping[str, str]) -> Iterator[None]:
    """Let submitit's sbatch inherit this environment and no other."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _say_refusal(text: str) -> str:
    """Give sbatch's words: the last line is general, the one before names the limit."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [one.removeprefix(_ERROR) for one in lines if one.startswith(_ERROR)]
    words = "; ".join(told) or (lines[-1] if lines else "it gave no reason")
    advice = _NO_ROOM if is_full(words) else ""
    return f"sbatch refused: {words}{advice}"
