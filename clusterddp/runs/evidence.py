"""Evidence: what the last attempt of a run left, for whoever asks why it ended."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterddp.runs.blame import find_blame
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.facts import Facts
from clusterddp.runs.ledger import Event
from clusterddp.runs.output import split_lines
from clusterddp.runs.verdict import Ending, Verdict, read_summary, read_verdicts

__all__ = ["AttemptEvidence", "reached_steps", "read_evidence", "read_last_lines"]

_TAIL = 1 << 14
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
        read_last_lines(attempt.rank_log(0 if rank is None else rank)),
        tuple(_stacks(attempt)),
    )


def _stacks(attempt: AttemptDirectory) -> Iterator[str]:
    """Give the files that hold stacks; every rank makes one, most stay empty."""
    for path in sorted((attempt.path / "stacks").glob("*")):
        if path.is_file() and path.stat().st_size:
            yield path.name


def _blame(
    attempt: AttemptDirectory,
    values: Mapping[str, object],
    verdicts: tuple[Verdict, ...],
    said: Sequence[str],
) -> tuple[int | None, str]:
    is_failure = values.get("cause") in _FAILED
    if not is_failure and not any(one.failure for one in verdicts):
        return None, ""
    code = values.get("code")
    ending = Ending(
        code if isinstance(code, int) else 0,
        verdicts,
        read_summary(attempt),
        said="\n".join(said),
    )
    blame = find_blame(ending)
    return blame.rank, " ".join(blame.text.replace("\n  at ", ", at ").split())


def _find(events: Sequence[Event], kind: str, number: int) -> Event | None:
    for event in events:
        if event.kind == kind and event.values.get("attempt") == number:
            return event
    return None


def _decision(events: Sequence[Event], ended: Event | None) -> Event | None:
    """Give the event with a reason that follows an attempt's end."""
    if ended is None:
        return None
    for event in events[events.index(ended) + 1 :]:
        if event.kind in ("attempt_started", "submitted"):
            return None
        if "reason" in event.values:
            return event
    return None


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


def read_last_lines(path: Path, count: int = 20) -> tuple[str, ...]:
    """Give the last lines of a text file; none if it is not there."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = split_lines(file.read())
    except OSError:
        return ()
    return tuple(line for line in lines if line.strip())[-count:]
