"""The code snapshot: what is kept, how often, and what the ranks see of it."""

import subprocess
from pathlib import Path

import pytest

from clusterddp.config import load_job, parse_override
from clusterddp.config.schema import Job
from clusterddp.errors import UsageError
from clusterddp.runs.directory import create_run
from clusterddp.runs.snapshot import (
    link_snapshot,
    plan_snapshot,
    snapshot_path,
    store_snapshot,
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a job, an experiment, a package and some data."""
    root = tmp_path / "project"
    files = {
        "jobs/job.yaml": "name: toy\nexperiment: ../exp.py:build\n",
        "exp.py": "def build(params): return 1\n",
        "pack/__init__.py": "",
        "pack/part.py": "x = 1\n",
        "notes.txt": "notes",
        "data/big.bin": "b" * 3_000_000,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def git(root: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    subprocess.run(["git", "-C", str(root), *identity, *words], check=True)


def load(project: Path, *overrides: str) -> Job:
    path = project / "jobs" / "job.yaml"
    return load_job(path, [parse_override(text) for text in overrides])


def plan_names(project: Path, *overrides: str) -> tuple[str, ...]:
    return plan_snapshot(load(project, *overrides), project / "jobs/job.yaml").names


def test_git_keeps_tracked_files_as_they_are_now(project: Path) -> None:
    """Modified ones as modified, deleted ones not, untracked ones only if listed."""
    git(project, "init", "-q")
    git(project, "add", "exp.py", "pack", "notes.txt", "jobs")
    git(project, "commit", "-qm", "x")
    (project / "notes.txt").unlink()
    (project / "pack" / "part.py").write_text("x = 2\n")
    names = ("exp.py", "jobs/job.yaml", "pack/__init__.py", "pack/part.py")
    assert plan_names(project) == names
    assert plan_names(project, "code.include=['data/*']") == ("data/big.bin", *names)
    plan = plan_snapshot(load(project), project / "jobs/job.yaml")
    assert len(plan.commit) == 40
    digest = store_snapshot(plan, project / "runs")
    kept = project / "runs" / ".code" / digest
    assert (kept / "pack" / "part.py").read_text() == "x = 2\n"


def test_untracked_experiment_is_kept_all_the_same(project: Path) -> None:
    """It is named in the job file; a run without it could not start."""
    git(project, "init", "-q")
    git(project, "add", "pack")
    assert "exp.py" in plan_names(project)


def test_without_git_the_python_files_are_kept(project: Path) -> None:
    """Beside the job and the experiment, packages included; it says so."""
    plan = plan_snapshot(load(project), project / "jobs/job.yaml")
    assert plan.names == ("exp.py", "pack/__init__.py", "pack/part.py")
    assert "is no git checkout: kept 3 .py files" in plan.notes[0]


def test_stored_once_per_content(project: Path) -> None:
    """The same files, one copy; a changed byte, another."""
    plan = plan_snapshot(load(project), project / "jobs/job.yaml")
    runs = project / "runs"
    first = store_snapshot(plan, runs)
    assert store_snapshot(plan, runs) == first
    (project / "exp.py").write_text("def build(params): return 2\n")
    assert store_snapshot(plan, runs) != first
    assert len(list((runs / ".code").iterdir())) == 2


def test_size_cap_names_the_largest_file(project: Path) -> None:
    """3 MB of data under a cap of 1 MiB."""
    with pytest.raises(UsageError) as caught:
        plan_names(project, "code.include=['data/*']", "code.max_mb=1")
    assert "code.max_mb allows 1; the largest is data/big.bin (3 MiB)" in str(
        caught.value
    )


def test_include_that_matches_nothing(project: Path) -> None:
    """A mistyped pattern is told, not passed over."""
    with pytest.raises(UsageError, match=r"code.include: 'dta/\*' matches no file"):
        plan_names(project, "code.include=['dta/*']")


def test_ranks_use_the_snapshot(project: Path) -> None:
    """A file below the root is taken from the snapshot, another from where it is."""
    job = load(project)
    plan = plan_snapshot(job, project / "jobs/job.yaml")
    code = job.code.model_copy(update={"root": str(plan.root)})
    job = job.model_copy(update={"code": code})
    run = create_run(project / "runs", "toy", "r1")
    assert snapshot_path(job, run, project / "exp.py") == project / "exp.py"
    digest = store_snapshot(plan, project / "runs")
    link_snapshot(run, digest)
    kept = (project / "runs" / ".code" / digest).resolve()
    assert snapshot_path(job, run, project / "exp.py") == kept / "exp.py"
    assert snapshot_path(job, run, Path("/etc/hosts")) == Path("/etc/hosts")


def test_experiment_outside_the_checkout_is_noted(
    project: Path, tmp_path: Path
) -> None:
    """It is used from where it is, and the user hears so."""
    other = tmp_path / "elsewhere" / "exp.py"
    other.parent.mkdir()
    other.write_text("def build(params): return 1\n")
    git(project, "init", "-q")
    git(project, "add", "pack")
    job = load(project, f"experiment={other}:build")
    plan = plan_snapshot(job, project / "jobs/job.yaml")
    assert "lies outside" in plan.notes[0]
