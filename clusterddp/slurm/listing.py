"""Many jobs at once: one squeue and one sacct call, however many runs are asked for."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from clusterddp.errors import SlurmError
from clusterddp.slurm.jobs import Phase, phase_of
from clusterddp.slurm.programs import Completed, Runner, run_program

__all__ = ["ListedJob", "ask_accounting", "ask_queue", "parse_sacct", "parse_squeue"]

_SQUEUE = "%i|%T|%S|%e|%N|%r"
_SACCT = "JobID,State,Start,End,NodeList,ExitCode"


@dataclass(frozen=True)
class ListedJob:
    """What squeue or sacct says of a job; times in seconds since the epoch.

    Attributes:
        id: `123`, or `120_3` for an array element.
        state: Slurm's own word.
        reason: why it waits; empty when Slurm gives none.
        start: when it started, or, while it waits, is expected to.
        end: when it ended, or its time limit ends it.
        nodes: its node list, as Slurm writes it.
        exit_code: `0:9` means signal 9; empty while it is not known.
    """

    id: str
    state: str
    reason: str = ""
    start: float | None = None
    end: float | None = None
    nodes: str = ""
    exit_code: str = ""

    @property
    def phase(self) -> Phase:
        """What the state means."""
        return phase_of(self.state)


def ask_queue(
    ids: Sequence[str], run: Runner = run_program
) -> dict[str, ListedJob] | None:
    """Ask the controller about many jobs in one call.

    Args:
        ids: the jobs' ids; nothing is asked when there are none.
        run: what runs a program.

    Returns:
        What it knows, by id; None when it does not answer.
    """
    options = ("--noheader", "--all", "--array", "--states=all")
    jobs = f"--jobs={','.join(ids)}"
    # A single id that it has forgotten is an error, among others it is passed over.
    return _ask(
        ids,
        lambda: run(["squeue", *options, f"--format={_SQUEUE}", jobs]),
        parse_squeue,
        "Invalid job id",
    )


def ask_accounting(
    ids: Sequence[str], run: Runner = run_program
) -> dict[str, ListedJob] | None:
    """Ask the accounting about many jobs in one call; as `ask_queue`.

    With --jobs, sacct looks back without a limit (sacct(1), --starttime).
    """
    options = ("--allocations", "--noheader", "--parsable2", f"--format={_SACCT}")
    jobs = f"--jobs={','.join(ids)}"
    return _ask(ids, lambda: run(["sacct", *options, jobs]), parse_sacct, "")


def _ask(
    ids: Sequence[str],
    call: Callable[[], Completed],
    parse: Callable[[str], dict[str, ListedJob]],
    harmless: str,
) -> dict[str, ListedJob] | None:
    if not ids:
        return {}
    try:
        done = call()
    except SlurmError:
        return None
    is_harmless = bool(harmless) and harmless in done.err
    return parse(done.out) if done.code == 0 or is_harmless else None


def parse_squeue(text: str) -> dict[str, ListedJob]:
    """Read what squeue printed, by job id; pure."""
    return _by_id(
        ListedJob(
            id=row[0],
            state=row[1],
            start=_time(row[2]),
            end=_time(row[3]),
            nodes=row[4],
            reason="" if row[5] == "None" else row[5],
        )
        for row in _rows(text)
    )


def parse_sacct(text: str) -> dict[str, ListedJob]:
    """Read what sacct printed, by job id; pure."""
    return _by_id(
        ListedJob(
            id=row[0],
            state=row[1],
            start=_time(row[2]),
            end=_time(row[3]),
            nodes="" if row[4] == "None assigned" else row[4],
            exit_code=row[5],
        )
        for row in _rows(text)
    )


def _rows(text: str, width: int = 6) -> Iterable[list[str]]:
    rows = (line.strip().split("|", width - 1) for line in text.splitlines())
    return (row for row in rows if len(row) == width)


def _by_id(jobs: Iterable[ListedJob]) -> dict[str, ListedJob]:
    found: Mapping[str, ListedJob] = {job.id: job for job in jobs}
    return dict(found)


def _time(text: str) -> float | None:
    # "N/A", "Unknown" and "None" are Slurm's words for no time.
    return float(text) if text.isdigit() and int(text) > 0 else None
