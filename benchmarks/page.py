"""`python -m benchmarks.page`: docs/performance.md, from the results and a template.

`performance.md.in` has the prose; a line `{{ NAME }}` becomes the tables of
`results/NAME.json`, `{{ machine }}` what they were measured on.
"""

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, again
from benchmarks.result import Result, Row, ceiling

_HERE = Path(__file__).resolve().parent
TEMPLATE = _HERE / "performance.md.in"
PAGE = _HERE.parent / "docs" / "performance.md"
_MARK = re.compile(r"^\{\{ (\w+) \}\}$", re.MULTILINE)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(TEMPLATE.read_text(), read_answers(RESULTS)))
    sys.stdout.write(f"{PAGE}\n")


def read_answers(directory: Path) -> dict[str, dict[str, Any]]:
    """Give every question's answer by its name."""
    files = sorted(directory.glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in files}


def render(template: str, answers: Mapping[str, dict[str, Any]]) -> str:
    """Give the page; pure."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name == "machine":
            return machine(answers)
        if name == "verdicts":
            return verdicts(answers)
        return section(answers.get(name))

    return _MARK.sub(fill, template)


def machine(answers: Mapping[str, dict[str, Any]]) -> str:
    """Say on what was measured, once for each machine."""
    seen: dict[str, list[str]] = {}
    for name, answer in answers.items():
        if "machine" in answer:
            words = ", ".join(
                f"{key} {value}" for key, value in answer["machine"].items()
            )
            load = f"{answer['load before']:g} to {answer['load after']:g}"
            seen.setdefault(words, []).append(f"{name} {load}")
    lines = [f"{words}. Load: {'; '.join(names)}." for words, names in seen.items()]
    return "\n\n".join(lines) or "Nothing was measured yet: run `make bench`."


def verdicts(answers: Mapping[str, dict[str, Any]]) -> str:
    """Give one line for each target: met or missed, and by how much."""
    lines = [
        "| question | what | found | target | | baseline again |",
        "| --- | --- | ---: | ---: | --- | ---: |",
    ]
    for name, answer in answers.items():
        for result in map(from_json, answer["results"]):
            lines += [
                _verdict(name, result, row) for row in result.rows if _judged(row)
            ]
    return "\n".join(lines)


def _judged(row: Row) -> bool:
    return row.is_met is not None


def _verdict(name: str, result: Result, row: Row) -> str:
    found = row.median if row.limit is not None else row.difference
    sign = "" if row.limit is not None else "+"
    shown = f"{number(found, sign)} {result.unit}"
    word = "met" if row.is_met else f"**missed by {_excess(row)} {result.unit}**"
    what = f"{result.question}: {row.name}"
    cells = [f"[{name}](#{name})", what, shown, ceiling(row), word]
    return f"| {' | '.join([*cells, _control(result, row)])} |"


def _control(result: Result, row: Row) -> str:
    """Give how far the baseline may be from itself, where a difference is judged."""
    if row.limit is not None or result.baseline is None:
        return ""
    rows = {one.name: one for one in result.rows}
    control = rows.get(again(result.baseline))
    if control is None or control.difference_interval is None:
        return ""
    return f"{_interval(control.difference_interval, '+')} {result.unit}"


def _excess(row: Row) -> str:
    if row.limit is not None:
        return number(row.median - row.limit)
    return number((row.difference or 0.0) - (row.allowed or 0.0))


def section(answer: dict[str, Any] | None) -> str:
    """Give a question's tables."""
    if answer is None:
        return "Not measured yet: run `make bench`."
    parts = [f"*{answer['asked']}*"] if "asked" in answer else []
    if answer["failed"]:
        parts.append(f"**Failed:** {answer['failed']}")
    parts += ["\n".join(_table(from_json(result))) for result in answer["results"]]
    return "\n\n".join(parts)


def _table(result: Result) -> Iterator[str]:
    yield f"**{result.question}**, {result.unit}, {_count(result)}:"
    yield ""
    if result.baseline is None:
        yield "| | median | 95 % |"
        yield "| --- | ---: | --- |"
    else:
        yield f"| | median | 95 % | beside {result.baseline} | 95 % |"
        yield "| --- | ---: | --- | ---: | --- |"
    for row in result.rows:
        cells = [row.name, number(row.median), _interval(row.interval)]
        if result.baseline is not None:
            has = row.difference is not None and row.difference_interval is not None
            cells.append(number(row.difference, "+") if has else "")
            cells.append(_interval(row.difference_interval, "+") if has else "")
        yield f"| {' | '.join(cells)} |"


def _count(result: Result) -> str:
    count = max(map(len, result.blocks.values()), default=0)
    return "one block" if count == 1 else f"{count} blocks"


def _interval(pair: tuple[float, float] | None, sign: str = "") -> str:
    if pair is None:
        return ""
    low, high = pair
    return f"{number(low, sign)} … {number(high, sign)}"


def number(value: float | None, sign: str = "") -> str:
    """Give three digits that count; whole numbers from a thousand on."""
    if value is None:
        return ""
    if math.isinf(value):
        return "never"
    if abs(value) >= 1000:
        return f"{value:{sign},.0f}"
    return f"{value:{sign}.3g}"


def from_json(value: dict[str, Any]) -> Result:
    """Read back a table."""
    rows = [Row(**row) for row in value["rows"]]
    return Result(**{**value, "rows": rows})


if __name__ == "__main__":
    main()
