"""Checkpoints: whole or not there, verified, the newest good one, by one writer."""

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterddp.config.schema import Checkpoint as Rules
from clusterddp.dist import World, init_dist, shutdown
from clusterddp.errors import CheckpointError
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.published import manifest_sum
from clusterddp.training import Checkpoints, Loaded, Saved, Snapshot, checkpoint_reading
from clusterddp.training import checkpoint_files as disk
from tests import training_ranks as ranks


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Give a world of one."""
    yield init_dist("none")
    shutdown()


class Bench:
    """Checkpoints of a run whose state at step n is the number n everywhere."""

    def __init__(self, path: Path, world: World) -> None:
        self.run = RunDirectory(path)
        self.world = world
        self.reports: list[str] = []

    def open(self, attempt: int, keep: int = 10, **rules: object) -> Checkpoints:
        """Give the checkpoints as an attempt sees them."""
        self.run.attempt(attempt).path.mkdir(parents=True, exist_ok=True)
        return Checkpoints(
            self.run,
            self.world,
            attempt=attempt,
            rules=Rules.model_validate({"keep": keep, **rules}),
            report=self.reports.append,
        )

    def names(self) -> list[str]:
        """Give all that lies in checkpoints/."""
        return sorted(path.name for path in self.run.checkpoints.iterdir())

    def log(self, attempt: int, event: str) -> list[dict[str, Any]]:
        """Give an attempt's lines on one kind of event."""
        text = self.run.attempt(attempt).saves.read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if line["event"] == event]

    def path(self, step: int) -> Path:
        """Give the directory of a step."""
        return self.run.checkpoints / disk.checkpoint_name(step)


@pytest.fixture
def bench(tmp_path: Path, world: World) -> Bench:
    return Bench(tmp_path, world)


def snapshot(step: int, size: int = 100) -> Snapshot:
    weights = {"w": torch.full((size,), float(step))}
    return Snapshot(step, {"model.pt": weights}, {"step": step})


def save(target: Checkpoints, *steps: int) -> Saved:
    results = [target.save(snapshot(step), {"rank": 0}) for step in steps]
    return results[-1]


def loaded_step(loaded: Loaded | None) -> int:
    assert loaded is not None
    assert loaded.states["model.pt"]["w"].tolist() == [loaded.step] * 100
    return loaded.step


def test_what_is_saved_is_loaded(bench: Bench) -> None:
    """States, shared values and what each rank added come back."""
    saved = bench.open(0).save(snapshot(7), {"sum": 0.1}, stop=lambda: True)
    assert saved == Saved(error=None, stop=True)
    loaded = bench.open(1).load()
    assert loaded_step(loaded) == 7
    assert loaded is not None
    assert (loaded.world_size, loaded.shared, loaded.ranks) == (
        1,
        {"step": 7},
        [{"sum": 0.1}],
    )


def test_no_checkpoint_is_a_fresh_start(bench: Bench) -> None:
    """An empty run and one without the directory give None."""
    assert bench.open(0).load() is None


def test_the_newest_are_kept(bench: Bench) -> None:
    """Older ones go, the newest `keep` stay."""
    save(bench.open(0, keep=2), 1, 2, 3, 4)
    assert bench.names() == ["step-00000003", "step-00000004"]


def test_steps_are_compared_as_numbers(bench: Bench) -> None:
    """A nine-digit step is newer than an eight-digit one."""
    save(bench.open(0), 99_999_999, 100_000_000)
    assert loaded_step(bench.open(1).load()) == 100_000_000


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def punch_hole(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:8192] + bytes(4096) + data[12288:])


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def delete_all(path: Path) -> None:
    for each in path.parent.iterdir():
        each.unlink()


def delete_half(path: Path) -> None:
    path.unlink()
    (path.parent / "state.json").unlink()


def write_foreign(path: Path) -> None:
    path.write_text('{"step": 3}')


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("model.pt", flip_bit, "bits were changed"),
        ("model.pt", punch_hole, "zeros from byte 8192 on, as a lost write leaves"),
        ("model.pt", truncate, "truncated: 41"),
        ("model.pt", lengthen, "longer than written: 41"),
        ("model.pt", Path.unlink, "missing, though the manifest names it: half"),
        ("state.json", flip_bit, "bits were changed"),
        ("manifest.json", Path.unlink, "no manifest.json beside model.pt, ranks.json"),
        ("manifest.json", delete_half, "no manifest.json beside model.pt, ranks.json:"),
        ("manifest.json", delete_all, "empty, expected manifest.json and the files"),
        ("manifest.json", truncate, "no JSON object in its"),
        ("manifest.json", write_foreign, "or clusterddp did not write it"),
    ],
)
def test_a_damaged_checkpoint_is_set_aside(
    bench: Bench, name: str, damage: Callable[[Path], None], words: str
) -> None:
    """The one before is used; rank 0's log and the attempt's say what was wrong."""
    target = bench.open(0)
    save(target, 1)
    target.save(snapshot(2, size=10_000), {})
    if damage is truncate and name == "manifest.json":
        bench.path(2).joinpath(name).write_text("{")
    else:
        damage(bench.path(2) / name)
    assert loaded_step(bench.open(1).load()) == 1
    assert bench.names() == ["step-00000001", "step-00000002.bad"]
    (report,) = bench.reports
    assert words in report
    assert "set aside as step-00000002.bad" in report
    (line,) = bench.log(1, "set aside")
    assert line["name"] == "step-00000002"
    assert words in line["reason"]


def test_torch_notices_neither_a_flipped_bit_nor_a_hole(bench: Bench) -> None:
    """So the manifest must: the naive loader takes wrong weights."""
    for step, damage in ((1, flip_bit), (2, punch_hole)):
        bench.open(0).save(snapshot(step, size=10_000), {})
        damage(bench.path(step) / "model.pt")
        weights = torch.load(bench.path(step) / "model.pt", weights_only=True)["w"]
        assert not torch.equal(weights, torch.full((10_000,), float(step)))


def test_every_changed_digit_of_a_manifest_is_noticed(bench: Bench) -> None:
    """A manifest that still is JSON, but not the one that was written."""
    save(bench.open(0), 1)
    path = bench.path(1) / "manifest.json"
    text = path.read_text()
    for index, character in enumerate(text):
        if character.isdigit():
            digit = str((int(character) + 1) % 10)
            path.write_text(text[:index] + digit + text[index + 1 :])
            with pytest.raises(CheckpointError):
                disk.verify(bench.path(1))


def test_a_newer_format_is_neither_used_nor_set_aside(bench: Bench) -> None:
    """It is whole, and its work would be lost; the message names both formats."""
    save(bench.open(0), 1, 2)
    path = bench.path(2) / "manifest.json"
    manifest = json.loads(path.read_text()) | {"format": 2}
    manifest["crc32"] = manifest_sum(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="format 2, this version reads 1; go on"):
        bench.open(1).load()
    assert bench.names() == ["step-00000001", "step-00000002"]


def test_a_manifest_says_where_it_comes_from(bench: Bench) -> None:
    """Step, attempt, ranks, versions, job file and metrics; the weights are plain."""
    bench.run.job_file.write_text("name: x\n")
    state = Snapshot(4, {"model.pt": {"w": torch.ones(1)}}, {}, {"loss": 0.5})
    bench.open(3).save(state, {})
    manifest = disk.verify(bench.path(4))
    expected = {"step": 4, "attempt": 3, "world_size": 1, "metrics": {"loss": 0.5}}
    assert manifest.items() >= expected.items()
    assert manifest["torch"] == torch.__version__
    assert manifest["config"] == sha256(b"name: x\n").hexdigest()
    assert set(manifest["files"]) == {"model.pt", "state.json", "ranks.json"}


def test_a_second_bad_one_of_a_step_gets_another_name(bench: Bench) -> None:
    """Setting aside never overwrites."""
    for attempt in (0, 1, 2):
        save(bench.open(attempt), 1)
        truncate(bench.path(1) / "model.pt")
        assert bench.open(attempt + 1).load() is None
    assert bench.names() == [f"step-00000001.bad{x}" for x in ("", "-2", "-3")]


def test_leftovers_of_dead_attempts_are_removed(bench: Bench) -> None:
    """Half written and half deleted ones; not those of a later attempt."""
    for name in ("step-00000009.tmp-0", "step-00000003.del-1", "step-00000009.tmp-5"):
        (bench.run.checkpoints / name).mkdir(parents=True)
    assert bench.open(2).load() is None
    assert bench.names() == ["step-00000009.tmp-5"]


def test_a_replaced_attempt_cannot_publish(bench: Bench) -> None:
    """A left-over process finds the newer attempt's directory, and ends."""
    old = bench.open(3)
    save(old, 1)
    bench.open(4)
    owner = {"pid": 7, "host": "node3", "job": "12"}
    bench.run.attempt(4).owner.write_text(json.dumps(owner))
    words = r"attempt 3 has been replaced by attempt 4 \(process 7 on node3, job 12\)"
    with pytest.raises(CheckpointError, match=words):
        save(old, 2)
    assert bench.names() == ["step-00000001"]


def test_a_checkpoint_of_a_replaced_attempt_is_stale(bench: Bench) -> None:
    """Published in the moment after a later attempt had resumed from before it."""
    old = bench.open(0)
    save(old, 1)
    assert loaded_step(bench.open(1).load()) == 1
    shutil.move(bench.run.attempt(1).path, bench.run.path / "hidden")
    save(old, 5)
    shutil.move(bench.run.path / "hidden", bench.run.attempt(1).path)
    assert loaded_step(bench.open(2).load()) == 1
    assert bench.names() == ["step-00000001", "step-00000005.stale"]
    assert "published by attempt 0 after a later one" in bench.reports[0]


def test_a_step_saved_again_replaces_the_first(bench: Bench) -> None:
    """After a stop during an evaluation the same step is saved with it."""
    target = bench.open(0)
    save(target, 1)
    target.save(Snapshot(1, {}, {"noted": 1}), {})
    assert bench.names() == ["step-00000001"]
    loaded = bench.open(1).load()
    assert loaded is not None
    assert loaded.shared == {"noted": 1}


def test_a_file_that_cannot_grow_leaves_the_older_ones(bench: Bench) -> None:
    """The save says so on all ranks, leaves nothing behind, and may be repeated."""
    target = bench.open(0)
    save(target, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        saved = target.save(snapshot(2, size=100_000), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert saved.error is not None
    assert "step-00000002: not saved: File too large" in saved.error
    assert bench.names() == ["step-00000001"]
    assert save(target, 2).error is None


def test_a_run_directory_that_cannot_be_read(bench: Bench) -> None:
    """The message names the place and the system's reason."""
    bench.run.checkpoints.write_text("a file")
    with pytest.raises(CheckpointError, match="checkpoints: Not a directory"):
        bench.open(0).load()


def test_a_state_that_cannot_be_read_again_is_refused_at_once(bench: Bench) -> None:
    """Not after the stop, when it is too late."""
    bad = Snapshot(1, {"optimizer.pt": {"custom": Path("x")}}, {})
    with pytest.raises(CheckpointError, match="holds something else than tensors"):
        bench.open(0).save(bad, {})
    assert bench.names() == []


def test_a_checkpoint_that_cannot_be_deleted_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on."""
    target = bench.open(0, keep=2)
    save(target, 1, 2)

    def refuse(path: Path, _attempt: int) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(disk, "discard", refuse)
    assert save(target, 3).error is None
    assert "step-00000001: not deleted: Permission denied" in bench.reports[0]


def load_with_blind_rank(world: World, run: Path, elsewhere: Path) -> str:
    checkpoint_reading._PATIENCE_S = 0.2  # noqa: SLF001
    path = elsewhere if world.rank == 1 else run
    try:
        Checkpoints(RunDirectory(path), world, attempt=1).load()
    except CheckpointError as error:
        return str(error)
    return "loaded"


def test_all_ranks_load_or_none_does(bench: Bench, tmp_path: Path) -> None:
    """A rank that does not see the run directory is named, by every rank."""
    save(bench.open(0), 3)
    args = (bench.run.path, tmp_path / "elsewhere")
    started = ranks.start(
        3, tmp_path / "out", ranks.with_world, load_with_blind_rank, *args
    )
    first, *others = started.values()
    assert "rank 1: CheckpointError" in first
    assert "rank 2" not in first
    assert ["rank 1: CheckpointError" in other for other in others] == [True, True]


def save_per_rank(world: World, run: Path) -> list[Any]:
    target = Checkpoints(RunDirectory(run), world, attempt=0)
    saved = target.save(
        snapshot(world.rank), {"rank": world.rank}, stop=lambda: world.rank == 0
    )
    loaded = target.load()
    assert loaded is not None
    return [saved.stop, loaded.step, loaded.ranks]


def test_rank_0_speaks_for_all(tmp_path: Path) -> None:
    """Its state is written, with what each rank added; its word on a stop counts."""
    started = ranks.start(
        3, tmp_path / "out", ranks.with_world, save_per_rank, tmp_path
    )
    expected = [True, 0, [{"rank": 0}, {"rank": 1}, {"rank": 2}]]
    assert started.values() == [expected] * 3
