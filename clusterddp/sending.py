"""Making a run and sending it: to Slurm through submitit, or through here.

On Slurm it makes the run directory, keeps the code and hands Slurm one job; for a
local run it is the supervisor itself. It never imports torch.
"""

import argparse
import json
import logging
import os
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from clusterddp.config import (
    Job,
    Override,
    load_job,
    parse_override,
    render_job,
    runs_root,
)
from clusterddp.config.checks import warn_about
from clusterddp.config.room import judge_room
from clusterddp.errors import SlurmError, UsageError
from clusterddp.files import write_atomic
from clusterddp.launch.admission import (
    content_of,
    dependency_on,
    refuse_odd_root,
    refuse_twin,
    refuse_unseen_python,
)
from clusterddp.runs.claims import next_token
from clusterddp.runs.directory import RunDirectory, create_run, new_id, point_latest
from clusterddp.runs.finding import find_run, list_named, name_some
from clusterddp.runs.ledger import Ledger
from clusterddp.runs.snapshot import (
    CodePlan,
    changed_names,
    digest_code,
    link_snapshot,
    plan_snapshot,
    store_snapshot,
)
from clusterddp.runs.source import copy_checkpoint, find_named, fix_source
from clusterddp.runs.survey import survey
from clusterddp.runs.timing import read_room
from clusterddp.runs.turns import take_turn
from clusterddp.runs.verdict import read_summary
from clusterddp.slurm.environment import clean_environment
from clusterddp.sweeping import submit_sweep

__all__ = ["submit"]

_LOG = logging.getLogger("clusterddp")
_FLAGS = {
    "nodes": ("slurm", "nodes"),
    "tasks_per_node": ("slurm", "tasks_per_node"),
    "launcher": ("launcher",),
    "cluster": ("cluster",),
    "template": ("slurm", "template"),
}


def submit(given: argparse.Namespace) -> int:
    """Carry out what `clusterddp.submit` was asked, and give its exit code.

    Raises:
        UsageError: the job file or an override cannot be used.
        SlurmError: sbatch is missing or refuses.
    """
    job = load_job(given.job, _overrides(given))
    root = runs_root(job, given.runs, os.environ)
    job = fix_source(job, root)
    forked = find_named(given.fork, root) if given.fork else None
    plan = plan_snapshot(job, given.job) if job.code.snapshot else None
    if plan is not None and plan.names:
        code = job.code.model_copy(update={"root": str(plan.root)})
        job = job.model_copy(update={"code": code})
    warnings = [*warn_about(job), *_warn_of_time(job, root)]
    for warning in [*warnings, *(plan.notes if plan else ())]:
        _LOG.warning("%s", warning)
    if job.sweep is not None:
        return submit_sweep(job, root, plan, given)
    after = _dependency(given.after, job, root)
    if given.dry_run:
        return _show(job, RunDirectory(root / job.name / new_id()), after)
    _refuse_what_cannot_work(job, root)
    content = content_of(job, digest_code(plan) if plan else "")
    with _only_one(job, root, content, is_new=given.new or forked is not None):
        run = _make_run(job, root, plan, forked)
        if job.where == "local":
            return _run_here(job, run, content, as_json=given.json)
        job_id = _send(job, run, content, after)
    _print(run, job_id, as_json=given.json)
    _tell_of_changes(plan, run.code)
    if not given.wait:
        return 0
    from clusterddp.wait import wait_for

    return wait_for(run, job_id)


def _warn_of_time(job: Job, root: Path) -> list[str]:
    text = judge_room(job, *read_room(list_named(root, job.name)))
    return [] if text is None else [f"slurm.time: {text}"]


def _dependency(word: str | None, job: Job, root: Path) -> str | None:
    if word is None:
        return None
    if job.where == "local":
        message = (
            f"--after {word}: found a run on this machine, expected one on Slurm, "
            "which alone can wait; leave --after out"
        )
        raise UsageError(message)
    return dependency_on(survey([find_run(word, root)])[0])


def _refuse_what_cannot_work(job: Job, root: Path) -> None:
    if job.where == "slurm":
        _refuse_without_sbatch()
        refuse_unseen_python(os.environ)
        refuse_odd_root(root)


def _only_one(
    job: Job, root: Path, content: str, *, is_new: bool
) -> AbstractContextManager[None]:
    """Refuse what is under way already, also where two are sent at one moment."""
    if is_new:
        return nullcontext()
    look = partial(refuse_twin, root, job, {content})
    return take_turn(root / job.name, {content}, look)


def _tell_of_changes(plan: CodePlan | None, kept: Path) -> None:
    names = changed_names(plan, kept) if plan is not None and kept.is_dir() else []
    if names:
        _LOG.warning(
            "code: %s changed after it was kept; the run has what %s holds: submit "
            "once more with --new for the newer state",
            *(name_some(names), kept),
        )


def _overrides(given: argparse.Namespace) -> list[Override]:
    flags = [
        Override(key, value, f"--{name.replace('_', '-')} {value}")
        for name, key in _FLAGS.items()
        if (value := getattr(given, name)) is not None
    ]
    return [*map(parse_override, given.overrides), *flags]


def _refuse_without_sbatch() -> None:
    if shutil.which("sbatch") is None:
        message = (
            "sbatch: not found on this machine; submit where Slurm's programs are, or "
            "run the job here with --launcher pytorch"
        )
        raise SlurmError(message)


def _show(job: Job, run: RunDirectory, after: str | None) -> int:
    """Print what would be sent; nothing is made, not even a directory."""
    if job.where == "slurm":
        from clusterddp.launch.submission import render_script

        sys.stdout.write(
            render_script(job, run, sys.executable, next_token(run), after)
        )
    sys.stdout.write(f"\n# {run.job_file}\n{render_job(job)}")
    return 0


def _make_run(
    job: Job, root: Path, plan: CodePlan | None, forked: Path | None
) -> RunDirectory:
    digest = store_snapshot(plan, root) if plan and plan.names else None
    run = create_run(root, job.name, new_id())
    if digest is not None:
        link_snapshot(run, digest)
    write_atomic(run.job_file, render_job(job).encode())
    if forked is not None:
        copy_checkpoint(forked, run)
    return run


def _ledger(run: RunDirectory) -> Ledger:
    return Ledger(run, f"login-{os.uname().nodename}-{os.getpid()}")


def _send(job: Job, run: RunDirectory, content: str, after: str | None) -> str:
    from clusterddp.launch.first_job import send_first_job
    from clusterddp.launch.submission import written_options
    from clusterddp.supervise import in_job

    clean = clean_environment(os.environ, written_options(job))
    if clean.dropped:
        _LOG.info("kept out of the job: %s", ", ".join(clean.dropped))
    job_id, claim = send_first_job(run, job, clean.variables, in_job, after)
    known = {"token": claim.token, "content": content, **_shape(job)}
    _ledger(run).add("submitted", job=job_id, cluster="slurm", **known)
    point_latest(run)
    return job_id


def _shape(job: Job) -> dict[str, object]:
    """Give what `status` would have to read from a thousand job files otherwise."""
    return {
        "nodes": job.slurm.nodes,
        "ranks": job.world_size,
        "batch": job.train.global_batch_size,
    }


def _run_here(job: Job, run: RunDirectory, content: str, *, as_json: bool) -> int:
    from clusterddp.runs.view import live_view
    from clusterddp.supervise import supervise

    known = {"content": content, **_shape(job)}
    _ledger(run).add("submitted", job=None, cluster="local", **known)
    point_latest(run)
    _print(run, None, as_json=as_json)
    with live_view(run):
        code = supervise(run.path)
    _say_where_to_look(run, code)
    return code


def _print(run: RunDirectory, job_id: str | None, *, as_json: bool) -> None:
    if as_json:
        line = json.dumps({"job_id": job_id, "run_dir": str(run.path)})
    else:
        line = str(run.path) if job_id is None else f"{job_id}\t{run.path}"
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _say_where_to_look(run: RunDirectory, code: int) -> None:
    _LOG.info("%s", _say_how_it_ended(run, code))
    if code == UsageError.exit_code:
        _LOG.info("mend the job file or the code, then submit it again")
        return
    for words, path in (
        ("checkpoints  ", run.checkpoints),
        ("metrics      ", run.metrics),
        ("curves       tensorboard --logdir ", run.tensorboard),
    ):
        if path.exists():  # a script writes what it likes
            _LOG.info("%s%s", words, path)
    if code != 0:
        _LOG.info("go on with   python -m clusterddp.supervise %s", run.path)


def _say_how_it_ended(run: RunDirectory, code: int) -> str:
    attempts = run.list_attempts()
    summary = read_summary(attempts[-1]) if attempts else None
    if summary is None:
        return f"ended with code {code}"
    word = "finished" if code == 0 else "stopped"
    if not summary.total_steps:  # a script of one's own
        return word
    values = (f"{name} {value:.4g}" for name, value in summary.metrics.items())
    return " · ".join([f"{word} at step {summary.step}/{summary.total_steps}", *values])
