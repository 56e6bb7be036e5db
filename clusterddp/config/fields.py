"""How values are written in a job file: durations, intervals, ports, lists of text."""

import contextlib
import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
)

from clusterddp.config.durations import parse_duration

__all__ = [
    "Best",
    "BestBy",
    "Count",
    "Duration",
    "Every",
    "Interval",
    "Ports",
    "Positive",
    "Section",
    "Texts",
]


def _duration(value: object) -> object:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        message = f"{value} has no unit; write {value}s, {value}m or {value}h"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports ValueErrors
    return value


def _seconds_text(value: float) -> str:
    return f"{value:g}s" if value != int(value) else f"{int(value)}s"


Duration = Annotated[
    float,
    BeforeValidator(_duration, json_schema_input_type=str),
    PlainSerializer(_seconds_text),
]
"""Seconds; written in the file as `30m`, `2h`, `90s` or `1-12:00:00`."""

Texts = Annotated[tuple[str, ...], Field(strict=False)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the job file: frozen, strict, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_EVERY = re.compile(r"\s*(\d+)\s*(steps?|epochs?)\s*")


class Every(Section):
    """When to save: every so many steps, or epochs, or seconds, or all of them."""

    steps: Positive | None = None
    epochs: Positive | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None


def _parse_every(value: object) -> object:
    if isinstance(value, Every):
        return value
    parts = value if isinstance(value, list) else [value]
    found: dict[str, float] = {}
    for part in parts:
        unit, count = _parse_interval(part)
        if unit in found:
            message = f"{part!r}: a second interval in {unit}; give one of each kind"
            raise ValueError(message)
        found[unit] = count
    return Every.model_validate(found)


def _parse_interval(part: object) -> tuple[str, float]:
    if isinstance(part, str):
        match = _EVERY.fullmatch(part)
        if match is not None and int(match[1]) > 0:
            return match[2].rstrip("s") + "s", int(match[1])
        with contextlib.suppress(ValueError):
            if match is None and (seconds := parse_duration(part)) > 0:
                return "seconds", seconds
    message = f"{part!r} is no interval; write `500 steps`, `10m` or `1 epoch`"
    raise ValueError(message)


def _every_text(value: Every) -> list[str]:
    pairs = (("steps", value.steps), ("epochs", value.epochs))
    texts = [f"{count} {unit}" for unit, count in pairs if count is not None]
    return texts if value.seconds is None else [*texts, _seconds_text(value.seconds)]


class Best(Section):
    """Which checkpoint is the best: by a metric of the evaluation."""

    mode: Literal["min", "max"]
    metric: str


def _parse_best(value: object) -> object:
    if value is None or isinstance(value, Best):
        return value
    words = value.split() if isinstance(value, str) else []
    if len(words) == 2 and words[0] in ("min", "max"):  # noqa: PLR2004 - two words
        return Best.model_validate({"mode": words[0], "metric": words[1]})
    message = f"{value!r} names no best; write `min loss` or `max accuracy`"
    raise ValueError(message)


def _best_text(value: Best | None) -> str | None:
    return None if value is None else f"{value.mode} {value.metric}"


def _ports(value: str) -> str:
    low, _, high = value.partition("-")
    if not (low.strip().isdigit() and high.strip().isdigit()) or not (
        0 < int(low) <= int(high) < 1 << 16
    ):
        message = f"{value!r} is no range of ports; write 20000-20100"
        raise ValueError(message)
    return value


Interval = Annotated[
    Every,
    BeforeValidator(_parse_every, json_schema_input_type=str | list[str]),
    PlainSerializer(_every_text),
]
"""Written as `500 steps`, `10m`, `1 epoch`, or a list of these."""

BestBy = Annotated[
    Best | None,
    BeforeValidator(_parse_best, json_schema_input_type=str | None),
    PlainSerializer(_best_text),
]
"""Written as `min loss` or `max accuracy`."""

Ports = Annotated[str, AfterValidator(_ports)]
"""Written as `20000-20100`."""
