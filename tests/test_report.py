"""report on recorded runs: figures are the ledger's, the page needs nothing else."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from clusterddp.report import main as report
from clusterddp.report import render_report, review
from clusterddp.runs.charts import render_curve
from clusterddp.runs.facts import read_facts
from clusterddp.runs.inquiry import examine
from clusterddp.runs.ledger import read_events
from clusterddp.runs.measures import measure_ettr
from clusterddp.runs.page import render_page
from clusterddp.runs.parts import Parts, Save, part_idle_time
from clusterddp.runs.summary import PARTS, Curve
from tests.replay import CASES, replay
from tests.runs import latest, run_python, write_job
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
        assert sum(span.inside()) == pytest.approx(span.length)
        assert min(span.inside()) >= 0
    assert sum(summary.totals().values()) == pytest.approx(summary.wall)
    assert summary.totals()["other"] < 0.05 * summary.wall + 0.5 or case == "lost_node"
    if summary.ettr is not None:
        train = summary.totals()["train"]
        assert summary.ettr == pytest.approx(train / summary.wall, abs=0.02)


def test_a_stall_and_a_stop_have_parts_of_their_own(tmp_path: Path) -> None:
    """From rank 0's last word of progress, and from the last step, to the end."""
    found = replay("stalled", tmp_path / "a")
    (stalled,) = review(found.run, found.now, found.program).spans
    told = json.loads(found.run.progress.read_text())["time"]
    assert stalled.stall == pytest.approx(stalled.ended - told)
    assert stalled.drain == 0
    found = replay("preempted", tmp_path / "b")
    (stopped,) = review(found.run, found.now, found.program).spans
    told = json.loads(found.run.progress.read_text())["time"]
    assert stopped.drain == pytest.approx(stopped.ended - told)
    assert stopped.stall == 0


@pytest.mark.parametrize(
    ("cause", "quiet", "asked", "parts"),
    [
        ("completed", 90.0, None, Parts(save=3.5, rest=6.5)),
        ("crash", 95.0, None, Parts(save=3.5, rest=6.5)),
        ("crash", None, None, Parts(save=1.5, rest=8.5)),
        ("preempted", 90.0, 92.0, Parts(save=0.5, drain=8.0, rest=1.5)),
        ("time limit", 93.0, 92.0, Parts(save=0.5, drain=7.0, rest=2.5)),
        ("signalled", None, 97.0, Parts(save=0.5, drain=3.0, rest=6.5)),
        ("signalled", None, None, Parts(save=1.5, rest=8.5)),
        ("stalled", 94.0, None, Parts(save=0.5, stall=6.0, rest=3.5)),
        ("stalled", 10.0, None, Parts(stall=10.0)),
        (None, 90.0, None, Parts(save=3.5, rest=6.5)),
    ],
)
def test_parts_of_idle_time(
    cause: str | None, quiet: float | None, asked: float | None, parts: Parts
) -> None:
    """Ten idle seconds until 100; saves at 50 and at 98, which was waited for."""
    saves = [Save(50.0, 0.5, 3.0), Save(98.0, 1.0, 2.0)]
    found = part_idle_time(10.0, 100.0, cause, quiet=quiet, asked=asked, saves=saves)
    assert found == parts


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_ettr_is_the_trainers_own(tmp_path: Path) -> None:
    """The last log point's, and what status and report make of the same moment."""
    write_job(tmp_path, launcher="none", slurm={"tasks_per_node": 1})
    done = run_python(("clusterddp.submit", "job.yaml"), tmp_path)
    assert done.code == 0, done.err
    run = latest(tmp_path)
    facts = read_facts(run, whole=True)
    last = facts.points[-1]
    begun = tuple(event for event in facts.events if event.time <= last["time"])
    found = measure_ettr(replace(facts, events=begun), last["time"])
    assert found == pytest.approx(last["ettr"], rel=0.1, abs=0.002)
    summary = review(run)
    assert summary.totals()["train"] == pytest.approx(last["time/train_s"], rel=0.05)
    assert summary.ettr == pytest.approx(summary.totals()["train"] / summary.wall)
    assert summary.totals()["save"] > 0


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
