"""`clusterddp.report RUN`: where the time went, as text or as one HTML page."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from clusterddp.errors import UsageError
from clusterddp.files import write_atomic
from clusterddp.runs.charts import SHORT
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.evidence import reached_steps
from clusterddp.runs.facts import read_facts
from clusterddp.runs.finding import find_root, find_run
from clusterddp.runs.inquiry import examine
from clusterddp.runs.measures import Span
from clusterddp.runs.saves import read_saves
from clusterddp.runs.summary import RunSummary, summarize
from clusterddp.runs.survey import survey
from clusterddp.slurm.programs import Runner, run_program
from clusterddp.tables import (
    brief_number,
    brief_seconds,
    columns_of,
    drop_columns,
    plain_table,
)
from clusterddp.terminal import run_verb, talk_to_stderr

__all__ = ["main", "render_report", "review"]

_HEAD = (
    *("ATTEMPT", "QUEUE", "LENGTH", "START", "TRAIN", "SAVE", "REST", "LOST"),
    *("DRAIN", "STALL", "LOST_STEPS", "ENDED_AS"),
)
_WIDTH = 120
_DROPPED = ("LOST_STEPS", "REST", "LENGTH", "SAVE", "QUEUE")
"""What a narrow terminal does without: the sums above the table tell of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    given = build_parser().parse_args(arguments)
    talk_to_stderr()
    return run_verb(lambda: _report(given))


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="clusterddp report",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Say where the time of a run went: its attempts, its curves, its\n"
        "ETTR. Without --text it writes one HTML page that needs no network, into the\n"
        "run directory or to -o, and prints its path.",
        epilog="examples:\n"
        "  clusterddp report digits --text\n"
        "  clusterddp report digits -o digits.html\n"
        "\nexit codes: 0 written, 2 no such run, or the page cannot be written",
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory, NAME or NAME/ID")
    add("--runs", dest="root", metavar="DIR", help="where runs lie ($CLUSTERDDP_RUNS)")
    add("--text", action="store_true", help="print a table instead of writing a page")
    add("-o", dest="page", type=Path, metavar="FILE.html", help="where the page goes")
    add("--json", action="store_true", help="print the figures as one JSON object")
    return parser


def _report(given: argparse.Namespace) -> int:
    run = find_run(given.run, find_root(given.root, os.environ))
    summary = review(run)
    if given.json:
        sys.stdout.write(json.dumps(summary.to_json()) + "\n")
    elif given.text:
        sys.stdout.write(render_report(summary, columns_of(sys.stdout, _WIDTH)))
    else:
        sys.stdout.write(f"{_write_page(run, summary, given.page)}\n")
    return 0


def review(
    run: RunDirectory, now: float | None = None, program: Runner = run_program
) -> RunSummary:
    """Read a run whole and give its summary."""
    moment = time.time() if now is None else now
    status = survey([run], moment, program)[0].status
    facts = read_facts(run, whole=True)
    return summarize(facts, status, reached_steps(run), read_saves(run), moment)


def _write_page(run: RunDirectory, summary: RunSummary, given: Path | None) -> Path:
    from clusterddp.runs.page import render_page

    path = given or run.path / "report.html"
    text = render_page(summary, examine(run))
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        message = (
            f"{path}: the page cannot be written ({error.strerror}); give another "
            "place with -o FILE.html"
        )
        raise UsageError(message) from error
    return path


def render_report(summary: RunSummary, columns: int = _WIDTH) -> str:
    """Give the report as text, its table without what has no room; pure."""
    status = summary.status
    ettr = "-" if summary.ettr is None else f"{summary.ettr:.1%}"
    whole = summary.wall or 1.0
    detail = "" if status.detail == "-" else f": {status.detail}"
    lines = [
        f"run       {status.name}/{status.id}",
        f"state     {status.state}{detail}",
        f"steps     {_word(status.step)}/{_word(status.total_steps)}",
        f"loss      {brief_number(status.loss)}",
        f"all time  {summary.wall:.1f} s ({brief_seconds(summary.wall)})",
        f"ettr      {ettr}",
        "",
        *(
            f"{SHORT[part]:<9} {seconds:9.1f} s  {seconds / whole:6.1%}"
            for part, seconds in summary.totals().items()
        ),
        "",
    ]
    rows = [_row(span) for span in summary.spans]
    table = plain_table(*drop_columns(_HEAD, rows, _DROPPED, columns))
    return "".join(f"{line}\n" for line in lines) + table


def _row(span: Span) -> tuple[str, ...]:
    times = (span.queued, span.length, *span.inside())
    shown = (f"{seconds:.1f}" for seconds in times)
    return str(span.attempt), *shown, str(span.lost_steps), span.cause or "-"


def _word(value: int | None) -> str:
    return "-" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
