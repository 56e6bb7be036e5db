"""The report as one HTML page that needs nothing else: no script, no network; pure."""

import time
from collections.abc import Iterator
from html import escape

from clusterddp.runs.charts import (
    LABELS,
    SHORT,
    render_curve,
    render_timeline,
    share_bar,
)
from clusterddp.runs.explanation import Explanation
from clusterddp.runs.summary import PARTS, RunSummary
from clusterddp.tables import brief_number, brief_seconds

__all__ = ["render_page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6470; --paper: #fff;
  --grid: #e3e6ea; --line: #1f6fb2; --queued: #b8bec6; --setup: #d9a21b;
  --train: #1f6fb2; --save: #4aa58f; --lost: #c8452f; --drain: #8d78b8;
  --stall: #6d1f2e; --rest: #9fd0c3; --other: #d8dce1; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa3ae;
  --paper: #15181c; --grid: #2c3138; --line: #5aa7e6; --queued: #565e68;
  --setup: #c9971f; --train: #3f8fd2; --save: #4aa58f; --lost: #dd6048;
  --drain: #9c88c4; --stall: #b5485e; --rest: #2f6b5d; --other: #3a4047; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 24px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 16px; margin: 32px 0 8px; }
.soft { color: var(--soft); } p { max-width: 75ch; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px 32px; margin: 20px 0; }
.tiles b { display: block; font-size: 22px; font-weight: 600; }
.charts { display: grid; gap: 24px;
  grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); }
figure { margin: 0; min-width: 0; } figcaption { font-weight: 600; }
svg { width: 100%; height: auto; display: block; }
.timeline { max-width: 680px; }
.line { fill: none; stroke: var(--line); stroke-width: 2; stroke-linejoin: round; }
.dot { fill: var(--line); } .hit { fill: transparent; }
.grid { stroke: var(--grid); } .label { fill: var(--soft); font-size: 11px; }
.shares { display: flex; gap: 2px; height: 22px; border-radius: 4px; overflow: hidden; }
.shares span { min-width: 1px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 8px 0 0; padding: 0;
  list-style: none; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px;
  margin-right: 6px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; }
th, td { padding: 4px 14px 4px 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--grid); font-variant-numeric: tabular-nums; }
th { font-weight: 600; } td:last-child, th:last-child { text-align: left; }
pre { overflow-x: auto; font-size: 12.5px; }
""" + "".join(
    f"rect.{part} {{ fill: var(--{part}); }} "
    f"span.{part}, i.{part} {{ background: var(--{part}); }}\n"
    for part in LABELS
)


def render_page(summary: RunSummary, told: Explanation) -> str:
    """Give the whole page as text.

    Args:
        summary: the figures.
        told: why the run is where it is.
    """
    status = summary.status
    title = escape(f"{status.name}/{status.id}")
    parts = [
        f"<h1>{title}</h1>",
        f'<div class="soft">{escape(_when(summary))}</div>',
        _tiles(summary),
        f"<p>{escape(told.paragraph)}</p>",
        "<h2>Where the time went</h2>",
        share_bar(summary.totals()),
        _legend(summary),
        "<h2>Attempts</h2>",
        *_timeline(summary),
        _table(summary),
        "<h2>Curves</h2>",
        _charts(summary),
        "<h2>Evidence</h2>",
        f"<pre>{escape(_evidence(told))}</pre>",
    ]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _when(summary: RunSummary) -> str:
    form = "%Y-%m-%d %H:%M:%S"
    began = time.strftime(form, time.localtime(summary.began))
    ended = time.strftime(form, time.localtime(summary.ended))
    is_open = summary.status.state in ("running", "pending", "unknown")
    return f"submitted {began} · {'looked at' if is_open else 'ended'} {ended}"


def _tiles(summary: RunSummary) -> str:
    status = summary.status
    steps = "-" if status.step is None else f"{status.step}/{status.total_steps}"
    tiles = {
        "state": status.state,
        "steps": steps,
        "last loss": brief_number(status.loss),
        "ETTR": "-" if summary.ettr is None else f"{summary.ettr:.1%}",
        "all time": brief_seconds(summary.wall),
        "attempts": str(len(summary.spans)),
        "ranks": "-" if status.ranks is None else str(status.ranks),
    }
    cells = (
        f'<div><span class="soft">{name}</span><b>{escape(value)}</b></div>'
        for name, value in tiles.items()
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _legend(summary: RunSummary) -> str:
    whole = summary.wall or 1.0
    items = (
        f'<li><i class="{part}"></i>{SHORT[part]} {seconds / whole:.1%} '
        f'<span class="soft">({brief_seconds(seconds)}, {LABELS[part]})</span></li>'
        for part, seconds in summary.totals().items()
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _timeline(summary: RunSummary) -> Iterator[str]:
    if summary.spans:
        picture = render_timeline(summary.spans, summary.began, summary.ended)
        yield f'<figure class="timeline">{picture}</figure>'


def _table(summary: RunSummary) -> str:
    head = ("attempt", "queue", "length", *(SHORT[part] for part in PARTS[1:]))
    names = "".join(f"<th>{name}</th>" for name in (*head, "ended as"))
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td>{escape(cell)}</td>"
            for cell in (
                str(span.attempt),
                *(
                    f"{seconds:.1f} s"
                    for seconds in (span.queued, span.length, *span.inside())
                ),
                span.cause or "-",
            )
        )
        + "</tr>\n"
        for span in summary.spans
    )
    return f'<div class="scroll"><table><tr>{names}</tr>\n{rows}</table></div>'


def _charts(summary: RunSummary) -> str:
    if not summary.curves:
        return '<p class="soft">No log point yet.</p>'
    figures = (
        f"<figure><figcaption>{escape(curve.name)}</figcaption>{render_curve(curve)}"
        "</figure>"
        for curve in summary.curves
    )
    return f'<div class="charts">{"".join(figures)}</div>'


def _evidence(told: Explanation) -> str:
    width = max(len(label) for label, _ in told.evidence)
    return "\n".join(
        f"{label:<{width}}  {text.replace(chr(10), chr(10) + ' ' * (width + 2))}"
        for label, text in told.evidence
    )
