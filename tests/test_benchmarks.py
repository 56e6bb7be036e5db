"""The harness of the measurements, and that their page is current."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness import RESULTS, compare, measure, record, turns
from benchmarks.page import PAGE, TEMPLATE, read_answers, render
from benchmarks.result import Target, table

BLOCKS = {
    "hand": [100.0, 200.0, 300.0, 400.0, 500.0],
    "ours": [101.0, 202.0, 301.0, 405.0, 501.0],
    "hand (again)": [100.0, 200.0, 300.0, 400.0, 500.0],
}


def test_differences_are_taken_within_blocks() -> None:
    """A machine that slows down from block to block hides no small difference."""
    result = compare("step", BLOCKS, unit="us", baseline="hand")
    hand, ours, control = result.rows
    assert hand.difference is None
    assert ours.difference == 1.0
    assert ours.difference_interval is not None
    assert 1.0 <= ours.difference_interval[0] <= ours.difference_interval[1] <= 5.0
    assert control.difference_interval == (0.0, 0.0)


@pytest.mark.parametrize(
    ("target", "is_met", "words"),
    [
        (Target("ours", limit=300), False, "MISSED: at most 300"),
        (Target("ours", ratio=1.01), True, "met: at most +3"),
        (Target("ours", ratio=1.001), False, "MISSED: at most +0.3"),
        (Target("ours", ratio=1.001, extra=25), True, "met: at most +25"),
    ],
)
def test_targets(target: Target, *, is_met: bool, words: str) -> None:
    """A limit binds the median, a ratio or an extra the paired difference."""
    result = compare("step", BLOCKS, unit="us", baseline="hand", targets=[target])
    assert result.rows[1].is_met is is_met
    assert words in table(result)


def test_every_block_asks_each_variant_once_in_another_order() -> None:
    """The baseline is asked twice a block; what warmed up is not counted."""
    calls: list[str] = []

    def asked(name: str) -> Callable[[], float]:
        def variant() -> float:
            calls.append(name)
            return 1.0

        return variant

    variants = {name: asked(name) for name in "abc"}
    result = measure("order", variants, unit="s", baseline="a", blocks=8, warm_up=1)
    blocks = [tuple(calls[i : i + 4]) for i in range(0, len(calls), 4)]
    assert all(sorted(block) == ["a", "a", "b", "c"] for block in blocks)
    assert len(set(blocks)) > 1
    assert {len(values) for values in result.blocks.values()} == {8}


def test_a_slow_machine_is_asked_less_often() -> None:
    """As often as must be, and no more than wanted."""
    assert list(turns(5, seconds=-1)) == [False, True, True, True]
    assert list(turns(2, seconds=-1, warm_up=0)) == [True, True]
    assert list(turns(5, seconds=60, warm_up=2)) == [False] * 2 + [True] * 5


def test_a_question_that_fails_keeps_its_tables_and_says_why(tmp_path: Path) -> None:
    """The file holds what was measured before, and the failure."""

    def ask() -> None:
        with record("q", "How long?", tmp_path) as results:
            results.append(compare("step", BLOCKS, unit="us", baseline="hand"))
            raise RuntimeError("no cluster")

    with pytest.raises(RuntimeError, match="no cluster"):
        ask()
    kept = json.loads((tmp_path / "q.json").read_text())
    assert kept["failed"] == "RuntimeError: no cluster"
    assert kept["results"][0]["blocks"] == BLOCKS


def test_the_page_is_current_with_the_results() -> None:
    """docs/performance.md is what `python -m benchmarks.page` would write."""
    made = render(TEMPLATE.read_text(), read_answers(RESULTS))
    assert PAGE.read_text() == made, "run python -m benchmarks.page"


def test_the_page_tells_of_what_failed_and_what_never_came(tmp_path: Path) -> None:
    """Neither is left out."""

    def ask() -> None:
        with record("q", "How long?", tmp_path) as results:
            results.append(compare("back", {"peer": [math.inf]}, unit="s"))
            raise RuntimeError("no cluster")

    with pytest.raises(RuntimeError, match="no cluster"):
        ask()
    page = render("# Page\n\n{{ q }}\n\n{{ r }}\n", read_answers(tmp_path))
    assert "**Failed:** RuntimeError: no cluster" in page
    assert "| peer | never |" in page
    assert "Not measured yet" in page


def test_a_missed_target_is_told_with_its_excess(tmp_path: Path) -> None:
    """The list of targets has each one, met or missed, and by how much."""
    targets = [Target("ours", ratio=1.001), Target("hand (again)", limit=1000)]
    with record("q", "How long?", tmp_path) as results:
        table = compare("step", BLOCKS, unit="us", baseline="hand", targets=targets)
        results.append(table)
    page = render("{{ verdicts }}", read_answers(tmp_path))
    assert "step: ours | +1 us | at most +0.3 | **missed by 0.7 us** |" in page
    assert "step: hand (again) | 300 us | at most 1000 | met |" in page
