"""`clusterddp.logs RUN`: what the ranks said, in all attempts, equal lines once."""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from clusterddp.errors import UsageError
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.evidence import AttemptEvidence, read_evidence
from clusterddp.runs.facts import read_facts
from clusterddp.runs.finding import find_root, find_run
from clusterddp.runs.folding import name_ranks
from clusterddp.runs.output import (
    Follower,
    headline,
    read_ranks,
    render_attempt,
)
from clusterddp.runs.survey import survey
from clusterddp.terminal import run_verb, talk_to_stderr

__all__ = ["main"]

_LOOK_S = 0.3
_ASK_S = 20.0
_OVER = ("finished", "failed", "stopped", "died")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    given = build_parser().parse_args(arguments)
    talk_to_stderr()
    return run_verb(lambda: _print(given))


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="clusterddp logs",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="What the ranks of a run said, attempt by attempt. Every line\n"
        "begins with who said it: [3], [0-2,5], or [x8] for all of 8 ranks. With\n"
        "--rank the lines stand alone, as they were written.",
        epilog="examples:\n"
        "  clusterddp logs digits                   all attempts of the latest run\n"
        "  clusterddp logs digits --follow          as it grows, across requeues\n"
        "  clusterddp logs digits --attempt -1 --rank 3\n"
        "  clusterddp logs digits --errors          the first traceback\n"
        "\nexit codes: 0 printed, 2 no such run, attempt or rank",
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory, NAME or NAME/ID")
    add("--runs", dest="root", metavar="DIR", help="where runs lie ($CLUSTERDDP_RUNS)")
    add("--follow", "-f", action="store_true", help="stay until the run has ended")
    add("--rank", type=int, metavar="R", help="one rank only, its lines as they are")
    add("--attempt", type=int, metavar="N", help="one attempt only; -1 is the newest")
    add("--errors", action="store_true", help="the first failure and its traceback")
    return parser


def _print(given: argparse.Namespace) -> int:
    run = find_run(given.run, find_root(given.root, os.environ))
    if given.follow and given.attempt is None and not given.errors:
        return _follow(run, given.rank)
    attempts = _choose(run, given.attempt)
    if given.errors:
        _write(_errors(run, attempts))
    elif given.rank is not None:
        _write(_of_rank(run, attempts, given.rank))
    else:
        _write(_of_all(attempts))
    return 0


def _write(lines: Iterable[str]) -> None:
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _choose(run: RunDirectory, number: int | None) -> list[AttemptDirectory]:
    attempts = run.list_attempts()
    if not attempts:
        message = (
            f"{run.path}: no attempt yet, so nothing was said; `clusterddp why "
            f"{run.path}` says how it stands"
        )
        raise UsageError(message)
    if number is None:
        return attempts
    wanted = number if number >= 0 else attempts[-1].number + 1 + number
    found = [one for one in attempts if one.number == wanted]
    if not found:
        message = (
            f"--attempt {number}: {run.path} has the attempts 0 to "
            f"{attempts[-1].number}; give one of them, or -1 for the newest"
        )
        raise UsageError(message)
    return found


def _of_all(attempts: Sequence[AttemptDirectory]) -> Iterator[str]:
    for attempt in attempts:
        yield headline(attempt)
        yield from render_attempt(attempt)


def _of_rank(
    run: RunDirectory, attempts: Sequence[AttemptDirectory], rank: int
) -> Iterator[str]:
    said = [read_ranks(attempt) for attempt in attempts]
    known = sorted({one for found in said for one in found})
    if rank not in known:
        there = f"words of ranks {name_ranks(known)}" if known else "no rank's log"
        message = (
            f"--rank {rank}: {run.path} has {there}; give one that there is "
            "(log.ranks of the job file says whose output is kept)"
        )
        raise UsageError(message)
    return (line for found in said for line in found.get(rank, []))


def _errors(run: RunDirectory, attempts: Sequence[AttemptDirectory]) -> list[str]:
    """Give the first failure of the newest attempt that has one."""
    facts = read_facts(run)
    for attempt in reversed(attempts):
        found = read_evidence(facts, attempt.number)
        if found.blame or found.traceback:
            return [headline(attempt), found.blame, *_first_words(found)]
    message = (
        f"{run.path}: no rank told of a failure in the attempts asked for; `clusterddp "
        f"why {run.path}` says how it stands"
    )
    raise UsageError(message)


def _first_words(found: AttemptEvidence) -> list[str]:
    """Give the traceback; without one, the last words of the rank and of srun."""
    if found.traceback:
        return [f"[{found.rank}] {line}" for line in found.traceback.splitlines()]
    who = 0 if found.rank is None else found.rank
    return [*(f"[{who}] {line}" for line in found.output), *found.said]


def _follow(run: RunDirectory, rank: int | None) -> int:
    """Print what is new until the run has ended; Ctrl-C leaves it alone."""
    follower = Follower(run, rank)
    asked = 0.0
    while True:
        _write(follower.look())
        if time.monotonic() - asked > _ASK_S or _has_ended(run):
            asked = time.monotonic()
            if survey([run])[0].status.state in _OVER:
                break
        time.sleep(_LOOK_S)
    _write(follower.look())
    return 0


def _has_ended(run: RunDirectory) -> bool:
    from clusterddp.runs.history import read_exit_code

    return read_exit_code(run) is not None


if __name__ == "__main__":
    sys.exit(main())
