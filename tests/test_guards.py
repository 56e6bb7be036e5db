"""Promises about the tree itself, so that nobody has to remember them."""

import subprocess
import sys
import time

import pytest

import clusterddp
from clusterddp.cli import VERBS, main
from tests.runs import ROOT, clean_environ

LOGIN = [
    "clusterddp",
    "clusterddp.cli",
    "clusterddp.doctor",
    "clusterddp.submit",
    "clusterddp.wait",
    "clusterddp.supervise",
    "clusterddp.reviving",
    "clusterddp.cancelling",
    "clusterddp.drilling",
    "clusterddp.launch.submission",
    "clusterddp.runs.view",
    "clusterddp.status",
    "clusterddp.why",
    "clusterddp.logs",
    "clusterddp.report",
]


@pytest.mark.parametrize("module", LOGIN)
def test_login_layer_leaves_torch_alone(module: str) -> None:
    """Importing what the login node runs does not load torch."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=clean_environ())


def test_rank_layer_leaves_submitit_alone() -> None:
    """A rank does not load submitit."""
    code = "import sys, clusterddp.train, clusterddp.training as t; t.Trainer; sys.exit"
    code += "('submitit' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=clean_environ())


def test_public_names_are_exact() -> None:
    """Every name in __all__ is there, and no public name is missing from it."""
    for name in clusterddp.__all__:
        assert getattr(clusterddp, name) is not None
    assert sorted(clusterddp.__all__) == clusterddp.__dir__()
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = clusterddp.nothing


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_answers_and_is_in_the_readme(verb: str) -> None:
    """`-h` works for each verb; the README names it."""
    done = subprocess.run(
        [sys.executable, "-m", f"clusterddp.{verb}", "-h"],
        check=True,
        capture_output=True,
        text=True,
        env=clean_environ(),
    )
    assert done.stdout.startswith(f"usage: clusterddp {verb}")
    assert "exit codes" in done.stdout
    assert f"clusterddp.{verb}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 0, "usage: clusterddp VERB"),
        (["-h"], 0, "submit"),
        (["submti"], 2, "submti: no such verb; expected one of submit"),
    ],
)
def test_command(words: list[str], code: int, text: str) -> None:
    """The one command above the verbs."""
    done = subprocess.run(
        [sys.executable, "-m", "clusterddp", *words],
        check=False,
        capture_output=True,
        text=True,
        env=clean_environ(),
    )
    assert done.returncode == code
    assert text in done.stdout + done.stderr


def test_interrupted_while_a_verb_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C has its code and no traceback even then."""

    def interrupt(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clusterddp.cli.importlib.import_module", interrupt)
    assert main(["status"]) == 130
    assert capsys.readouterr().err == "clusterddp: interrupted\n"


def test_sizes() -> None:
    """README at most 150 lines, CONTRIBUTING at most 60, decisions at most 40."""
    limits = {"README.md": 150, "CONTRIBUTING.md": 60}
    pages = dict.fromkeys((ROOT / "docs" / "decisions").glob("*.md"), 40)
    limits.update({str(page.relative_to(ROOT)): size for page, size in pages.items()})
    for name, size in limits.items():
        assert len((ROOT / name).read_text().splitlines()) <= size, name


def test_command_line_starts_before_torch_could() -> None:
    """`-h` and `--dry-run` take less time than importing torch; no seconds asserted.

    The targets are in benchmarks/start.py; ten times the larger one is the ceiling.
    """
    dry_run = ("clusterddp.submit", "jobs/exp.yaml", "--dry-run")
    torch = time_of("-c", "import torch")
    assert time_of("-m", "clusterddp.submit", "-h") < torch
    assert time_of("-m", *dry_run) < min(torch, 3.5)


def time_of(*words: str) -> float:
    """Give the least of three times that `python ...` takes."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, *words],
            check=True,
            capture_output=True,
            cwd=ROOT,
            env=clean_environ(),
        )
        times.append(time.perf_counter() - started)
    return min(times)
