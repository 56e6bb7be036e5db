"""report on recorded runs: figures are the ledger's, the page needs nothing else."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from clusterddp.report import main as report
from clusterddp.report import render_report, review
from clusterddp.runs.charts import render_curve
from clusterddp.runs.inquiry import examine
from clusterddp.runs.ledger import read_events
from clusterddp.runs.page import render_page
from clusterddp.runs.summary import PARTS, Curve
from tests.replay import CASES, replay
from tests.test_looking import check_golden


@pytest.mark.parametrize("case", CASES)
def test_figures_are_the_ledgers(case: str, tmp_path: Path) -> None:
    """Start and end of each attempt to the digit; the parts add up to all time."""
    found = replay(case, tmp_path)
    summary = review(found.run, found.now, found.program)
    events = read_events(found.run)
    starts = [event.time for event in events if event.kind == "attempt_started"]
    ends = [event.time for event in events if event.kind == "attempt_ended"]
    assert [span.started for span in summary.spans] == starts
    told = [span.ended for span in summary.spans if span.cause is not None]
    assert told == ends
    for span in summary.spans:
        inside = span.setup + span.train + span.rest + span.lost
        assert inside == pytest.approx(span.length)
    assert sum(summary.totals().values()) == pytest.approx(summary.wall)
    assert summary.totals()["other"] < 0.05 * summary.wall + 0.5 or case == "lost_node"
    if summary.ettr is not None:
        train = summary.totals()["train"]
        assert summary.ettr == pytest.approx(train / summary.wall, abs=0.02)


def test_lost_work_is_counted(tmp_path: Path) -> None:
    """A rank killed between two checkpoints: the steps since the first are lost."""
    found = replay("killed_rank", tmp_path)
    first, second = review(found.run, found.now, found.program).spans
    assert (first.cause, first.lost_steps > 0, first.lost > 0) == ("crash", True, True)
    assert (second.cause, second.lost_steps) == ("completed", 0)


@pytest.mark.parametrize("case", ["killed_rank", "preempted", "pending"])
def test_text(case: str, tmp_path: Path) -> None:
    """The table, to the letter."""
    found = replay(case, tmp_path)
    summary = review(found.run, found.now, found.program)
    check_golden(f"report/{case}.txt", render_report(summary))


def test_signals_and_drills_end_no_phase(tmp_path: Path) -> None:
    """What happens to an attempt without an end does not cut it short."""
    found = replay("killed_supervisor", tmp_path)
    before = review(found.run, found.now, found.program).spans[0]
    line = {"time": before.started + 0.5, "event": "drill", "what": "preempt"}
    (found.run.events / "login-x-1.jsonl").write_text(json.dumps(line) + "\n")
    assert review(found.run, found.now, found.program).spans[0] == before


class _Reader(HTMLParser):
    """Takes note of tags that never close, and of everything that loads something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.loads += [str(values[k]) for k in ("src", "href") if k in values]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that closes itself is no open tag."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("case", CASES)
def test_page_is_whole_and_loads_nothing(case: str, tmp_path: Path) -> None:
    """Every tag closes, nothing comes from elsewhere, no number is `nan`."""
    found = replay(case, tmp_path)
    summary = review(found.run, found.now, found.program)
    page = render_page(summary, examine(found.run, found.now, found.program))
    reader = _Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.loads == ["data:,"]
    assert "<script" not in page
    assert "nan" not in page.replace("finance", "")
    assert all(f"i.{part}" in page for part in PARTS)


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    """What a metric is called, and what an exception said, is text."""
    found = replay("crash", tmp_path)
    metrics = found.run.metrics
    metrics.write_text(
        '{"step": 1, "time": 1, "eval/<b>&": 1.0, "loss": NaN}\n'
        '{"step": 2, "time": 2, "eval/<b>&": Infinity, "loss": 1e400}\n'
    )
    verdict = found.run.attempt(1).verdict(1)
    verdict.write_text(verdict.read_text().replace("the toy broke", "</pre><b>"))
    summary = review(found.run, found.now, found.program)
    page = render_page(summary, examine(found.run, found.now, found.program))
    assert "<b>&" not in page
    assert "</pre><b>" not in page
    assert "eval/&lt;b&gt;&amp;" in page


def test_long_curves_are_thinned_and_keep_their_peaks() -> None:
    """At most some hundred points are drawn, the extreme ones among them."""
    values = [(float(x), 50.0 if x == 7777 else 1.0) for x in range(10_000)]
    picture = render_curve(Curve("loss", tuple(values)))
    assert picture.count("<title>") < 700
    assert "step 7777: 50" in picture
    assert render_curve(Curve("loss", ((1.0, float("nan")),))) == ""


def test_report_at_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page in the run directory or elsewhere, a table, figures, a mistake."""
    found = replay("killed_rank", tmp_path)
    words = ["toy", "--runs", str(tmp_path / "runs")]
    assert report(words) == 0
    assert capsys.readouterr().out == f"{found.run.path}/report.html\n"
    page = (found.run.path / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert report([*words, "--text"]) == 0
    assert "LOST_STEPS" in capsys.readouterr().out
    assert report([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attempts"][0]["cause"] == "crash"
    assert report([*words, "-o", str(tmp_path / "no" / "x.html")]) == 2
    assert "the page cannot be written (No such file" in capsys.readouterr().err
