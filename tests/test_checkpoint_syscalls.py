"""A save fails or dies at every system call, or loses what it has not synced."""

import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import pytest
import torch

from clusterddp.runs.directory import RunDirectory
from clusterddp.training import checkpoint_files as disk
from clusterddp.training.checkpoint_choice import choose
from tests import traced
from tests import training_ranks as ranks
from tests.crashing_disk import CrashingDisk
from tests.traced import Call

pytestmark = pytest.mark.skipif(
    shutil.which("strace") is None or os.geteuid() != 0,
    reason="strace as root makes system calls fail; apt-get install strace",
)
RECORD = ["-xx", "-y", "-s", "100000", "-e", f"trace={traced.CHANGING}"]


def check_all(checkpoints: Path, steps: set[int]) -> int:
    """See that all that is published is right; give the newest step."""
    found = disk.list_checkpoints(checkpoints)
    for path in found:
        step = disk.verify(path)["step"]
        weights = torch.load(path / "model.pt", weights_only=True)["w"]
        assert torch.equal(weights, torch.full((3000,), float(step)))
    newest = int(found[0].name[5:])
    assert newest in steps
    return newest


def record(run: Path, step: int) -> list[Call]:
    """Save undisturbed; give the calls, those of the second save too."""
    options = RECORD
    code, log = traced.trace(run, options, step=step, function=traced.save_when_told)
    assert code == 0
    return traced.parse(log, run)


def count_until_result(run: Path, names: str, step: int) -> Counter[str]:
    """Give how many calls of each kind a save makes, up to its return."""
    options = ["-xx", "-y", "-s", "100000", "-e", f"trace={names}"]
    _, log = traced.trace(run, options, step=step, function=traced.save_when_told)
    end = str(run / "child" / "result").encode().hex()
    counts: Counter[str] = Counter()
    for line in log.splitlines():
        if end in line.replace("\\x", ""):
            return counts
        counts[line.split("(")[0]] += 1
    raise AssertionError(log)


def disturb(run: Path, name: str, number: int, what: str, *, step: int) -> str:
    """Let the n-th of these calls fail or be the last one, and look."""
    options = ["-e", f"trace={name}", "-e", f"inject={name}:{what}:when={number}"]
    code, log = traced.trace(run, options, step=step, function=traced.save_when_told)
    checkpoints = RunDirectory(run).checkpoints
    if code == -signal.SIGKILL:
        outcome = "killed"
        check_all(checkpoints, {step - 1, step})
    else:
        assert "INJECTED" in log
        error = json.loads((run / "child" / "result").read_text())
        assert json.loads((run / "child" / "again").read_text()) is None
        outcome = "failed" if error else "saved"
        assert check_all(checkpoints, {step + 1}) == step + 1
    chosen = choose(RunDirectory(run), 1, lambda *told: pytest.fail(str(told)))
    assert chosen is not None
    left = [path.name for path in checkpoints.iterdir()]
    assert not [name for name in left if "." in name], left
    return outcome


def disturb_all(path: Path, names: str, whats: Sequence[str], *, step: int) -> set[str]:
    """Disturb every call once, in one way after the other, four at a time."""
    counts = count_until_result(path / "count", names, step)
    assert counts.total() > 20
    calls = [(name, n) for name, total in counts.items() for n in range(1, total + 1)]
    cases = [(*call, what) for call, what in zip(calls, cycle(whats), strict=False)]

    def one(case: tuple[str, int, str]) -> str:
        name, number, what = case
        run = path / f"{name}-{number}-{what.replace('=', '-')}"
        outcome = disturb(run, name, number, what, step=step)
        shutil.rmtree(run)
        return outcome

    with ThreadPoolExecutor(4) as pool:
        return set(pool.map(one, cases))


@pytest.mark.parametrize(
    "errors", [["ENOSPC"], ["EIO", "EROFS", "EDQUOT"]], ids=["full", "others"]
)
def test_a_call_that_fails(tmp_path: Path, errors: list[str]) -> None:
    """Whichever of those that change something: what is published stays right.

    The next save succeeds, and the next attempt finds no rubbish.
    """
    whats = [f"error={error}" for error in errors]
    outcomes = disturb_all(tmp_path, traced.CHANGING, whats, step=3)
    assert outcomes == {"failed", "saved"}


def test_a_kill_at_a_call(tmp_path: Path) -> None:
    """Whichever of those that change something: what is published stays right."""
    outcomes = disturb_all(tmp_path, traced.CHANGING, ["signal=SIGKILL"], step=3)
    assert outcomes == {"killed"}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", [2, 3], ids=["same step again", "a new step"])
@pytest.mark.parametrize("what", ["EIO", "EROFS", "EDQUOT", "kill"])
def test_every_call(tmp_path: Path, step: int, what: str) -> None:
    """Reading calls, too, with each error that a failing disk gives."""
    how = "signal=SIGKILL" if what == "kill" else f"error={what}"
    names = f"{traced.CHANGING},{traced.READING}"
    disturb_all(tmp_path, names, [how], step=step)


def replay(
    tmp_path: Path, calls: Sequence[Call], run: Path, before: Path, times: int = 4
) -> None:
    """Cut the calls off everywhere, lose what was not synced, and look."""
    source = random.Random(0)
    published = 1 + max(
        index
        for index, call in enumerate(calls)
        if call.name == "rename" and call.data.endswith(b"step-00000003")
    )
    synced = next(
        (
            published + index
            for index, call in enumerate(calls[published:])
            if call.name == "fsync" and call.path == str(run / "checkpoints")
        ),
        published,
    )
    for end in range(len(calls) + 1):
        for chance in (None, *[source] * times):
            model = CrashingDisk(before)
            for call in calls[:end]:
                model.apply(_moved(call, run / "checkpoints", before))
            crashed = tmp_path / "crashed"
            shutil.rmtree(crashed, ignore_errors=True)
            model.crash(crashed, chance)
            check_all(crashed, {3} if end > synced else {2, 3})


def _moved(call: Call, old: Path, new: Path) -> Call:
    path = call.path.replace(str(old), str(new))
    data = call.data
    if call.name == "rename":
        data = data.replace(os.fsencode(old), os.fsencode(new))
    return Call(call.name, path, data, call.flags)


@pytest.fixture(scope="module")
def recorded(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[Call], Path, Path]:
    """Give the calls of the save of step 3, the run, and what was there before."""
    base = tmp_path_factory.mktemp("recorded")
    run, before = base / "run", base / "before"
    calls = record(run, 3)
    earlier = base / "earlier"
    (earlier / "attempts" / "0000").mkdir(parents=True)
    for step in (1, 2):
        assert traced.writer(earlier).write(traced.task(step)).error is None
    shutil.copytree(earlier / "checkpoints", before)
    ends = [i for i, c in enumerate(calls) if c.path == str(run / "child" / "result")]
    below = str(run / "checkpoints")
    return [c for c in calls[: ends[0]] if c.path.startswith(below)], run, before


def test_unsynced_writes_may_be_lost(
    tmp_path: Path, recorded: tuple[list[Call], Path, Path]
) -> None:
    """At every call: all of them, and, by chance, some of them, in part, as zeros."""
    calls, run, before = recorded
    assert {"mkdir", "write", "fsync", "rename"} <= {call.name for call in calls}
    replay(tmp_path, calls, run, before)


def _is_sync_of(call: Call, suffix: str) -> bool:
    return call.name == "fsync" and call.path.endswith(suffix)


@pytest.mark.parametrize(
    "naive",
    [
        lambda call: _is_sync_of(call, "model.pt"),
        lambda call: _is_sync_of(call, "manifest.json"),
        lambda call: _is_sync_of(call, ".tmp-0"),
        lambda call: _is_sync_of(call, "checkpoints"),
    ],
    ids=["weights", "manifest", "their directory", "the parent"],
)
def test_each_sync_is_needed(
    tmp_path: Path,
    recorded: tuple[list[Call], Path, Path],
    naive: Callable[[Call], bool],
) -> None:
    """Without it the replay finds something published that is not right."""
    calls, run, before = recorded
    without = [call for call in calls if not naive(call)]
    assert len(without) < len(calls)
    with pytest.raises(Exception, match=r".") as found:
        replay(tmp_path, without, run, before)
    assert found.type.__name__ in {"AssertionError", "CheckpointError"}


def save_for_ever(run: Path, attempt: int, directory: Path) -> None:
    target = traced.writer(run, attempt)
    chosen = choose(RunDirectory(run), attempt, print)
    ranks.mark(directory, "saving")
    step = 0 if chosen is None else int(chosen[0][5:])
    while True:
        step += 1
        target.write(traced.task(step, attempt))


def test_200_kills_at_random_times(tmp_path: Path) -> None:
    """Nothing that is published ever fails to verify, and no step is lost."""
    run, source = RunDirectory(tmp_path), random.Random(0)
    newest, half_written = 0, 0
    for attempt in range(200):
        directory = run.attempt(attempt).path
        started = ranks.start(1, directory, save_for_ever, tmp_path, attempt, directory)
        started.wait_for("saving")
        os.sched_yield()
        started.processes[0].join(source.uniform(0, 0.02))
        started.processes[0].kill()
        assert started.wait() == [-signal.SIGKILL], started.output()
        found = disk.list_checkpoints(run.checkpoints)
        for path in found:
            disk.verify(path)
        now = int(found[0].name[5:]) if found else 0
        assert now >= newest
        newest = now
        half_written += any(".tmp-" in p.name for p in run.checkpoints.iterdir())
        shutil.rmtree(directory / "rdzv", ignore_errors=True)
    assert half_written > 20, "the kills did not hit the writes"
    assert not [p for p in run.checkpoints.iterdir() if p.suffix == ".bad"]
