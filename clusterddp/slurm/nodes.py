"""Nodes: which of a job's no longer answer, and how many others there are to take."""

from collections.abc import Collection, Sequence

from clusterddp.errors import SlurmError
from clusterddp.slurm.programs import Runner, run_program

__all__ = ["count_usable", "lost_nodes", "parse_nodes"]

# sinfo(1), "NODE STATE CODES": an asterisk says that the node does not respond.
_LOST = ("down", "error", "fail", "unknown", "unk")
_CLOSED = (*_LOST, "drain", "maint", "power", "reboot", "reserved", "future", "inval")


def lost_nodes(names: Sequence[str], run: Runner = run_program) -> tuple[str, ...]:
    """Give those of the nodes that are down or do not answer Slurm.

    Args:
        names: the nodes of a job.
        run: what runs a program.

    Returns:
        Their names; none when Slurm itself does not answer.
    """
    options = ("--noheader", "--Node", "--format=%N|%T", f"--nodes={','.join(names)}")
    states = _ask(options, run) if names else {}
    return tuple(name for name in names if _is(states.get(name, ""), _LOST))


def count_usable(
    partition: str | None, without: Collection[str], run: Runner = run_program
) -> int | None:
    """Count the nodes of a partition that could take a job, some left out.

    Returns:
        The number; None when Slurm does not answer.
    """
    where = (f"--partition={partition}",) if partition else ()
    states = _ask(("--noheader", "--Node", "--format=%N|%T", *where), run)
    if not states:
        return None
    usable = (n for n, state in states.items() if not _is(state, _CLOSED))
    return sum(name not in without for name in usable)


def parse_nodes(text: str) -> dict[str, str]:
    """Read lines of `sinfo --format=%N|%T`: a node's state by its name; pure."""
    rows = (line.strip().partition("|") for line in text.splitlines())
    return {name: state for name, sign, state in rows if sign}


def _is(state: str, words: Sequence[str]) -> bool:
    return state.endswith("*") or state.startswith(tuple(words))


def _ask(options: Sequence[str], run: Runner) -> dict[str, str]:
    try:
        done = run(["sinfo", *options])
    except SlurmError:
        return {}
    return parse_nodes(done.out) if done.code == 0 else {}
