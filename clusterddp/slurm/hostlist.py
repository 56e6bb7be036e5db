"""Slurm's host list text, `gpu[001-003,7],login`, as a list of host names.

The grammar is that of Slurm's `src/common/hostlist.c`, so no `scontrol` is asked:
it is absent in containers, it needs a readable slurm.conf, and it answers a bad
list with exit code 0. Order and duplicates are kept, as Slurm keeps them.
"""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from clusterddp.errors import WorldError

__all__ = ["expand_hostlist", "first_host"]

MAX_HOSTS = 1 << 18
"""More hosts than any cluster has; Slurm itself stops at 64K in one range."""

_MAX_DIGITS = 18
_TOKEN = re.compile(r"(?:[^\s,\[\]{}]|\[[^\[\]]*\])+", re.ASCII)
_SEPARATORS = re.compile(r"[\s,]*", re.ASCII)
_GROUP = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class _Range:
    low: int
    high: int
    width: int

    def __len__(self) -> int:
        return self.high - self.low + 1

    def __iter__(self) -> Iterator[str]:
        return (f"{n:0{self.width}d}" for n in range(self.low, self.high + 1))


@dataclass(frozen=True)
class _Token:
    """One comma-separated item: literal texts around groups of ranges."""

    literals: tuple[str, ...]
    groups: tuple[tuple[_Range, ...], ...]

    def __len__(self) -> int:
        return math.prod(sum(len(r) for r in group) for group in self.groups)

    def first(self) -> str:
        return self._join([next(iter(group[0])) for group in self.groups])

    def __iter__(self) -> Iterator[str]:
        # hostlist.c expands the last bracket innermost and recurses on the prefix,
        # whose right-most bracket becomes the outermost loop.
        *prefix, last = self.groups or ((),)
        if not self.groups:
            yield self.literals[0]
            return
        loops = [itertools.chain(*group) for group in [*reversed(prefix), last]]
        for *outer, inner in itertools.product(*loops):
            yield self._join([*reversed(outer), inner])

    def _join(self, digits: list[str]) -> str:
        pairs = zip(self.literals, [*digits, ""], strict=True)
        return "".join(literal + number for literal, number in pairs)


def expand_hostlist(text: str) -> list[str]:
    """Give every host of a Slurm host list, in Slurm's order, duplicates kept.

    A suffix after the last bracket (`n[1-2]-ib`) is read as Slurm does since
    23.02; older ones refuse it and so never write it.

    Raises:
        WorldError: the list is malformed, or names more than `MAX_HOSTS` hosts.
    """
    tokens = list(_parse(text))
    total = sum(len(token) for token in tokens)
    if total > MAX_HOSTS:
        message = (
            f"host list {_shown(text)}: names {total} hosts, expected at most "
            f"{MAX_HOSTS}; check the ranges in brackets"
        )
        raise WorldError(message)
    return [host for token in tokens for host in token]


def first_host(text: str) -> str:
    """Give the first host of a Slurm host list without expanding any range.

    Raises:
        WorldError: the list is malformed or names no host.
    """
    tokens = list(_parse(text))
    if not tokens:
        message = (
            f"host list {_shown(text)}: found no host, expected one at least; "
            "is this process inside a Slurm job?"
        )
        raise WorldError(message)
    return tokens[0].first()


def _parse(text: str) -> Iterator[_Token]:
    position = _end(_SEPARATORS, text, 0)
    while position < len(text):
        stop = _end(_TOKEN, text, position)
        if stop == position or (stop < len(text) and text[stop] in "[]{}"):
            message = (
                f"host list {_shown(text)}: unexpected {text[stop]!r} at character "
                f"{stop + 1}, expected a name with balanced brackets; "
                "correct the list or the variable that holds it"
            )
            raise WorldError(message)
        yield _parse_token(text[position:stop], text)
        position = _end(_SEPARATORS, text, stop)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


def _parse_token(token: str, text: str) -> _Token:
    pieces = _GROUP.split(token)
    groups = (
        tuple(_parse_range(item, text) for item in group.split(","))
        for group in pieces[1::2]
    )
    return _Token(tuple(pieces[::2]), tuple(groups))


def _parse_range(item: str, text: str) -> _Range:
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", item)
    if match and len(item) <= 2 * _MAX_DIGITS:
        low, high = int(match[1]), int(match[2] or match[1])
        if low <= high:
            return _Range(low, high, len(match[1]))
    message = (
        f"host list {_shown(text)}: found range {_shown(item)}, expected digits or "
        "low-high with low <= high; correct the list or the variable that holds it"
    )
    raise WorldError(message)


def _shown(text: str) -> str:
    limit = 80
    return repr(text if len(text) <= limit else text[:limit] + "...")
