"""Tables and short forms: aligned plain text for a pipe, colours for a terminal."""

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "brief_number",
    "brief_seconds",
    "columns_of",
    "drop_columns",
    "fits",
    "plain_table",
    "rich_table",
]

_LEAST_LAST = 12
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
NONE = "-"
"""What stands where nothing is known: a cell is never empty."""


def brief_seconds(seconds: float | None) -> str:
    """Give `45s`, `12m`, `3h05m`, `2d04h`, or `-`."""
    if seconds is None:
        return NONE
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"


def brief_number(value: float | None, digits: int = 4) -> str:
    """Give a number with so many significant digits, or `-`."""
    return NONE if value is None else f"{value:.{digits}g}"


def columns_of(stream: TextIO, most: int) -> int:
    """Give how many columns a terminal has, at most so many; elsewhere, these."""
    if not stream.isatty():
        return most
    return min(most, shutil.get_terminal_size((most, 24)).columns)


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Give aligned lines, two blanks between columns, none at the end; pure.

    A cell has no blanks in it except in the last column, so that `awk` can count.
    """
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    texts = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
    return "".join(f"{text.rstrip()}\n" for text in texts)


def fits(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Say whether a table has room, its last column with some words a line; pure."""
    columns = list(zip(head, *rows, strict=True))
    last = min(_LEAST_LAST, max(map(len, columns[-1])))
    widths = [max(map(len, column)) for column in columns[:-1]]
    return sum(widths) + 2 * len(widths) + last <= width


def drop_columns(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    names: Sequence[str],
    width: int,
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Leave out columns, the first named first, until a table has room; pure."""
    for name in names:
        if fits(head, rows, width):
            break
        if name in head:
            at = list(head).index(name)
            head = [*head[:at], *head[at + 1 :]]
            rows = [[*row[:at], *row[at + 1 :]] for row in rows]
    return head, rows


def rich_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]
) -> "Table":
    """Give the same for a terminal; `styles` colours the rows."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name, no_wrap=name != head[-1])
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*(Text(cell, style=style) for cell in row))
    return table
