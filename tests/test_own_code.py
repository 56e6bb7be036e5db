"""The examples of docs/ and examples/ work as they stand, by copy and paste."""

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clusterddp.config import load_job
from tests.runs import ROOT, latest, run_python

charlm = SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "charlm.py")))
SUBMIT = ("clusterddp.submit", "--launcher=pytorch")
_BLOCK = re.compile(r"```\w+\n# (\S+\.\w+)\n(.*?)```", re.DOTALL)


def paste(page: str, directory: Path) -> None:
    """Write the files that a page of docs/ shows; their first line is their name."""
    text = (ROOT / "docs" / page).read_text()
    for name, content in _BLOCK.findall(text):
        (directory / name).write_text(content)


def test_an_experiment_of_ones_own(tmp_path: Path) -> None:
    """As docs/training.md shows it."""
    paste("training.md", tmp_path)
    done = run_python((*SUBMIT, "job.yaml"), tmp_path)
    assert done.code == 0, done.err
    lines = latest(tmp_path, "mine").metrics.read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["step"] == 48
    assert last["eval/accuracy"] > 0.8
    shown = (ROOT / "docs" / "training.md").read_text()
    own = {name for name in last if "/" not in name} - {"step", "epoch", "time"}
    assert all(f"`{name}`" in shown for name in own), own


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    """As docs/training.md shows it; finished, it is finished."""
    paste("training.md", tmp_path)
    done = run_python((*SUBMIT, "loop.yaml"), tmp_path)
    assert done.code == 0, done.err
    run = latest(tmp_path, "loop")
    assert str(run.metrics) in done.err
    assert [path.name for path in run.checkpoints.glob("step-*")] == ["step-00000040"]
    assert len(run.metrics.read_text().splitlines()) == 4


def test_the_explanation_is_what_the_page_shows(tmp_path: Path) -> None:
    """Every question, and every figure that does not depend on the machine."""
    job = ROOT / "jobs" / "explain.yaml"
    done = run_python((*SUBMIT, str(job), "code.snapshot=false"), tmp_path)
    assert done.code == 0, done.err
    run = latest(tmp_path, "explain")
    assert "finished\n" in done.err
    assert str(run.metrics) not in done.err, "there are none"
    said = (run.path / "explained.txt").read_text()
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    varying = re.compile(r"\d+\.\d s|:\d{4,5}$|^\d+  \d+ +\S+ +\d+|RuntimeError")
    lines = [line for line in said.splitlines() if not varying.search(line)]
    assert len(lines) > 30
    for line in lines:
        squeezed = " ".join(line.split())
        assert squeezed in " ".join(page.split()), line


def test_text_is_predicted_on_files_that_were_not_seen() -> None:
    """No file is in both parts; windows cover a part without overlap."""
    train, held_out = charlm.load(50_000, 20_000)
    assert (len(train), len(held_out)) == (50_000, 20_000)
    windows = charlm.Windows(held_out, 128)
    assert len(windows) == (20_000 - 1) // 128
    assert torch.equal(windows[0][-1], windows[1][0])
    seen = charlm.Windows(train, 128)
    passages = {tuple(seen[index].tolist()) for index in range(len(seen))}
    assert not any(tuple(windows[i].tolist()) in passages for i in range(len(windows)))


def test_a_character_sees_only_those_before_it() -> None:
    """Or the held-out figures would be worth nothing."""
    torch.manual_seed(0)
    model = charlm.Transformer(16, 32, 1).eval()
    text = torch.randint(0, 90, (1, 16))
    other = text.clone()
    other[0, 9:] = 3
    assert torch.equal(model(text)[0, :9], model(other)[0, :9])
    loss = charlm.loss(model, text)
    assert charlm.count_characters(text) == 15
    assert torch.allclose(charlm.evaluate(model, text)["loss"], loss)


@pytest.mark.parametrize(
    ("step", "share"), [(0, 0.1), (9, 1.0), (10, 1.0), (100, 0.1), (1000, 0.1)]
)
def test_the_learning_rate_rises_and_falls(step: int, share: float) -> None:
    """Over a hundred steps: ten up, then a cosine to a tenth."""
    assert charlm.rate(step, 100) == pytest.approx(share)


@pytest.mark.parametrize("name", ["charlm", "explain"])
def test_job_files_of_the_examples_load(name: str) -> None:
    """And open with the command that runs them."""
    path = ROOT / "jobs" / f"{name}.yaml"
    assert load_job(path, []).name == name
    assert f"python -m clusterddp.submit jobs/{name}.yaml" in path.read_text()
