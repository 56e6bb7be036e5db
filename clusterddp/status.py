"""`clusterddp.status [RUN ...]`: one table of all runs, from disk and from Slurm."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterddp.runs.finding import find_root, select_runs
from clusterddp.runs.status import Status, count_states
from clusterddp.runs.survey import survey
from clusterddp.tables import (
    brief_number,
    brief_seconds,
    drop_columns,
    fits,
    plain_table,
    rich_table,
)
from clusterddp.terminal import run_verb, talk_to_stderr

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

__all__ = ["main", "render_status"]

_HEAD = (
    *("RUN", "STATE", "JOB", "NODES", "ATTEMPT", "STEP", "LOSS", "SAMPLES/S"),
    *("ETTR", "SAVED", "LEFT", "LIMIT", "DETAIL"),
)
_STYLES = {
    "running": "green",
    "pending": "yellow",
    "stopped": "yellow",
    "failed": "red",
    "died": "red",
    "unknown": "magenta",
    "finished": "dim",
}
_BAR = 10
_DROPPED = (
    "NODES",
    "LIMIT",
    "SAMPLES/S",
    "ETTR",
    "SAVED",
    "ATTEMPT",
    "LOSS",
    "LEFT",
    "JOB",
)
"""What a narrow terminal does without, the first first; `--json` has it all."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    given = build_parser().parse_args(arguments)
    talk_to_stderr()
    return run_verb(lambda: _show(given))


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="clusterddp status",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Show where runs stand: one line for each, all runs without RUN.\n"
        "SAVED is the age of the newest checkpoint, LEFT the training time that is\n"
        "left by the last speed, LIMIT the time until Slurm ends the job, ETTR the\n"
        "time in steps that stayed as a share of all time since the submission.",
        epilog="examples:\n"
        "  clusterddp status                  all runs below runs/\n"
        "  clusterddp status digits           the latest run of that name\n"
        "  clusterddp status digits/20260101-120000-ab12   all runs of that sweep\n"
        "  clusterddp status --watch 5        refreshed every 5 s, Ctrl-C ends it\n"
        "  clusterddp status --json | jq '.[] | select(.state == \"failed\") | .path'\n"
        "\nexit codes: 0 shown, 2 no such run",
    )
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="*", help="run directory, NAME or NAME/ID")
    add("--runs", dest="root", metavar="DIR", help="where runs lie ($CLUSTERDDP_RUNS)")
    add("--watch", type=float, metavar="SECONDS", help="show it again and again")
    add("--json", action="store_true", help="print a JSON list instead")
    return parser


def _show(given: argparse.Namespace) -> int:
    if given.watch is None:
        _print(_look(given), as_json=given.json)
    elif sys.stdout.isatty() and not given.json:
        _watch_live(given)
    else:
        while True:
            _print(_look(given), as_json=given.json)
            time.sleep(max(1.0, given.watch))
    return 0


def _look(given: argparse.Namespace) -> list[Status]:
    root = find_root(given.root, os.environ)
    return [look.status for look in survey(select_runs(given.runs, root))]


def _print(found: Sequence[Status], *, as_json: bool) -> None:
    if as_json:
        rows = (json.dumps(status.to_json()) for status in found)
        sys.stdout.write("[" + ",\n ".join(rows) + "]\n")
    elif sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        console.print(_rich(found, console.width), _count(found))
    else:
        sys.stdout.write(render_status(found))
    sys.stdout.flush()


def _watch_live(given: argparse.Namespace) -> None:
    """Show it on a screen of its own until Ctrl-C; the last look stays behind."""
    from rich.live import Live

    found = _look(given)
    try:
        with Live(auto_refresh=False, screen=True) as live:
            while True:
                _draw_for(live, found, max(1.0, given.watch))
                found = _look(given)
    finally:
        _print(found, as_json=False)


def _draw_for(live: "Live", found: Sequence[Status], seconds: float) -> None:
    """Draw for some time, anew as soon as the window has another size."""
    from rich.console import Group

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        table = _rich(found, live.console.width)
        live.update(Group(_count(found), table), refresh=True)
        signal.sigtimedwait({signal.SIGWINCH}, left)


def _rich(found: Sequence[Status], width: int) -> "Table":
    """Give the table, without the columns and the bar that have no room."""
    styles = [_STYLES[status.state] for status in found]
    head, rows = _table(found, with_bar=True)
    if fits(head, rows, width):
        return rich_table(head, rows, styles)
    plain = _table(found, with_bar=False)
    return rich_table(*drop_columns(*plain, _DROPPED, width), styles)


def _count(found: Sequence[Status]) -> str:
    counts = count_states(found)
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "no runs"


def render_status(found: Sequence[Status]) -> str:
    """Give the table as plain text; pure."""
    head, rows = _table(found, with_bar=False)
    return plain_table(head, rows)


def _table(
    found: Sequence[Status], *, with_bar: bool
) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Give head and rows; runs of sweeps also show what varies, and their metrics."""
    varied = list(dict.fromkeys(key for one in found for key in one.values))
    metrics = sorted({key for one in found for key in one.evaluated}) if varied else []
    head = (*_HEAD[:-1], *varied, *(name.upper() for name in metrics), _HEAD[-1])
    rows = []
    for one in found:
        *cells, detail = _row(one, with_bar=with_bar)
        values = (_cell(one.values.get(key)) for key in varied)
        shown = (brief_number(one.evaluated.get(name)) for name in metrics)
        rows.append((*cells, *values, *shown, detail))
    return head, rows


def _cell(value: object) -> str:
    """Give a varied value without blanks: every cell is one word."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "-" if value is None else "".join(text.split()) or "-"


def _row(status: Status, *, with_bar: bool) -> tuple[str, ...]:
    ettr = None if status.ettr is None else f"{status.ettr:.0%}"
    return (
        f"{status.name}/{status.id}",
        status.state,
        status.job_id or "-",
        _word(status.nodes),
        _word(status.attempt),
        _steps(status, with_bar=with_bar),
        brief_number(status.loss),
        brief_number(status.samples_per_s),
        ettr or "-",
        brief_seconds(status.checkpoint_age_s),
        brief_seconds(status.left_s),
        brief_seconds(status.limit_s),
        _detail(status),
    )


def _word(value: int | None) -> str:
    return "-" if value is None else str(value)


def _steps(status: Status, *, with_bar: bool) -> str:
    if status.step is None:
        return "-"
    text = f"{status.step}/{_word(status.total_steps)}"
    if not with_bar or not status.total_steps:
        return text
    full = round(_BAR * status.step / status.total_steps)
    return f"{'━' * full}{'╌' * (_BAR - full)} {text}"


def _detail(status: Status) -> str:
    if status.starts_in_s is None:
        return status.detail
    return f"{status.detail}, starts in about {brief_seconds(status.starts_in_s)}"


if __name__ == "__main__":
    sys.exit(main())
