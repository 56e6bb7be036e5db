"""What init_dist may be given: time limits and ports, read once and refused in words.

torch takes timedeltas alone, and takes 0 for "no limit at all"; people write `3600`
and `30m`. No torch in here.
"""

import math
import re
from datetime import timedelta
from typing import TypeGuard

from clusterddp.errors import UsageError

__all__ = ["ArgumentError", "PortRange", "parse_limit", "parse_port_range"]

_LEAST = timedelta(milliseconds=1)
# torch hands milliseconds to poll(2), which takes an int: 24.8 days.
_MOST = timedelta(days=24)
_YEAR_S = 3.2e7
_MAX_PORT = 65535

PortRange = tuple[int, int]
"""First and last port, both included."""


class ArgumentError(UsageError, TypeError):
    """An argument of `init_dist` has a wrong type or value."""


def parse_limit(name: str, value: object) -> timedelta:
    """Give a time limit: a timedelta, a number of seconds, or text such as `30m`.

    Args:
        name: of the argument, for the message.
        value: what the caller gave.

    Raises:
        ArgumentError: it is something else, or no time between 1 ms and 24 days.
    """
    limit = _as_timedelta(name, value)
    if not _LEAST <= limit <= _MOST:
        message = (
            f"init_dist: found {name}={value!r}, expected a millisecond at least and "
            "24 days at most; torch counts milliseconds in 31 bits, and takes 0 for no "
            "limit at all"
        )
        raise ArgumentError(message)
    return limit


def _as_timedelta(name: str, value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if _is_number(value):
        # Far out of bounds already, where timedelta itself would overflow.
        return timedelta(seconds=max(-_YEAR_S, min(value, _YEAR_S)))
    if isinstance(value, str):
        # Here and not above: the package of the job file brings pydantic along.
        from clusterddp.config.durations import parse_duration

        try:
            return timedelta(seconds=parse_duration(value))
        except (ValueError, OverflowError) as error:
            message = (
                f"init_dist: {name}={value!r}: {error}; a number without quotes is in "
                "seconds"
            )
            raise ArgumentError(message) from error
    message = (
        f"init_dist: found {name}={value!r}, expected a time limit; write "
        f"{name}=timedelta(seconds=1800), {name}=1800 or {name}='30m'"
    )
    raise ArgumentError(message)


def _is_number(value: object) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value)


def parse_port_range(value: object) -> PortRange | None:
    """Give the ports that rank 0 may bind: `"20000-20100"` or a pair; None for any.

    Raises:
        ArgumentError: it is something else, or no range of ports from 1 to 65535.
    """
    if value is None:
        return None
    pair: object = value
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]{1,5})\s*-\s*([0-9]{1,5})\s*", value)
        pair = (int(match[1]), int(match[2])) if match else None
    if isinstance(pair, tuple | list) and len(pair) == 2:  # noqa: PLR2004 - a pair
        low, high = pair
        if _is_whole(low) and _is_whole(high) and 0 < low <= high <= _MAX_PORT:
            return low, high
    message = (
        f"init_dist: found port_range={value!r}, expected two ports from 1 to "
        f"{_MAX_PORT}, the lower first; write port_range='20000-20100', or leave it out"
    )
    raise ArgumentError(message)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
