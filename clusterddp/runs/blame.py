"""Whom to name for the end of an attempt: the rank that failed, not the ones it hurt.

When a rank dies its peers report a lost connection within milliseconds, often before
anything else is known; and srun names every task that left with another code than 0.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterddp.runs.verdict import Ending, Verdict

__all__ = ["Blame", "find_blame", "is_echo"]


@dataclass(frozen=True)
class Blame:
    """What ended an attempt.

    Attributes:
        rank: the rank that failed first; None when nobody can tell.
        text: one or two lines for a person.
        key: what makes two failures the same: exception and frame, signal, or code;
            None where nobody could tell.
        host: the node that the rank ran on.
    """

    rank: int | None
    text: str
    key: str | None
    host: str | None = None


_FAILED = ("crash", "wrong job", "out of memory")


def find_blame(ending: Ending) -> Blame:
    """Name the rank that ended an attempt: by its own word, srun's, or an echo's."""
    if ending.is_stalled:
        return _from_stall(ending)
    failed = [one for one in ending.verdicts if one.cause in _FAILED]
    spoke = [one for one in failed if not _is_echo(one)]
    if spoke:
        return _from_verdict(spoke[0])
    for rank, host, how in _parse_dead_tasks(ending.said):
        if rank not in {one.rank for one in failed}:
            return Blame(rank, f"rank {rank} on {host}: {how}", how, host)
    if failed:
        who = f"rank {failed[0].rank} on {failed[0].host}"
        return Blame(failed[0].rank, f"{who} lost another, which left no word", None)
    said = ending.said.strip()
    text = f"the launcher left with {ending.code}" + (f": {said}" if said else "")
    return Blame(None, text, None)


def _from_stall(ending: Ending) -> Blame:
    if ending.silent is None:
        return Blame(None, "no rank finished a step in time; see stacks/", "stalled")
    rank, host = ending.silent
    text = f"rank {rank} on {host} did not answer, and no step was finished in time"
    return Blame(rank, text, "stalled", host)


# gloo says "Connection closed by peer" 23 ms after a kill -9 (measured); TCPStore and
# NCCL have words of their own.
_ECHO = re.compile(
    r"closed by (?:remote )?peer|Connection reset|Broken pipe|recvValue failed"
    r"|remote process exited|Connection refused|left because rank \d+ failed",
    re.IGNORECASE,
)


def is_echo(message: str) -> bool:
    """Say whether an error's message only tells of the loss of another rank."""
    return bool(_ECHO.search(message))


def _is_echo(verdict: Verdict) -> bool:
    return verdict.failure is not None and is_echo(verdict.failure.message)


def _from_verdict(verdict: Verdict) -> Blame:
    who = f"rank {verdict.rank} on {verdict.host}"
    if verdict.failure is not None:
        failure = verdict.failure
        text = f"{who}: {failure.type}: {failure.message}\n  at {failure.where}"
        key = f"{failure.type} at {failure.where}"
        return Blame(verdict.rank, text, key, verdict.host)
    if verdict.signal is not None:
        text = f"{who}: killed by {verdict.signal}"
        return Blame(verdict.rank, text, verdict.signal, verdict.host)
    how = f"left with {verdict.code}"
    return Blame(verdict.rank, f"{who}: {how}", how, verdict.host)


# `srun: error: n1: task 1: Killed`, `n2: tasks 2-3: Exited with exit code 1` (22.05).
_TASKS = re.compile(r"error: (\S+): tasks? ([\d,-]+): (.+)")


def _parse_dead_tasks(said: str) -> Iterator[tuple[int, str, str]]:
    for host, ranks, how in _TASKS.findall(said):
        for rank in _expand(ranks.split(",")):
            yield rank, host, how


def _expand(ranges: Sequence[str]) -> Iterator[int]:
    for text in ranges:
        first, _, last = text.partition("-")
        yield from range(int(first), int(last or first) + 1)
