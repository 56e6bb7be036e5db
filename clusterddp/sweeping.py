"""Sending a sweep: a run directory per element, then one array of Slurm for all."""

import argparse
import json
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clusterddp.config import Job, change_job, render_job
from clusterddp.config.load import Override
from clusterddp.errors import SlurmError, UsageError
from clusterddp.launch.admission import (
    content_of,
    refuse_odd_root,
    refuse_twin,
    refuse_unseen_python,
)
from clusterddp.launch.submission import (
    Array,
    render_array,
    send_array,
    written_options,
)
from clusterddp.launch.successor import find_sent_job
from clusterddp.runs.directory import RunDirectory, create_run, new_id, point_latest
from clusterddp.runs.ledger import Ledger
from clusterddp.runs.snapshot import (
    CodePlan,
    digest_code,
    link_snapshot,
    store_snapshot,
)
from clusterddp.runs.sweeps import SweepDirectory, expand_sweep, write_values
from clusterddp.runs.turns import take_turn
from clusterddp.slurm.environment import clean_environment
from clusterddp.slurm.patience import is_transient
from clusterddp.slurm.programs import Runner, run_program

__all__ = [
    "Element",
    "expand_jobs",
    "largest_array",
    "make_sweep",
    "send_sweep",
    "submit_sweep",
]

_LOG = logging.getLogger("clusterddp")
_DEFAULT_LARGEST = 1001
_TRIES, _PAUSE_S = 3, 3.0


@dataclass(frozen=True)
class Element:
    """One run of a sweep: what is special about it, and its whole job."""

    values: Mapping[str, object]
    job: Job


def submit_sweep(
    job: Job, root: Path, plan: CodePlan | None, given: argparse.Namespace
) -> int:
    """Make and send the runs of a sweep, and say how they are called.

    Raises:
        UsageError: a sweep cannot do what the command line asks, or is sent already.
        SlurmError: sbatch is missing or refuses.
    """
    _refuse_what_is_for_one_run(job, given)
    elements = expand_jobs(job)
    sweep_id = new_id()
    if given.dry_run:
        path = root / job.name / ".sweeps" / sweep_id
        sys.stdout.write(show_sweep(job, SweepDirectory(path), elements))
        return 0
    refuse_unseen_python(os.environ)
    refuse_odd_root(root)
    code = digest_code(plan) if plan else ""
    known = [_known(element.job, content_of(element.job, code)) for element in elements]
    contents = {str(one["content"]) for one in known}
    look = partial(refuse_twin, root, job, contents)
    with nullcontext() if given.new else take_turn(root / job.name, contents, look):
        digest = store_snapshot(plan, root) if plan and plan.names else None
        sweep = make_sweep(root, sweep_id, elements, digest)
        clean = clean_environment(os.environ, written_options(job))
        ids = send_sweep(
            job, sweep, known, clean.variables, parallel=given.max_parallel
        )
    point_latest(sweep.element(0))
    _print(ids, f"{job.name}/{sweep.id}", as_json=given.json)
    return 0


def _refuse_what_is_for_one_run(job: Job, given: argparse.Namespace) -> None:
    if job.where == "local":
        message = (
            "sweep: found a sweep for this machine, expected one for Slurm, which runs "
            "it as an array; here, run one of its points by key=value with sweep=null"
        )
        raise UsageError(message)
    if shutil.which("sbatch") is None and not given.dry_run:
        message = "sbatch: not found on this machine; submit where Slurm's programs are"
        raise SlurmError(message)
    for option in ("wait", "after", "fork"):
        if getattr(given, option, None):
            message = (
                f"--{option}: found a sweep, expected one run; leave --{option} out, "
                "and look after the runs with clusterddp.status"
            )
            raise UsageError(message)


def _known(job: Job, content: str) -> dict[str, object]:
    nodes, batch = job.slurm.nodes, job.train.global_batch_size
    shape = {"nodes": nodes, "ranks": job.world_size, "batch": batch}
    return {"content": content, **shape}


def _print(ids: Sequence[str], word: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"job_ids": list(ids), "sweep": word}) + "\n")
    else:
        sys.stdout.write("".join(f"{job_id}\t{word}\n" for job_id in ids))
    sys.stdout.flush()


def expand_jobs(job: Job) -> list[Element]:
    """Give the jobs of a sweep, each checked like a job file; pure.

    Raises:
        UsageError: some values cannot be, or do not go with the others.
    """
    if job.sweep is None:
        return []
    base = job.model_copy(update={"sweep": None})
    return [
        Element(values, change_job(base, [_override(*pair) for pair in values.items()]))
        for values in expand_sweep(job.sweep)
    ]


def _override(key: str, value: object) -> Override:
    return Override(tuple(key.split(".")), value, f"sweep {key}={json.dumps(value)}")


def make_sweep(
    root: Path, sweep_id: str, elements: Sequence[Element], digest: str | None
) -> SweepDirectory:
    """Make the directories of all runs and, last, the list of them.

    Raises:
        UsageError: a directory cannot be made.
    """
    sweep = SweepDirectory(root / elements[0].job.name / ".sweeps" / sweep_id)
    (sweep.path / "submitit").mkdir(parents=True)
    for index, element in enumerate(elements):
        run = create_run(root, element.job.name, sweep.element(index).id)
        if digest is not None:
            link_snapshot(run, digest)
        run.job_file.write_text(render_job(element.job))
        write_values(run, sweep, element.values)
    os.sync()  # once for all, instead of twice for each of a thousand
    sweep.write_elements(len(elements))
    return sweep


def largest_array(runner: Runner = run_program) -> int:
    """Give how many elements an array may have: one less than MaxArraySize.

    slurm.conf(5): the largest index is MaxArraySize - 1; its default is 1001.
    """
    shown = runner(["scontrol", "show", "config"])
    match = re.search(r"MaxArraySize\s*=\s*(\d+)", shown.out)
    return max(1, int(match[1] if match else _DEFAULT_LARGEST) - 1)


def arrays(
    sweep: SweepDirectory, count: int, largest: int, parallel: int | None
) -> list[Array]:
    """Give the arrays that cover a sweep, each as large as Slurm allows; pure."""
    return [
        Array(sweep.path, offset, min(largest, count - offset), parallel)
        for offset in range(0, count, largest)
    ]


def show_sweep(job: Job, sweep: SweepDirectory, elements: Sequence[Element]) -> str:
    """Give the script of the first array and the values of all elements; pure."""
    array = Array(sweep.path, 0, len(elements), None)
    lines = (f"# {i:04d} {json.dumps(one.values)}\n" for i, one in enumerate(elements))
    return render_array(job, array, sys.executable) + "\n" + "".join(lines)


def send_sweep(
    job: Job,
    sweep: SweepDirectory,
    known: Sequence[Mapping[str, object]],
    environ: Mapping[str, str],
    parallel: int | None = None,
) -> list[str]:
    """Send the arrays of a sweep, note their jobs, and give the arrays' ids.

    Args:
        job: what the elements have in common.
        sweep: its directory, which exists.
        known: what the ledger shall hold of the submission of each of its runs.
        environ: what sbatch is given as environment.
        parallel: how many elements may run at once; None: no limit.

    Raises:
        SlurmError: sbatch refuses; what was not sent has left no directory.
    """
    sent: list[str] = []
    for array in arrays(sweep, len(known), largest_array(), parallel):
        places = range(array.offset, array.offset + array.count)
        try:
            job_id = _send_surely(job, array, environ)
        except SlurmError:
            for index in range(array.offset, len(known)):
                shutil.rmtree(sweep.element(index).path)
            if not sent:
                shutil.rmtree(sweep.path)
            raise
        sent.append(job_id)
        for index in places:
            _note(
                sweep.element(index), f"{job_id}_{index - array.offset}", known[index]
            )
    return sent


def _note(run: RunDirectory, job_id: str, known: Mapping[str, object]) -> None:
    ledger = Ledger(run, f"login-{os.uname().nodename}-{os.getpid()}")
    ledger.add("submitted", job=job_id, cluster="slurm", **known)


def _send_surely(job: Job, array: Array, environ: Mapping[str, str]) -> str:
    """Send an array; where sbatch's answer gets lost, look for it before a retry."""
    for turn in range(_TRIES):
        try:
            return send_array(job, array, environ)
        except SlurmError as error:
            if not is_transient(str(error)) or turn == _TRIES - 1:
                raise
            time.sleep(_PAUSE_S)
            found = find_sent_job(array.nominal_run, array.token)
            if found is not None:
                _LOG.warning("%s; but job %s was made: going on with it", error, found)
                return found.partition("_")[0]
            _LOG.warning("%s; no job was made: sending it again", error)
    raise AssertionError  # the last turn returns or raises
