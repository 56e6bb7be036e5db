"""`submit` at the terminal, where there is no Slurm: what it says and leaves."""

import json
from pathlib import Path

import pytest

from tests.runs import Done, latest, run_python, start, write_job


@pytest.fixture
def no_slurm(tmp_path: Path) -> dict[str, str]:
    """A PATH with Python's needs and without Slurm's programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "env", "sh"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    return {"PATH": str(folder)}


def submit(tmp_path: Path, *words: str, extra: dict[str, str] | None = None) -> Done:
    return run_python(("clusterddp.submit", *words), tmp_path, extra)


def test_without_sbatch_one_line_names_the_way_out(
    tmp_path: Path, no_slurm: dict[str, str]
) -> None:
    """Exit code 4, one line, nothing made."""
    write_job(tmp_path)
    done = submit(tmp_path, "job.yaml", "--nodes", "2", extra=no_slurm)
    assert done.code == 4
    assert done.err.count("\n") == 1
    assert "sbatch: not found" in done.err
    assert "--launcher pytorch" in done.err
    assert not (tmp_path / "runs").exists()


def test_dry_run_touches_nothing_and_needs_no_slurm(
    tmp_path: Path, no_slurm: dict[str, str]
) -> None:
    """The script and the job on stdout, no file anywhere."""
    write_job(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = submit(tmp_path, "job.yaml", "--nodes", "2", "--dry-run", extra=no_slurm)
    assert done.code == 0, done.err
    assert "#SBATCH --nodes=2" in done.out
    assert "nodes: 2" in done.out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["gone.yaml"], "gone.yaml: cannot be read: No such file or directory"),
        (
            ["job.yaml", "train.epoch=3"],
            "train.epoch: unknown key; did you mean epoch",
        ),
        (["job.yaml", "epochs"], "'epochs': expected key=value"),
        (["job.yaml", "--template", "gup"], "template 'gup': not found; the presets"),
        (["job.yaml", "--nodes", "0"], "command line, --nodes 0: slurm.nodes: found 0"),
        (["job.yaml", "--launcher", "mpi"], "invalid choice: 'mpi'"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    tmp_path: Path, words: list[str], text: str
) -> None:
    """Exit code 2, the words that help, nothing made."""
    write_job(tmp_path)
    done = submit(tmp_path, *words)
    assert done.code == 2, done.err
    assert text in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "runs").exists()


def test_runs_directory_and_json(tmp_path: Path) -> None:
    """--runs chooses the place, --json prints an object."""
    write_job(tmp_path)
    words = ("job.yaml", "--launcher", "none", "--json", "train.epochs=1")
    done = submit(tmp_path, *words, "--runs", str(tmp_path / "there" / "runs"))
    assert done.code == 0, done.err
    run = latest(tmp_path / "there")
    first = done.out.splitlines()[0]
    assert json.loads(first) == {"job_id": None, "run_dir": str(run.path)}


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    """`submit --dry-run | head -1`: no traceback."""
    write_job(tmp_path)
    process = start(("clusterddp.submit", "job.yaml", "--dry-run"), tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(60) == 0
    process.stderr.close()


def test_no_words_at_all(tmp_path: Path) -> None:
    """Only what is required is asked for."""
    done = submit(tmp_path)
    assert done.code == 2
    assert done.err.endswith("the following arguments are required: JOB.yaml\n")


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    """A mistyped module: what to do about it, and no offer to go on."""
    write_job(tmp_path, experiment="no_such.module:build")
    done = submit(tmp_path, "job.yaml", "--launcher", "none")
    assert done.code == 2, done.err
    assert "found no module no_such on the import path" in done.err
    assert "as in no_such/module.py:build" in done.err
    assert "mend the job file or the code, then submit it again" in done.err
    assert "Traceback" not in done.err
