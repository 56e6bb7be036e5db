"""Causes and verbs on this machine: hung ranks, failures that repeat, cancel, drill."""

import json
from pathlib import Path

import pytest

from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.stackfiles import list_told, stacks_directory
from tests.runs import (
    digest,
    events,
    finish,
    latest,
    rank_pids,
    run_python,
    start,
    step_of,
    wait_until,
    write_job,
)

SUBMIT = ("clusterddp.submit", "job.yaml", "--launcher", "pytorch")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a run that nothing disturbed."""
    directory = tmp_path_factory.mktemp("undisturbed")
    write_job(directory)
    done = run_python(SUBMIT, directory)
    assert done.code == 0, done.err
    return digest(latest(directory))


def causes(run: RunDirectory) -> list[object]:
    """Give the causes of the attempts' ends."""
    return [event.values["cause"] for event in events(run, "attempt_ended")]


@pytest.mark.long
def test_hung_rank_is_described_ended_and_the_run_goes_on(
    tmp_path: Path, undisturbed: str
) -> None:
    """SIGSTOP of a rank, under the agent: stacks of the other, /proc of this one."""
    write_job(
        tmp_path,
        params={"fault": "SIGSTOP", "rank": 1, "at": 7},
        retry={"stall_timeout": "8s"},
    )
    done = run_python(SUBMIT, tmp_path)
    run = latest(tmp_path)
    assert done.code == 0, done.err
    assert causes(run) == ["stalled", "completed"]
    stacks = stacks_directory(run.attempt(0))
    assert list_told(stacks) == {0}
    assert "clusterddp/train.py" in (stacks / "rank-0000.txt").read_text()
    silent = json.loads((stacks / "silent-0001.json").read_text())
    assert "stopped" in silent["threads"][str(silent["pid"])]["state"]
    assert rank_pids(run) == []
    assert digest(run) == undisturbed


def test_the_same_failure_twice_stops_before_the_budget_is_burnt(
    tmp_path: Path,
) -> None:
    """It fails at the same line without a newer checkpoint: two attempts, no more."""
    params = {"fault": "exception", "rank": 1, "always": True}
    write_job(tmp_path, params=params, retry={"crashes": 9})
    done = run_python(SUBMIT, tmp_path)
    assert done.code == 1, done.err
    assert "twice" in done.err
    assert "no newer checkpoint between" in done.err
    assert len(latest(tmp_path).list_attempts()) == 2


def test_out_of_memory_before_the_first_step_stops(tmp_path: Path) -> None:
    """The first allocation fails for real: one attempt, and advice."""
    write_job(tmp_path, params={"fault": "memory", "at": 1, "always": True})
    done = run_python(SUBMIT, tmp_path)
    assert done.code == 1, done.err
    assert "out of memory before the first step; give it more" in done.err
    assert len(latest(tmp_path).list_attempts()) == 1


def test_cancel_then_resubmit_in_the_foreground(
    tmp_path: Path, undisturbed: str
) -> None:
    """A local run: saved, ended; named, it goes on here with what was changed."""
    write_job(tmp_path, params={"sleep": 0.25}, checkpoint={"every": "1000 steps"})
    process = start(SUBMIT, tmp_path)
    wait_until((tmp_path / "runs/toy/latest").exists)
    run = latest(tmp_path)
    wait_until(lambda: step_of(run) >= 5)
    active = run_python(("clusterddp.resubmit", "toy"), tmp_path)
    assert "its supervisor is alive" in active.out
    ended = run_python(("clusterddp.cancel", "toy"), tmp_path)
    assert "saved at step" in ended.out, ended.err
    assert finish(process).code == 75
    left = run_python(("clusterddp.resubmit", "--all"), tmp_path)
    assert "name it to go on here" in left.out
    words = ("clusterddp.resubmit", "toy", "retry.crashes=7")
    back = run_python(words, tmp_path)
    assert back.code == 0, back.err
    assert events(run, "submitted")[-1].values["changes"] == ["retry.crashes=7"]
    assert digest(run) == undisturbed


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["resubmit"], "no RUN"),
        (["resubmit", "--all", "x"], "both RUN and --all"),
        (["resubmit", "--all", "--state", "lost"], "--state lost: expected"),
        (["resubmit", "--all", "train.epochs=9"], "found train, expected slurm"),
        (["resubmit", "nothing"], "nothing: no run of that name"),
        (["cancel", "nothing"], "nothing: no run of that name"),
        (["drill", "nothing", "--preempt"], "nothing: no run of that name"),
    ],
)
def test_words_that_cannot_be_meant(
    tmp_path: Path, words: list[str], text: str
) -> None:
    """Exit code 2 and what was expected."""
    (tmp_path / "runs").mkdir()
    done = run_python((f"clusterddp.{words[0]}", *words[1:]), tmp_path)
    assert done.code == 2
    assert text in done.err


@pytest.mark.long
def test_drill_strikes_a_rank_and_tells_the_cost(
    tmp_path: Path, undisturbed: str
) -> None:
    """Kill -9 of a rank of a live run: seen as a crash, training again, equal bits."""
    write_job(tmp_path, params={"sleep": 0.2})
    process = start(SUBMIT, tmp_path)
    wait_until((tmp_path / "runs/toy/latest").exists)
    run = latest(tmp_path)
    wait_until(lambda: step_of(run) >= 6)
    refused = run_python(("clusterddp.drill", "toy", "--preempt"), tmp_path)
    assert refused.code == 2
    assert "a local run, expected one on Slurm" in refused.err
    nobody = run_python(("clusterddp.drill", "toy", "--kill-rank", "9"), tmp_path)
    assert "found no rank 9" in nobody.err
    words = ("clusterddp.drill", "toy", "--kill-rank", "1", "--json")
    done = run_python(words, tmp_path)
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["cause"] == "crash"
    assert told["resumed_at"] in (5, 10, 15, 20, 25)
    assert told["back_s"] > told["stopped_s"] > 0
    assert finish(process).code == 0
    assert digest(run) == undisturbed
    over = run_python(("clusterddp.drill", "toy", "--stall", "0"), tmp_path)
    assert "found no ranks that train" in over.err


UNSAVABLE = """
import os, pathlib, shutil
from dataclasses import replace
from tests.toy import build as build_toy

def build(params):
    toy = build_toy(params)
    place = pathlib.Path(os.environ["CLUSTERDDP_RUN_DIR"], "checkpoints")

    def loss(model, batch):
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        place.touch()
        return toy.loss(model, batch)

    return replace(toy, loss=loss)
"""


def test_a_run_that_cannot_save_ends_with_its_own_code(tmp_path: Path) -> None:
    """As its ranks and its last words say; starting again would not help."""
    (tmp_path / "own.py").write_text(UNSAVABLE)
    rules = {"every": "2 steps", "max_failures": 2}
    write_job(tmp_path, experiment="own.py:build", checkpoint=rules)
    done = run_python(SUBMIT, tmp_path)
    assert done.code == 5, (done.out, done.err)
    assert "2 saves in a row failed (checkpoint.max_failures 2)" in done.err
    assert len(latest(tmp_path).list_attempts()) == 1
