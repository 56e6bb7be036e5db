"""Folding: the lines of many ranks in one stream, equal ones said once; pure."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["fold", "name_ranks", "prefix"]


def prefix(ranks: Sequence[int], world: int) -> str:
    """Give `[3]`, `[0-2,5]`, or `[x8]` for all of several ranks."""
    if len(ranks) == world and world > 1:
        return f"[x{world}]"
    return f"[{name_ranks(ranks)}]"


def name_ranks(ranks: Sequence[int]) -> str:
    """Give `0-2,5`."""
    return ",".join(_ranges(ranks))


def _ranges(ranks: Sequence[int]) -> Iterator[str]:
    ordered = sorted(ranks)
    first = last = ordered[0]
    for rank in [*ordered[1:], None]:
        if rank is not None and rank == last + 1:
            last = rank
            continue
        yield str(first) if first == last else f"{first}-{last}"
        first = last = rank if rank is not None else last


def fold(lines: Mapping[int, Sequence[str]]) -> Iterator[tuple[list[int], str]]:
    """Merge the lines of ranks, each rank's in its order; equal lines come once.

    Lines have no times. So the ranks are kept in step by what they have in common:
    a line that other ranks are still to say waits for them.

    Args:
        lines: the lines of each rank.

    Yields:
        The ranks that said a line, and the line as the first of them said it.
    """
    keys = {rank: [_key(line) for line in lines[rank]] for rank in sorted(lines)}
    at = dict.fromkeys(keys, 0)
    left = {rank: Counter(keys[rank]) for rank in at}
    sayers = Counter(key for counts in left.values() for key in counts)
    while heads := _heads(keys, at):
        key = _choose(heads, sayers)
        ranks = heads[key]
        yield ranks, lines[ranks[0]][at[ranks[0]]]
        for rank in ranks:
            at[rank] += 1
            left[rank][key] -= 1
            if not left[rank][key]:
                sayers[key] -= 1


# torch's C++ logs begin with `[W1130 19:11:36.958493920 socket.cpp:207]`.
_CLOCK = re.compile(r"^(?:\[rank\d+\]:)?\[([IWEF])\d{4} [\d:.]+ ")


def _key(line: str) -> str:
    """Give what makes two lines equal: everything but torch's time of day."""
    return _CLOCK.sub(r"[\1 ", line)


def _heads(
    keys: Mapping[int, Sequence[str]], at: Mapping[int, int]
) -> dict[str, list[int]]:
    heads: dict[str, list[int]] = {}
    for rank, position in at.items():
        if position < len(keys[rank]):
            heads.setdefault(keys[rank][position], []).append(rank)
    return heads


def _choose(heads: Mapping[str, list[int]], sayers: Counter[str]) -> str:
    """Give the first line that nobody else is still to say, else the most said."""
    for line, ranks in heads.items():
        if sayers[line] == len(ranks):
            return line
    return max(heads, key=lambda line: len(heads[line]))
