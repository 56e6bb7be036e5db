"""Charts as SVG text: curves over steps and a timeline of attempts; pure functions."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from clusterddp.runs.measures import Span
from clusterddp.runs.summary import PARTS, Curve
from clusterddp.tables import brief_number, brief_seconds

__all__ = ["LABELS", "SHORT", "render_curve", "render_timeline", "share_bar"]

LABELS = {
    "queued": "waiting in the queue",
    "setup": "starting, loading",
    "train": "steps that stayed",
    "save": "saving",
    "rest": "evaluating, waiting",
    "lost": "steps done again",
    "drain": "stopping together",
    "stall": "standing still",
    "other": "between attempts",
}
SHORT = {part: part for part in LABELS} | {"queued": "queue", "setup": "start"}
"""The parts by one word, as columns and the text report name them."""

_WIDTH, _HEIGHT = 480, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 22, 12, 28
_MOST_POINTS = 600
_MOST_DOTS = 60
_BAR, _GAP = 18, 10
_MOST_TICKS = 6
_INVISIBLE = 0.05


def render_curve(curve: Curve) -> str:
    """Give one metric over the steps as an SVG element."""
    points = _thin(
        [(x, y) for x, y in curve.points if math.isfinite(x) and math.isfinite(y)]
    )
    if not points:
        return ""
    xs, ys = _ticks(0.0, max(x for x, _ in points), 5), _ticks_around(points)
    x_at = _Scale(xs[0], max(xs[-1], points[-1][0]), _LEFT, _WIDTH - _RIGHT)
    y_at = _Scale(ys[0], ys[-1], _HEIGHT - _BOTTOM, _TOP)
    body = [*_grid(xs, ys, x_at, y_at)]
    path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)
    body.append(f'<polyline class="line" points="{path}"/>')
    radius = 2.5 if len(points) <= _MOST_DOTS else 0
    for x, y in points:
        tip = f"step {x:.0f}: {brief_number(y)}"
        body.append(
            f'<g><title>{tip}</title><circle class="dot" cx="{x_at(x):.1f}" '
            f'cy="{y_at(y):.1f}" r="{radius}"/><circle class="hit" '
            f'cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="7"/></g>'
        )
    return _svg(_HEIGHT, body, f"{curve.name} over steps")


def render_timeline(spans: Sequence[Span], began: float, ended: float) -> str:
    """Give the attempts below each other on one time axis as an SVG element.

    Within an attempt the parts stand one after the other; in truth saving and
    evaluating fall between the steps.
    """
    height = _TOP + len(spans) * (_BAR + _GAP) + _BOTTOM
    xs = _time_ticks(max(1.0, ended - began))
    x_at = _Scale(0.0, max(xs[-1], ended - began), _LEFT, _WIDTH - _RIGHT)
    body = [_vertical(x_at(x), height, brief_seconds(x)) for x in xs]
    for row, span in enumerate(spans):
        y = _TOP + row * (_BAR + _GAP)
        body.append(
            f'<text class="label" x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">'
            f"{span.attempt}</text>"
        )
        body += _bar(span, began, y, x_at)
    return _svg(height, body, "attempts over time")


def _bar(span: Span, began: float, y: int, x_at: "_Scale") -> Iterator[str]:
    at = span.started - span.queued - began
    when = time.strftime("%d %b %H:%M:%S", time.localtime(span.started))
    for part in PARTS:
        seconds = float(getattr(span, part))
        left, right = x_at(at), x_at(at + seconds)
        at += seconds
        if right - left < _INVISIBLE:
            continue
        tip = f"attempt {span.attempt}, {when}: {LABELS[part]} {seconds:.1f} s"
        yield (
            f'<rect class="{part}" x="{left:.1f}" y="{y}" '
            f'width="{max(1.0, right - left):.1f}" height="{_BAR}">'
            f"<title>{escape(tip)}</title></rect>"
        )


class _Scale:
    """Maps values to places on the picture."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._start = low, start
        self._factor = (end - start) / ((high - low) or 1.0)

    def __call__(self, value: float) -> float:
        """Give the place of a value."""
        return self._start + (value - self._low) * self._factor


def _thin(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Keep at most so many points: lowest and highest of each stretch, and the last."""
    if len(points) <= _MOST_POINTS:
        return points
    size = math.ceil(len(points) / (_MOST_POINTS // 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(ends)
    return [*kept, points[-1]] if kept[-1] != points[-1] else kept


def _ticks_around(points: Sequence[tuple[float, float]]) -> list[float]:
    low, high = min(y for _, y in points), max(y for _, y in points)
    room = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
    floor = 0.0 if low >= 0 and low < high / 2 else low - room
    return _ticks(floor, high + room, 4)


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Give round numbers that enclose an interval."""
    raw = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * k for k in (1, 2, 2.5, 5, 10) if raw <= power * k * 1.0001)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [step * k for k in range(first, max(last, first + 1) + 1)]


_TIME_STEPS = (
    *(1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400, 172800, 432000, 864000),
)


def _time_ticks(length: float) -> list[float]:
    """Give times that people count in, from 0 to beyond a length in seconds."""
    step = next(
        (one for one in _TIME_STEPS if length / one <= _MOST_TICKS), _TIME_STEPS[-1]
    )
    return [float(step * k) for k in range(math.ceil(length / step) + 1)]


def _grid(
    xs: Sequence[float], ys: Sequence[float], x_at: _Scale, y_at: _Scale
) -> Iterator[str]:
    for y in ys:
        place = y_at(y)
        yield (
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" '
            f'y1="{place:.1f}" y2="{place:.1f}"/><text class="label" '
            f'x="{_LEFT - 8}" y="{place + 4:.1f}" text-anchor="end">{y:.4g}</text>'
        )
    for x in xs:
        yield (
            f'<text class="label" x="{x_at(x):.1f}" y="{_HEIGHT - 8}" '
            f'text-anchor="middle">{x:.6g}</text>'
        )


def _vertical(x: float, height: int, label: str) -> str:
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" '
        f'y2="{height - _BOTTOM + 4}"/><text class="label" x="{x:.1f}" '
        f'y="{height - 8}" text-anchor="middle">{label}</text>'
    )


def _svg(height: int, body: Sequence[str], label: str) -> str:
    inner = "\n".join(body)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(label)}">\n{inner}\n</svg>'
    )


def share_bar(totals: Mapping[str, float]) -> str:
    """Give one bar of all time, by part, as HTML."""
    whole = sum(totals.values()) or 1.0
    cells = (
        f'<span class="{part}" style="flex-grow:{seconds / whole:.5f}" '
        f'title="{escape(LABELS[part])}: {seconds:.1f} s"></span>'
        for part, seconds in totals.items()
        if seconds / whole > _INVISIBLE / _WIDTH
    )
    return f'<div class="shares">{"".join(cells)}</div>'
