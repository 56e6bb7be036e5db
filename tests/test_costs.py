"""What `make chaos` says that hits have cost: steps done again, time, ETTR."""

import json
from pathlib import Path

import pytest

from benchmarks.costs import (
    Hit,
    Window,
    lost_steps,
    measure_back,
    measure_windows,
    render_costs,
    steps_of_attempts,
)
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.facts import Facts, Shape
from clusterddp.runs.ledger import Event


@pytest.mark.parametrize(
    ("attempts", "lost"),
    [
        ([], 0),
        ([(0, 30)], 0),
        ([(0, 7), (7, 30)], 0),
        ([(0, 7), (5, 30)], 2),
        ([(0, 7), (5, 5), (5, 30)], 2),
        ([(0, 7), (5, 6), (4, 30)], 4),
    ],
    ids=["none", "straight", "saved", "interval", "died at once", "twice"],
)
def test_lost_steps(attempts: list[tuple[int, int]], lost: int) -> None:
    """A step that was finished and done again is lost, as often as it was done."""
    assert lost_steps(attempts) == lost


def make_attempt(run: RunDirectory, number: int, resumed: int, done: int) -> None:
    """Write what an attempt leaves."""
    path = run.attempt(number).path
    path.mkdir(parents=True)
    (path / "resume.json").write_text(json.dumps({"step": resumed}))
    if done:
        (path / "steps").write_bytes(b"." * done)


def test_steps_of_attempts(tmp_path: Path) -> None:
    """Rank 0's marks tell how far it got; who never began to train counts not."""
    run = RunDirectory(tmp_path)
    make_attempt(run, 0, 0, 7)
    run.attempt(1).path.mkdir()
    make_attempt(run, 2, 6, 0)
    make_attempt(run, 3, 6, 1)
    found = steps_of_attempts(run)
    assert found == [(0, 7), (6, 6), (6, 7)]
    assert lost_steps(found) == 1


def test_time_to_the_next_step(tmp_path: Path) -> None:
    """From the hit to the first step of ranks started since; or after a suspension."""
    run = RunDirectory(tmp_path)
    run.events.mkdir()
    lines = [{"step": 5 + n, "time": 100.0 + n} for n in range(10)]
    run.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert measure_back(run, 102.5, 104.5) == 2.5
    started = {"event": "ranks_started", "time": 106.5, "attempt": 1}
    (run.events / "attempt-0001.jsonl").write_text(f"{json.dumps(started)}\n")
    assert measure_back(run, 102.5, 104.5) == 4.5
    assert measure_back(run, 120.0, 121.0) is None


def test_windows_and_report() -> None:
    """The time after a hit is its own; the ETTR counts the steps that stayed."""
    points = tuple({"step": s, "time": 10.0 * s, "samples_per_s": 3} for s in (1, 2, 4))
    events = (
        Event(5.0, "submitted", {}),
        Event(50.0, "finished", {}),
    )
    shape = Shape(1, 1, 15)
    facts = Facts(RunDirectory(Path("x")), events, points=points, shape=shape)
    hits = [Hit("kill", 15.0, 2, 4.0), Hit("stop", 25.0, 0, None)]
    windows = measure_windows(facts, hits)
    assert windows == [
        Window("before the first hit", 5.0, 10.0),
        Window("kill", 5.0, 10.0),
        Window("stop", 10.0, 25.0),
    ]
    table, values = render_costs(hits, windows)
    rows = [line.split() for line in table.splitlines()]
    assert rows[1] == ["kill", "1", "2", "(2)", "4.0,", "4.0", "0.500"]
    assert rows[2] == ["stop", "1", "0", "(0)", "-,", "-", "0.400"]
    assert rows[3][:5] == ["all", "hits", "2", "2", "(2)"]
    assert rows[3][-1] == "0.429"
    assert rows[4][-1] == "0.444"
    assert values["ettr"] == pytest.approx(20 / 45)
