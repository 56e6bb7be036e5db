"""Wheel and sdist in fresh virtual environments, away from the source tree.

What is installed there is clusterddp alone; what it needs is taken from the
environment of the tests. Other Pythons are named in CLUSTERDDP_TEST_PYTHONS, separated
by colons: there the login side is installed from the package index, without torch.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterddp.cli import VERBS
from tests.runs import ROOT, clean_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PYTHONS = os.environ.get("CLUSTERDDP_TEST_PYTHONS", "").split(":")
_NEEDED = ("submitit>=1.5", "pyyaml>=6", "psutil>=5.9", "pydantic>=2.7", "rich>=13")
_JOB = """\
name: away
experiment: mine.py:build
launcher: none
train: {epochs: 2, global_batch_size: 4}
slurm: {template: preemptible, tasks_per_node: 1}
"""
_EXPERIMENT = """\
import torch
import clusterddp


def build(params):
    data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    return clusterddp.Experiment(
        model=torch.nn.Linear(2, 1),
        train_data=data,
        loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
"""
# These need torch nowhere, not even in the tests themselves.
_LOGIN_TESTS = (
    *("test_config.py", "test_decision.py", "test_hostlist.py", "test_verdict.py"),
    *("test_blame.py", "test_looking.py", "test_report.py", "test_revival.py"),
    *("test_launch.py", "test_templates.py", "test_sending.py", "test_snapshot.py"),
    *("test_completion.py", "test_terminal.py", "test_sweeps.py", "test_lint.py"),
)


def run(words: Sequence[str | Path], cwd: Path, code: int = 0) -> str:
    """Run a program without the source tree on its path; give what it said."""
    environ = {**clean_environ(), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    del environ["PYTHONPATH"]
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel, an sdist, and the wheel that is made of that sdist."""
    home = tmp_path_factory.mktemp("built")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = run(listed, ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (home / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, home / "tree" / name)
    code = "from setuptools import build_meta as b; print(b.build_{}('{}'))"
    for kind in ("wheel", "sdist"):
        words = [sys.executable, "-c", code.format(kind, home)]
        run(words, home / "tree")
    (sdist,) = home.glob("*.tar.gz")
    (wheel,) = home.glob("*.whl")
    (home / "again").mkdir()
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    run([*pip, "--wheel-dir", home / "again", sdist], home)
    (again,) = (home / "again").glob("*.whl")
    return {"wheel": wheel, "sdist": again}


def make_environment(home: Path, python: str, wheel: Path) -> Path:
    """Give the directory of programs of a fresh environment with clusterddp in it."""
    run([python, "-m", "venv", home / "env"], home)
    programs = home / "env" / "bin"
    run([programs / "python", "-m", "pip", "install", "-q", "--no-deps", wheel], home)
    return programs


def lend_packages(programs: Path) -> None:
    """Let an environment find the packages of this one, but not this clusterddp."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    there = Path(run([programs / "python", "-c", code], programs).strip())
    (there / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """A directory with a job of the user's own."""
    home = tmp_path / "away"
    home.mkdir()
    (home / "job.yaml").write_text(_JOB)
    (home / "mine.py").write_text(_EXPERIMENT)
    return home


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_installed_it_works_away_from_its_source(
    built: dict[str, Path], kind: str, tmp_path: Path, away: Path
) -> None:
    """Help, a template in the dry run, a local run, a report, an export."""
    programs = make_environment(tmp_path, sys.executable, built[kind])
    lend_packages(programs)
    python, command = programs / "python", programs / "clusterddp"
    where = run([python, "-c", "import clusterddp; print(clusterddp.__file__)"], away)
    assert Path(where.strip()).is_relative_to(tmp_path / "env")
    check_login(python, command, away)
    path = Path(run([command, "submit", "job.yaml"], away).splitlines()[0])
    assert (path / "checkpoints" / "step-00000004" / "manifest.json").is_file()
    assert "finished" in run([command, "status", "away"], away)
    assert run([command, "report", "away"], away).strip().endswith("report.html")
    run([command, "export", "away", "weights.pt"], away)
    assert (away / "weights.pt").is_file()


def check_login(python: Path, command: Path, away: Path) -> None:
    """Try what needs no torch."""
    assert run([command, "--version"], away).startswith("clusterddp 0.")
    assert "submit" in run([python, "-m", "clusterddp", "-h"], away)
    for verb in VERBS:
        assert run([command, verb, "-h"], away).startswith(f"usage: clusterddp {verb}")
    shown = run([command, "submit", "job.yaml", "--launcher=slurm", "--dry-run"], away)
    assert "#SBATCH --job-name=away\n" in shown
    assert "#SBATCH --gpus-per-node=4\n" in shown
    wrong = ["submit", "job.yaml", "slurm.template=nothing", "--dry-run"]
    run([command, *wrong], away, code=2)
    assert "clusterddp for zsh" in run([command, "--completion", "zsh"], away)


@pytest.mark.skipif(PYTHONS == [""], reason="CLUSTERDDP_TEST_PYTHONS names none")
@pytest.mark.parametrize("python", PYTHONS)
def test_login_side_on_another_python(
    built: dict[str, Path], python: str, tmp_path: Path, away: Path
) -> None:
    """All that needs no torch, and its tests, with packages from the index."""
    programs = make_environment(tmp_path, python, built["wheel"])
    inside = programs / "python"
    tools = ("pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6")
    run([inside, "-m", "pip", "install", "-q", *_NEEDED, *tools], tmp_path)
    check_login(inside, programs / "clusterddp", away)
    run([programs / "clusterddp", "status", "--runs", away], away)
    tests = [f"tests/{name}" for name in _LOGIN_TESTS]
    options = ["-q", "-p", "no:cacheprovider", "-m", "not cluster and not long"]
    run([inside, "-m", "pytest", *options, *tests], ROOT)
