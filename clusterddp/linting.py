"""Linting a job file: reading the site, asking sbatch, and saying what was found."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clusterddp.config import Job, load_job, runs_root
from clusterddp.config.lint import Advice, Site, lint_job
from clusterddp.errors import SlurmError
from clusterddp.runs.finding import list_named
from clusterddp.runs.saves import advise, read_experience
from clusterddp.runs.timing import read_room
from clusterddp.slurm.patience import is_transient
from clusterddp.slurm.programs import Runner, run_program

__all__ = ["lint", "read_site", "render_advice"]


def lint(path: Path, *, as_json: bool) -> int:
    """Say what would hurt in a job file, and whether Slurm would take it.

    Returns:
        0, or SlurmError's code where sbatch would refuse the job.

    Raises:
        UsageError: the file cannot be used at all.
    """
    job = load_job(path)
    root = runs_root(job, None, os.environ)
    start_s, interval_s = read_room(list_named(root, job.name))
    site = replace(read_site(root), start_s=start_s, interval_s=interval_s)
    found = lint_job(job, site)
    found += _advise_saves(job)
    refusal = _ask_sbatch(job, path)
    if refusal:
        found.append(Advice("CD009", "slurm", refusal))
    if as_json:
        sys.stdout.write(json.dumps([vars(one) for one in found]) + "\n")
    else:
        sys.stdout.write(render_advice(path, found))
    return SlurmError.exit_code if refusal else 0


def _advise_saves(job: Job) -> list[Advice]:
    """Look at what earlier runs of the same name went through."""
    root = runs_root(job, None, os.environ)
    seen = read_experience(list_named(root, job.name))
    text = None if seen is None else advise(job.checkpoint.every, seen)
    return [] if text is None else [Advice("CD010", "checkpoint.every", text)]


def render_advice(path: Path, found: Sequence[Advice]) -> str:
    """Give the findings, one a line; pure."""
    if not found:
        return f"{path}: nothing to say\n"
    return "".join(f"{path}: {one.rule} {one.key}: {one.text}\n" for one in found)


def read_site(root: Path, run: Runner = run_program) -> Site:
    """Give what this place tells: KillWait, and the free space where runs lie."""
    return Site(_kill_wait(run), _free_mb(root))


def _kill_wait(run: Runner) -> float | None:
    try:
        shown = run(["scontrol", "show", "config"])
    except SlurmError:
        return None
    match = re.search(r"^KillWait\s*=\s*(\d+)", shown.out, re.MULTILINE)
    return float(match[1]) if match else None


def _free_mb(root: Path) -> float | None:
    for path in (root, *root.parents):
        if path.is_dir():
            return shutil.disk_usage(path).free / (1 << 20)
    return None


def _ask_sbatch(job: Job, path: Path) -> str | None:
    """Give sbatch's refusal of the script; None if it would take it, or is not here.

    The script is taken from a dry run in another process: this one loads no submitit.
    """
    if job.where != "slurm" or job.sweep is not None or shutil.which("sbatch") is None:
        return None
    words = [sys.executable, "-m", "clusterddp.submit", str(path), "--dry-run"]
    shown = subprocess.run(
        words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
        script.write(shown.stdout.partition("\n# /")[0])
        script.flush()
        done = run_program(["sbatch", "--test-only", script.name])
    # A controller that cannot be asked refuses nothing: only its own verdict counts.
    refused = re.findall(r"(?:allocation failure|sbatch: error): (.+)", done.err)
    if done.code == 0 or not refused or is_transient(done.err):
        return None
    return f"sbatch --test-only refuses it: {refused[-1]}; change slurm: accordingly"
