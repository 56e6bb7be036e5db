"""Weights that leave a run or enter one: exported, begun with, forked, refused."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clusterddp import export
from clusterddp.config.schema import InitFrom, Job
from clusterddp.errors import CheckpointError, UsageError
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.source import (
    copy_checkpoint,
    find_checkpoint,
    find_named,
    fix_source,
)
from clusterddp.training import Experiment
from clusterddp.training import checkpoint_files as disk
from clusterddp.training.weights import compare, read_weights, start_warm
from tests import training_ranks as ranks
from tests.runs import latest, run_python, write_job
from tests.training_ranks import build_noisy, final_state


def network(width: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Give a run with checkpoints of steps 2 and 5, the latter with an average."""
    run = RunDirectory(tmp_path / "runs" / "net" / "one")
    run.checkpoints.mkdir(parents=True)
    run.job_file.write_text("name: net\n")
    for step in (2, 5):
        torch.manual_seed(step)
        weights = network().state_dict()
        contents: dict[str, object] = {"model.pt": weights}
        if step == 5:
            average = {"0.weight": torch.full((3, 2), 7.0)}
            contents["ema.pt"] = {"count": 1, "model": average}
        path = run.checkpoints / disk.checkpoint_name(step)
        disk.write_files(path, contents, {"step": step, "attempt": 0})
    return run


def weights_of(step: int) -> dict[str, Tensor]:
    torch.manual_seed(step)
    return dict(network().state_dict())


def is_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_export(
    run: RunDirectory,
    tmp_path: Path,
    suffix: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The newest, an older one, the average; what was there is replaced whole."""
    out = tmp_path / f"weights{suffix}"
    for words, step in (([], 5), (["--step", "2"], 2)):
        assert export.main([str(run.path), str(out), *words]) == 0
        assert is_equal(read_weights(out), weights_of(step))
    root = ["--runs", str(run.path.parent.parent), "--json"]
    capsys.readouterr()
    assert export.main(["net", str(out), "--ema", *root]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 5
    average = read_weights(out)
    assert average["0.weight"].tolist() == [[7.0, 7.0]] * 3
    assert torch.equal(average["0.bias"], weights_of(5)["0.bias"])
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["OUT.onnx"], 2, "OUT.onnx: ends in .onnx, expected one of .pt, .safetensors"),
        (["OUT.pt", "--step", "3"], 2, "no checkpoint of step 3; there are 5, 2"),
        (["OUT.pt", "--step", "2", "--ema"], 2, "holds no average of the weights; le"),
        (["no/such/OUT.pt"], 2, "cannot be written: No such file or directory; name"),
    ],
)
def test_export_refuses(
    run: RunDirectory,
    tmp_path: Path,
    words: list[str],
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message says what there is instead."""
    out, *rest = words
    assert export.main([str(run.path), str(tmp_path / out), *rest]) == code
    assert text in capsys.readouterr().err


def test_without_safetensors(
    run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message names the package and the other format."""
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    out = tmp_path / "x.safetensors"
    assert export.main([str(run.path), str(out)]) == 2
    assert "pip install 'clusterddp[safetensors]', or write a .pt" in (
        capsys.readouterr().err
    )
    out.touch()
    with pytest.raises(UsageError, match="safetensors is not installed; pip install"):
        read_weights(out)


def test_a_damaged_checkpoint_is_not_exported(run: RunDirectory) -> None:
    """The one before is taken; asked for by its step it is refused."""
    path = run.checkpoints / disk.checkpoint_name(5)
    (path / "model.pt").write_bytes(b"x")
    assert find_checkpoint(run).name == disk.checkpoint_name(2)
    with pytest.raises(CheckpointError, match="truncated: 1 bytes"):
        find_checkpoint(run, 5)
    (run.checkpoints / disk.checkpoint_name(2) / "model.pt").unlink()
    with pytest.raises(CheckpointError, match="no good checkpoint: .*truncated.*half"):
        find_checkpoint(run)
    assert path.is_dir(), "whoever only looks sets nothing aside"


def test_names_of_checkpoints(run: RunDirectory, tmp_path: Path) -> None:
    """RUN, NAME or NAME/ID, and perhaps @STEP."""
    root = run.path.parent.parent
    for word, step in (("net", 5), ("net@2", 2), (f"{run.path}@5", 5), ("net/one", 5)):
        assert find_named(word, root).name == disk.checkpoint_name(step)
    with pytest.raises(UsageError, match="net@last: expected RUN@STEP with a number"):
        find_named("net@last", root)
    empty = RunDirectory(tmp_path / "empty")
    with pytest.raises(UsageError, match="no checkpoint yet; wait for the first"):
        find_checkpoint(empty)


def test_a_source_is_fixed_when_the_job_is_sent(run: RunDirectory) -> None:
    """So a later checkpoint of the other run changes nothing."""
    root = run.path.parent.parent
    job = Job.model_validate({"name": "x", "init_from": "net"})
    fixed = fix_source(job, root)
    assert fixed.init_from is not None
    assert fixed.init_from.source == str(run.checkpoints / disk.checkpoint_name(5))
    assert fix_source(fixed, root) == fixed
    assert fix_source(Job(name="x"), root) == Job(name="x")


def test_a_warm_start(run: RunDirectory, tmp_path: Path) -> None:
    """Weights from a checkpoint, or a file, with a wrapper's prefix or without."""
    path = run.checkpoints / disk.checkpoint_name(2)
    file = tmp_path / "weights.pt"
    torch.save({f"module.{k}": v for k, v in weights_of(2).items()}, file)
    for source in (path, file):
        model = network()
        start_warm(model, InitFrom(source=str(source)))
        assert is_equal(model.state_dict(), weights_of(2))


def test_a_warm_start_with_exceptions(tmp_path: Path) -> None:
    """What is named keeps its initial values; anything else must fit."""
    file = tmp_path / "weights.pt"
    weights = weights_of(2)
    weights["0.weight"] = torch.zeros(9, 9)
    weights["head"] = weights.pop("0.bias")
    torch.save(weights, file)
    model = network()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    words = (
        r"weights.pt: does not fit the model: missing: 0.bias; unknown: head; of "
        r"another shape: 0.weight \(\(9, 9\), the model's \(3, 2\)\); give weights of"
    )
    with pytest.raises(UsageError, match=words):
        start_warm(model, InitFrom(source=str(file)))
    start_warm(model, InitFrom(source=str(file), skip=("0.*", "head")))
    found = model.state_dict()
    assert torch.equal(found["0.weight"], kept["0.weight"])
    assert torch.equal(found["0.bias"], kept["0.bias"])
    assert torch.equal(found["1.running_mean"], weights["1.running_mean"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x", "holds no weights: "),
        ({"model": {"w": torch.ones(1)}}, "holds no state dict of tensors by name"),
        ({"x": Path("x")}, "holds no weights: Weights only load failed"),
    ],
)
def test_no_weights(tmp_path: Path, content: object, words: str) -> None:
    """The message says what is expected; nothing is unpickled."""
    file = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(UsageError, match=words):
        read_weights(file)


def test_differences_are_named() -> None:
    """A few of them, and how many more there are."""
    assert compare(network(), network().state_dict()) == []
    assert compare(network(), {}) == [
        "missing: 0.weight, 0.bias, 1.weight, 1.bias and 3 more"
    ]


def settings(**keys: object) -> dict[str, Any]:
    return {
        "params": {"sleep": 0.0},
        "train": {"epochs": 2, "global_batch_size": 24},
        "checkpoint": {"every": "5 steps"},
        "log": {"every": 4},
        **keys,
    }


def test_a_run_begins_with_weights(tmp_path: Path) -> None:
    """And only begins: started again it goes on from its own checkpoint."""
    first = tmp_path / "first"
    assert ranks.start_training(first, 0, 2, build_noisy, settings()).wait() == [0, 0]
    source = disk.list_checkpoints(first / "checkpoints")[0]
    warm = settings(init_from={"source": str(source)})
    states = []
    for name, chosen in (("cold", settings()), ("warm", warm), ("again", warm)):
        path = tmp_path / name
        started = ranks.start_training(path, 0, 2, build_noisy, chosen)
        assert started.wait() == [0, 0], started.output()
        states.append(final_state(path))
    assert states[1] == states[2] != states[0]
    source.rename(source.with_name("gone"))
    started = ranks.start_training(tmp_path / "warm", 1, 2, build_noisy, warm)
    assert started.wait() == [0, 0], started.output()
    started = ranks.start_training(tmp_path / "new", 0, 2, build_noisy, warm)
    assert started.wait() == [1, 1]
    assert "no run of that name below" in started.output()


def test_a_fork_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """From the full state of another run, also when attempts start and stop later."""
    straight, fork = tmp_path / "straight", RunDirectory(tmp_path / "fork")
    assert ranks.start_training(straight, 7, 2, build_noisy, settings()).wait() == [
        0,
        0,
    ]
    fork.checkpoints.mkdir(parents=True)
    source = straight / "checkpoints" / disk.checkpoint_name(5)
    manifest = disk.verify(copy_checkpoint(source, fork))
    assert (manifest["attempt"], manifest["forked_from"]) == (-1, str(source))
    stopped = settings(params={"stop_at": 3})
    codes = ranks.start_training(fork.path, 0, 2, build_noisy, stopped).wait()
    assert codes == [ranks.STOPPED] * 2
    assert ranks.start_training(fork.path, 1, 2, build_noisy, settings()).wait() == [
        0,
        0,
    ]
    expected, found = final_state(straight), final_state(fork.path)
    expected["lines"] = [x for x in expected["lines"] if int(x["step"]) > 5]
    assert found == expected


def build_wider(params: Mapping[str, Any]) -> Experiment:
    return replace(build_noisy(params), model=nn.Sequential(nn.Linear(6, 2)))


def build_adam(params: Mapping[str, Any]) -> Experiment:
    return replace(
        build_noisy(params),
        optimizer=lambda parameters: torch.optim.Adam(
            [{"params": [parameter]} for parameter in parameters]
        ),
    )


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (build_wider, "model.pt: of another model: unknown: 1.weight, 1.bias, 1.run"),
        (build_adam, "the state beside the weights does not fit: ValueError: loaded"),
    ],
    ids=["model", "optimizer"],
)
def test_another_experiment_is_refused(
    tmp_path: Path, build: ranks.Build, words: str
) -> None:
    """On all ranks, with what differs; nothing is set aside, for nothing is bad."""
    assert ranks.start_training(tmp_path, 0, 1, build_noisy, settings()).wait() == [0]
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    started = ranks.start_training(tmp_path, 1, 2, build, settings(train={"epochs": 9}))
    assert started.wait() == [1, 1]
    assert started.output().count("CheckpointError: ") == 2
    assert words in started.output()
    assert before == sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def test_submit_forks(tmp_path: Path) -> None:
    """A new run that ends as the other did, from the step on; the other is left."""
    write_job(tmp_path)
    submit = ("clusterddp.submit", "job.yaml", "--launcher", "none")
    done = run_python(submit, tmp_path)
    assert done.code == 0, done.err
    first = latest(tmp_path)
    before = sorted(path.name for path in first.checkpoints.iterdir())
    done = run_python((*submit, "--fork", "toy@20"), tmp_path)
    assert done.code == 0, done.err
    fork = latest(tmp_path)
    assert fork.path != first.path
    assert json.loads(fork.metrics.read_text().splitlines()[0])["step"] == 25
    for name in ("model.pt", "optimizer.pt"):
        ends = [run.checkpoints / "step-00000030" / name for run in (first, fork)]
        assert ends[0].read_bytes() == ends[1].read_bytes()
    assert before == sorted(path.name for path in first.checkpoints.iterdir())
    done = run_python((*submit, "--fork", "toy@3"), tmp_path)
    assert done.code == 2
    assert "no checkpoint of step 3; there are 30, 25, 20" in done.err
    assert latest(tmp_path) == fork
