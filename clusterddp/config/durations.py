"""Durations as people write them: `30m`, `2h`, `90s`, `1-12:00:00`."""

import re

__all__ = ["parse_duration"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_UNIT_FORM = re.compile(r"(?:\s*\d+(?:\.\d+)?\s*[smhd])+\s*")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_CLOCK_FORM = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")


def parse_duration(text: str) -> float:
    """Give the seconds that a duration names.

    Takes numbers with units (`90s`, `1h30m`) and Slurm's clock forms
    (`MM:SS`, `HH:MM:SS`, `D-HH:MM`, `D-HH:MM:SS`; sbatch(1), option --time).

    Raises:
        ValueError: the text is neither; the message says what is expected.
    """
    stripped = text.strip()
    if _UNIT_FORM.fullmatch(stripped):
        return sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(stripped))
    if match := _CLOCK_FORM.fullmatch(stripped):
        return float(_clock_seconds(*match.groups()))
    message = f"{text!r} is not a duration; write 90s, 30m, 2h, 1h30m or 1-12:00:00"
    raise ValueError(message)


def _clock_seconds(days: str | None, first: str, second: str, third: str | None) -> int:
    if days is not None:
        hours, minutes, seconds = int(first), int(second), int(third or 0)
    elif third is not None:
        hours, minutes, seconds = int(first), int(second), int(third)
    else:
        hours, minutes, seconds = 0, int(first), int(second)
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
