"""Saves in the background: copied at once, durable later, and never named before."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from clusterddp.config.schema import Checkpoint as Rules
from clusterddp.dist import World, init_dist, shutdown
from clusterddp.errors import CheckpointError
from clusterddp.runs.directory import RunDirectory
from clusterddp.training import Checkpoints, Experiment, Snapshot
from clusterddp.training import checkpoint_files as disk
from clusterddp.training.host_copy import HostCopy, count_bytes, on_host
from tests import training_ranks as ranks
from tests.training_ranks import build_noisy, final_state

if TYPE_CHECKING:
    from clusterddp.training.checkpoint_writer import Result

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Give a world of one."""
    yield init_dist("none")
    shutdown()


class Bench:
    """Checkpoints of one attempt, whose writes can be held."""

    def __init__(self, path: Path, world: World, **rules: object) -> None:
        self.run = RunDirectory(path)
        self.run.attempt(0).path.mkdir(parents=True)
        self.reports: list[str] = []
        self.results: list[Result] = []
        self.target = Checkpoints(
            self.run,
            world,
            attempt=0,
            rules=Rules.model_validate(rules),
            report=self.reports.append,
        )
        self.target.call_when_done(self.results.append)
        self.go = threading.Event()

    def hold(self, patch: pytest.MonkeyPatch) -> None:
        """Let writes wait for `go`."""
        write = disk.write_files

        def held(*args: Any) -> int:  # noqa: ANN401
            assert self.go.wait(30)
            return write(*args)

        patch.setattr(disk, "write_files", held)

    def steps(self) -> list[int]:
        """Give the published steps, the newest first."""
        return [int(p.name[5:]) for p in disk.list_checkpoints(self.run.checkpoints)]

    def log(self) -> list[dict[str, Any]]:
        """Give the attempt's lines on saves."""
        lines = self.run.attempt(0).saves.read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def bench(tmp_path: Path, world: World) -> Bench:
    return Bench(tmp_path, world)


def snapshot(step: int, weights: Tensor | None = None) -> Snapshot:
    weights = torch.full((100,), float(step)) if weights is None else weights
    return Snapshot(step, {"model.pt": {"w": weights}}, {"step": step})


def loaded_weights(bench: Bench, step: int) -> Tensor:
    path = bench.run.checkpoints / disk.checkpoint_name(step) / "model.pt"
    weights: Tensor = torch.load(path, weights_only=True)["w"]
    return weights


@pytest.mark.parametrize("naive", [False, True], ids=["copied", "naive"])
def test_training_goes_on_while_a_state_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, naive: bool
) -> None:
    """What it changes meanwhile is not in the checkpoint; without a copy it is."""
    if naive:
        monkeypatch.setattr(HostCopy, "take", lambda _self, state: dict(state))
    bench.hold(monkeypatch)
    weights = torch.ones(100)
    bench.target.start(snapshot(1, weights), {})
    weights += 1
    assert bench.steps() == []
    bench.go.set()
    assert bench.target.finish().error is None
    assert torch.equal(loaded_weights(bench, 1), torch.ones(100)) is not naive


def test_nothing_is_told_before_it_is_durable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the log nor to who asked; then both say what it cost."""
    bench.hold(monkeypatch)
    order: list[str] = []
    bench.target.start(snapshot(3), {}, before=lambda: order.append("before"))
    assert (bench.results, bench.run.attempt(0).saves.exists()) == ([], False)
    bench.go.set()
    bench.target.close()
    assert order == ["before"]
    (result,) = bench.results
    assert (result.step, result.error, bench.steps()) == (3, None, [3])
    (line,) = bench.log()
    assert line["event"] == "saved"
    assert line["bytes"] == sum(p.stat().st_size for p in _files(bench, 3))
    assert {"stall_s", "copy_s", "write_s", "time", "step"} < set(line)


def _files(bench: Bench, step: int) -> list[Path]:
    return list((bench.run.checkpoints / disk.checkpoint_name(step)).iterdir())


def test_one_is_in_flight(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next save waits for it."""
    bench.hold(monkeypatch)
    bench.target.start(snapshot(1), {})
    second = threading.Thread(target=bench.target.start, args=(snapshot(2), {}))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    assert not list(bench.run.checkpoints.glob("*00000002*"))
    bench.go.set()
    second.join(30)
    assert bench.target.finish().error is None
    assert bench.steps() == [2, 1]


def test_an_error_surfaces_at_the_next_save(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is reported at once; the older one stays."""
    assert bench.target.save(snapshot(1), {}).error is None
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_files", _raise(OSError(5, "Input/output error")))
        assert bench.target.start(snapshot(2), {}).error is None
        bench.target.close()
    saved = bench.target.start(snapshot(3), {})
    assert saved.error is not None
    assert saved.error.endswith("step-00000002: not saved: Input/output error")
    assert bench.reports == [f"{saved.error}; going on, the older ones are intact"]
    assert bench.target.finish().error is None
    assert bench.steps() == [3, 1]
    assert [line["event"] for line in bench.log()] == ["saved", "failed", "saved"]


def _raise(error: Exception) -> Callable[..., int]:
    def write(*_: object) -> int:
        raise error

    return write


@pytest.mark.parametrize("background", [True, False])
def test_too_many_failures_in_a_row(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, background: bool
) -> None:
    """End it, with exit code 5; one success in between starts the count anew."""
    save = bench.target.start if background else bench.target.save
    failing = _raise(OSError(28, "No space left on device"))
    for step, fails in enumerate([True, True, False, True, True, True], 1):
        bench.target.close()
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr(disk, "write_files", failing)
            if step == 6 and not background:
                break
            save(snapshot(step), {})
            bench.target.close()
    words = r"step-00000006: not saved: No space left on device; 3 saves in a row"
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_files", failing)
        with pytest.raises(CheckpointError, match=words) as found:
            save(snapshot(6), {})
    assert found.value.exit_code == 5
    with pytest.raises(CheckpointError, match="make room, then start again"):
        bench.target.finish()
    assert bench.steps() == [3]


def test_an_unforeseen_error_is_not_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no disk trouble, so it ends the training."""
    monkeypatch.setattr(disk, "write_files", _raise(RuntimeError("odd")))
    bench.target.start(snapshot(1), {})
    words = "step-00000001: cannot be written: RuntimeError: odd"
    with pytest.raises(CheckpointError, match=words):
        bench.target.finish()


def test_rules_hold_in_the_run(tmp_path: Path, world: World) -> None:
    """The newest two, every fourth, and the best."""
    rules = {"keep": 2, "keep_every": 4, "best": "min loss"}
    bench = Bench(tmp_path, world, **rules)
    for step, loss in enumerate([0.5, 0.9, 0.1, 0.3, 0.3, 0.4, 0.7, 0.8, 0.9], 1):
        state = Snapshot(step, {"model.pt": {}}, {}, {"loss": loss})
        assert bench.target.save(state, {}).error is None
    assert bench.steps() == [9, 8, 4, 3]


def test_a_checkpoint_of_a_left_over_process_is_put_away(bench: Bench) -> None:
    """Beyond our steps: it must not count among the newest that stay."""
    for step in (1, 2):
        bench.target.save(snapshot(step), {})
    for step in (50, 60, 70):
        path = bench.run.checkpoints / disk.checkpoint_name(step)
        disk.write_files(path, {"state.json": {}}, {"step": step, "attempt": 0})
    bench.target.save(snapshot(3), {})
    names = sorted(path.name for path in bench.run.checkpoints.iterdir())
    assert names == [
        *(f"step-0000000{step}" for step in (1, 2, 3)),
        *(f"step-000000{step}.stale" for step in (50, 60, 70)),
    ]
    assert "left-over process of an earlier attempt; set aside" in bench.reports[0]


def test_a_later_attempt_s_checkpoint_is_not_replaced(bench: Bench) -> None:
    """By a left-over process that has reached the same step."""
    path = bench.run.checkpoints / disk.checkpoint_name(4)
    disk.write_files(path, {"state.json": {}}, {"step": 4, "attempt": 2})
    words = "published by attempt 2, which is later than this one, 0"
    with pytest.raises(CheckpointError, match=words):
        bench.target.save(snapshot(4), {})
    assert disk.verify(path)["attempt"] == 2


def test_buffers_are_used_again() -> None:
    """Also after a shape has changed; tied tensors stay tied; types stay."""
    host = HostCopy()
    model = nn.BatchNorm1d(3)
    tied = torch.arange(6.0).reshape(2, 3).t()
    state = {"m": model.state_dict(), "o": {"a": tied, "b": [tied, (1, "x")]}}
    first = host.take(state)
    second = host.take(state)
    assert first["o"]["a"].data_ptr() == second["o"]["a"].data_ptr()
    assert second["o"]["a"] is second["o"]["b"][0]
    assert torch.equal(second["o"]["a"], tied)
    assert second["o"]["b"][1] == (1, "x")
    assert vars(second["m"]) == vars(state["m"])
    assert "_metadata" in vars(second["m"])
    assert count_bytes(state) == count_bytes(second) == 24 + 3 * 4 * 4 + 8
    longer = host.take({"m": {"weight": torch.ones(5)}})
    assert longer["m"]["weight"].tolist() == [1.0] * 5
    same = on_host(state)
    assert same["o"]["a"].data_ptr() == tied.data_ptr()


def test_weights_are_plain(tmp_path: Path) -> None:
    """torch.load and load_state_dict take them without clusterddp, from any run."""
    chosen = settings()
    assert train(tmp_path, 2, build_noisy, chosen) == [0, 0]
    newest = disk.list_checkpoints(tmp_path / "checkpoints")[0]
    weights = torch.load(newest / "model.pt", weights_only=True)
    model = build_noisy({}).model
    assert not any(name.startswith("module.") for name in weights)
    model.load_state_dict(weights)


def settings(every: object = "3 steps", **params: object) -> dict[str, Any]:
    return {
        "params": {"sleep": 0.005, **params},
        "train": {"epochs": 2, "global_batch_size": 24},
        "checkpoint": {"every": every},
        "log": {"every": 4},
    }


def train(
    run: Path, count: int, build: ranks.Build, chosen: dict[str, Any], at: int = 0
) -> list[int | None]:
    started = ranks.start_training(run, at, count, build, chosen)
    codes = started.wait()
    (run / "output").write_text(started.output())
    return codes


def build_slow(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; writing takes long, and something happens then."""
    write = disk.write_files

    def slow(
        target: Path, contents: Mapping[str, object], fields: Mapping[str, object]
    ) -> int:
        time.sleep(0.5)
        return write(target, contents, fields)

    disk.write_files = slow
    experiment = build_noisy(params)
    calls = iter(range(1000))
    inner = experiment.loss

    def loss(model: nn.Module, batch: Any) -> Any:  # noqa: ANN401
        if model.training and next(calls) == params.get("fail_at"):
            raise ValueError("as planned")
        return inner(model, batch)

    return Experiment(
        experiment.model,
        experiment.train_data,
        loss,
        experiment.optimizer,
        scheduler=experiment.scheduler,
    )


def test_a_stop_waits_for_the_save_in_flight(tmp_path: Path) -> None:
    """Nobody leaves before the state of the last step is durable."""
    codes = train(tmp_path, 2, build_slow, settings(stop_at=5))
    assert codes == [ranks.STOPPED] * 2
    newest = disk.list_checkpoints(tmp_path / "checkpoints")[0]
    disk.verify(newest)
    assert int(newest.name[5:]) >= 4
    assert json.loads((tmp_path / "progress.json").read_text())["checkpoint"] == int(
        newest.name[5:]
    )
    assert not list((tmp_path / "checkpoints").glob("*.tmp-*"))


@pytest.mark.parametrize("count", [1, 2])
def test_a_crash_waits_for_the_save_in_flight(tmp_path: Path, count: int) -> None:
    """What was copied before it is not lost."""
    codes = train(tmp_path, count, build_slow, settings(fail_at=5))
    assert codes == [1] * count
    found = disk.list_checkpoints(tmp_path / "checkpoints")
    assert [disk.verify(path)["step"] for path in found] == [3]


def test_progress_names_only_what_is_durable(tmp_path: Path) -> None:
    """Whenever somebody looks."""
    started = ranks.start_training(tmp_path, 0, 1, build_slow, settings("1 steps"))
    seen = set()
    while any(process.is_alive() for process in started.processes):
        try:
            told = json.loads((tmp_path / "progress.json").read_text())
        except (FileNotFoundError, ValueError):
            continue
        if told.get("checkpoint") is not None:
            name = disk.checkpoint_name(told["checkpoint"])
            published = list((tmp_path / "checkpoints").iterdir())
            newest = max(path.name for path in published if "." not in path.name)
            assert newest >= name
            seen.add(name)
        time.sleep(0.005)
    assert started.wait() == [0], started.output()
    assert len(seen) > 2


def test_a_background_save_changes_no_bits(tmp_path: Path) -> None:
    """Nor does waiting for each, nor a save by the clock."""
    states = []
    for name, every, background in (
        ("background", "3 steps", True),
        ("waiting", "3 steps", False),
        ("clock", ["0.01s", "1 epoch"], True),
    ):
        chosen = settings(every)
        chosen["checkpoint"]["background"] = background
        assert train(tmp_path / name, 2, build_noisy, chosen) == [0, 0]
        states.append(final_state(tmp_path / name))
    assert states[0] == states[1] == states[2]
    log = (tmp_path / "clock" / "attempts" / "0000" / "checkpoints.jsonl").read_text()
    steps = [json.loads(line)["step"] for line in log.splitlines()]
    assert steps == sorted(set(steps))
    assert set(steps) > {6, 12}, "not at the epochs' edges alone"


@contextmanager
def mounted(path: Path) -> Iterator[Path]:
    """Give a directory on a file system of 1 MiB."""
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    subprocess.run(mount, check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give the checkpoints' directory of a run, on a file system of 1 MiB."""
    with mounted(tmp_path / "run" / "checkpoints") as path:
        yield path


def fill(path: Path, left: int) -> Path:
    """Fill a file system but for some bytes; give the file that does it."""
    ballast = path / "ballast"
    free = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
    ballast.write_bytes(bytes(max(0, free - left)))
    return ballast


@NEEDS_ROOT
def test_a_full_disk(small_disk: Path, world: World) -> None:
    """Found before, or in the middle of a write: the older one stays, no rubbish."""
    bench = Bench(small_disk.parent, world)
    assert bench.target.save(snapshot(1), {}).error is None
    ballast = fill(small_disk, 12 << 10)
    large = torch.ones(4000)
    before = bench.target.save(snapshot(2, large), {}).error
    assert before is not None
    assert (
        "step-00000002: not saved: 0.0117 MiB free, 0.0305 MiB needed (twice" in before
    )
    ballast.unlink()
    fill(small_disk, 8 << 10)
    during = bench.target.save(snapshot(3), {}).error
    assert during is not None
    assert "step-00000003: not saved: No space left on device" in during
    assert sorted(path.name for path in small_disk.iterdir()) == [
        "ballast",
        "step-00000001",
    ]
    ballast.unlink()
    assert bench.target.save(snapshot(4), {}).error is None
    assert bench.steps() == [4, 1]


@NEEDS_ROOT
def test_a_disk_that_turns_read_only(small_disk: Path, world: World) -> None:
    """As ext4 does after an error; the older one stays, and saving goes on later."""
    bench = Bench(small_disk.parent, world)
    assert bench.target.save(snapshot(1), {}).error is None
    for option, expected in (("ro", "Read-only file system"), ("rw", None)):
        remount = ["mount", "-o", f"remount,{option}", str(small_disk)]
        subprocess.run(remount, check=True)
        error = bench.target.save(snapshot(2), {}).error
        assert error is None if expected is None else expected in str(error)
    assert bench.steps() == [2, 1]


def build_filling(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; the disk is full from step 4 to step `until`."""
    checkpoints = params["run"] / "checkpoints"

    def on_log(step: int, _values: Mapping[str, float]) -> None:
        if step == 4:
            fill(checkpoints, int(params.get("spare", 4 << 10)))
        if step == params["until"]:
            (checkpoints / "ballast").unlink()

    experiment = build_noisy(params)
    return Experiment(
        experiment.model,
        experiment.train_data,
        experiment.loss,
        experiment.optimizer,
        on_log=on_log,
        scheduler=experiment.scheduler,
    )


@NEEDS_ROOT
def test_training_goes_on_over_a_full_disk(small_disk: Path) -> None:
    """Until there is room again; the end is saved."""
    run = small_disk.parent
    assert train(run, 2, build_filling, settings("2 steps", until=8)) == [0, 0]
    output = (run / "output").read_text()
    assert "step-00000006: not saved: " in output
    assert "going on, the older ones are intact" in output
    assert disk.list_checkpoints(small_disk)[0].name == "step-00000012"


@NEEDS_ROOT
def test_a_disk_that_stays_full_ends_the_training(small_disk: Path) -> None:
    """On all ranks, with the reason; what was saved before is whole."""
    run = small_disk.parent
    chosen = settings("1 steps", until=-1)
    assert train(run, 2, build_filling, chosen) == [1, 1]
    output = (run / "output").read_text()
    assert output.count("3 saves in a row failed (checkpoint.max_failures 3)") == 2
    found = disk.list_checkpoints(small_disk)
    assert disk.verify(found[0])["step"] in {3, 4}
    (small_disk / "ballast").unlink()
    assert train(run, 2, build_noisy, settings("2 steps"), at=1) == [0, 0]


@NEEDS_ROOT
def test_training_goes_on_when_the_whole_run_is_on_the_full_disk(
    tmp_path: Path,
) -> None:
    """Its log, progress and curves, too; every line of the metrics comes in the end."""
    with mounted(tmp_path / "run") as run:
        codes = train(run, 2, build_filling, settings("2 steps", until=8, spare=0))
        assert codes == [0, 0]
        found = disk.list_checkpoints(run / "checkpoints")
        assert disk.verify(found[0])["step"] == 12
        lines = (run / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [4, 6, 8, 12]


def build_failing_once(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; the first save of step 8 fails."""
    write, failed = disk.write_files, set[object]()

    def failing(target: Path, contents: Mapping[str, object], fields: Any) -> int:  # noqa: ANN401
        if fields["step"] == 8 and not failed:
            failed.add(8)
            raise OSError(5, "Input/output error")
        return write(target, contents, fields)

    disk.write_files = failing
    return build_noisy(params)


def test_no_time_left_and_the_last_save_failed(tmp_path: Path) -> None:
    """Weights of a later step must not be saved as those of the step before."""
    chosen = settings("4 steps", stop_at=10, time_left=0.0)
    codes = train(tmp_path, 2, build_failing_once, chosen)
    output = (tmp_path / "output").read_text()
    assert codes == [1, 1], output
    assert output.count("step-00000008: not saved: Input/output error; make room") == 2
    found = disk.list_checkpoints(tmp_path / "checkpoints")
    assert [disk.verify(path)["step"] for path in found] == [4]
