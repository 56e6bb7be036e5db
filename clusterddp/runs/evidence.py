"""Evidence: what the last attempt of a run left, for whoever asks why it ended."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterddp.files import read_json
from clusterddp.runs.blame import find_blame
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.facts import Facts
from clusterddp.runs.ledger import Event
from clusterddp.runs.logfiles import find_log, read_last_lines, read_last_words
from clusterddp.runs.verdict import Ending, Verdict, read_summary, read_verdicts

__all__ = ["AttemptEvidence", "reached_steps", "read_evidence"]

_STACK_LINES = 14
_FAILED = ("crash", "wrong job", "stalled", "out of memory", "node failure")


@dataclass(frozen=True)
class AttemptEvidence:
    """What one attempt left.

    Attributes:
        attempt: its directory.
        ended: its end in the ledger; None if its supervisor wrote none.
        decision: what the supervisor decided then.
        rank: who failed first; None if nobody did, or can tell.
        blame: who failed first and how; empty if nobody did.
        verdicts: what the ranks wrote, the first to end first.
        said: the last lines of srun or of the agent.
        output: the last lines of the rank to blame, or of rank 0.
        stacks: files with the stacks of ranks that hung.
        stack: the name of one of them, and its last lines: the outermost calls.
    """

    attempt: AttemptDirectory
    ended: Event | None = None
    decision: Event | None = None
    rank: int | None = None
    blame: str = ""
    verdicts: tuple[Verdict, ...] = ()
    said: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()

    @property
    def log(self) -> Path | None:
        """Where the words of the rank to blame stand; None: nobody, or not kept."""
        return None if self.rank is None else find_log(self.attempt, self.rank)

    @property
    def cause(self) -> str | None:
        """Why it ended, in the ledger's word."""
        return None if self.ended is None else str(self.ended.values.get("cause"))

    @property
    def traceback(self) -> str:
        """The traceback of the rank to blame, empty without one."""
        mine = [one for one in self.verdicts if one.rank == self.rank and one.failure]
        failure = mine[0].failure if mine else None
        return failure.traceback.rstrip() if failure else ""


def read_evidence(facts: Facts, number: int) -> AttemptEvidence:
    """Read what an attempt left; what is missing is empty."""
    attempt = facts.run.attempt(number)
    ended = _find(facts.events, "attempt_ended", number)
    verdicts = read_verdicts(attempt)
    said = read_last_lines(attempt.step_errors)
    values = {} if ended is None else ended.values
    rank, blame = _blame(attempt, values, verdicts, said)
    return AttemptEvidence(
        attempt,
        ended,
        _decision(facts.events, ended),
        rank,
        blame,
        verdicts,
        said,
        read_last_words(attempt, 0 if rank is None else rank),
        tuple(_stacks(attempt)),
        _first_stack(attempt, rank),
    )


def _stacks(attempt: AttemptDirectory) -> Iterator[str]:
    """Give the files that hold stacks; every rank makes one, most stay empty."""
    for path in sorted((attempt.path / "stacks").glob("*")):
        if path.is_file() and path.stat().st_size:
            yield path.name


def _silent(attempt: AttemptDirectory) -> tuple[int, str] | None:
    """Give the first rank, and its node, that could not write its own stack."""
    for path in sorted((attempt.path / "stacks").glob("silent-*.json")):
        told = read_json(path) or {}
        rank = path.stem.partition("-")[2]
        if rank.isdigit():
            return int(rank), str(told.get("host", "a node"))
    return None


def _first_stack(attempt: AttemptDirectory, rank: int | None) -> tuple[str, ...]:
    """Give the stack of the rank to blame; of a silent one that of who waited."""
    names = [f"rank-{rank:04d}.txt"] if rank is not None else []
    for name in [*names, "rank-0000.txt"]:
        lines = read_last_lines(attempt.path / "stacks" / name, _STACK_LINES)
        if lines:
            return name, *lines
    return ()


def _blame(
    attempt: AttemptDirectory,
    values: Mapping[str, object],
    verdicts: tuple[Verdict, ...],
    said: Sequence[str],
) -> tuple[int | None, str]:
    is_failure = values.get("cause") in _FAILED
    if not is_failure and not any(one.failure for one in verdicts):
        return None, ""
    if values.get("cause") == "node failure":
        return None, _name_lost(values.get("lost"))
    code = values.get("code")
    ending = Ending(
        code if isinstance(code, int) else 0,
        verdicts,
        read_summary(attempt),
        is_stalled=values.get("cause") == "stalled",
        silent=_silent(attempt),
        said="\n".join(said),
    )
    blame = find_blame(ending)
    return blame.rank, " ".join(blame.text.replace("\n  at ", ", at ").split())


def _name_lost(nodes: object) -> str:
    """Name the nodes that are gone; the ranks that died of it are not to blame."""
    names = ", ".join(map(str, nodes)) if isinstance(nodes, list) else ""
    return f"{names} no longer answered" if names else ""


def _find(events: Sequence[Event], kind: str, number: int) -> Event | None:
    for event in events:
        if event.kind == kind and event.values.get("attempt") == number:
            return event
    return None


def _decision(events: Sequence[Event], ended: Event | None) -> Event | None:
    """Give the last event with a reason between an attempt's end and what follows."""
    found: Event | None = None
    later = events[events.index(ended) + 1 :] if ended is not None else ()
    for event in later:
        if event.kind in ("attempt_started", "submitted"):
            break
        found = event if "reason" in event.values else found
    return found


def reached_steps(run: RunDirectory) -> dict[int, int]:
    """Give the last step that each attempt finished, as its ranks told."""
    found: dict[int, int] = {}
    for attempt in run.list_attempts():
        steps = [one.step for one in read_verdicts(attempt) if one.step is not None]
        summary = read_summary(attempt)
        steps += [summary.step] if summary else []
        if steps:
            found[attempt.number] = max(steps)
    return found
