"""What an answer is: tables of medians, differences and targets."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Target:
    """What a variant may take at most.

    `limit` is in the result's unit. `ratio` and `extra` are against the baseline; of
    the two the larger counts: `Target("ours", ratio=1.01, extra=25)`.
    """

    variant: str
    limit: float | None = None
    ratio: float | None = None
    extra: float | None = None

    def allowed(self, baseline: float) -> float | None:
        """Give by how much the variant may exceed a baseline that takes so much."""
        if self.ratio is None and self.extra is None:
            return None
        return max(((self.ratio or 1.0) - 1.0) * baseline, self.extra or 0.0)


@dataclass(frozen=True)
class Row:
    """One variant: median with its 95 % interval, and the same of the differences.

    A `limit` is held against the median, an `allowed` difference against the median
    of the paired differences, which drift of the machine does not touch.
    """

    name: str
    median: float
    interval: tuple[float, float]
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None
    limit: float | None = None
    allowed: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Say whether the target is met; None without one."""
        if self.limit is not None:
            return self.median <= self.limit
        if self.allowed is None or self.difference is None:
            return None
        return self.difference <= self.allowed


@dataclass(frozen=True)
class Result:
    """One table: its rows and the numbers they were made from, block by block."""

    question: str
    unit: str
    baseline: str | None
    rows: list[Row]
    blocks: dict[str, list[float]] = field(repr=False)


def table(result: Result) -> str:
    """Give a table as text."""
    lines = [f"{result.question} ({result.unit})"]
    for row in result.rows:
        low, high = row.interval
        text = f"  {row.name:<44} {row.median:10.4g} [{low:.4g}, {high:.4g}]"
        if row.difference is not None and row.difference_interval is not None:
            low, high = row.difference_interval
            text += f"  {row.difference:+.4g} [{low:+.4g}, {high:+.4g}]"
        if row.is_met is not None:
            text += f"  {'met' if row.is_met else 'MISSED'}: {ceiling(row)}"
        lines.append(text)
    return "\n".join(lines)


def ceiling(row: Row) -> str:
    """Give a row's target in words."""
    if row.limit is not None:
        return f"at most {row.limit:.4g}"
    return f"at most {row.allowed:+.4g}"
