"""The run directory: where everything that a run leaves behind lies, by name.

Nothing here reads or decides; the names are the contract between the three
processes (submit, supervise, train) and everybody who looks at a run later.
"""

import contextlib
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterddp.errors import UsageError
from clusterddp.files import fsync_directory, make_private_directory, write_json

__all__ = [
    "AttemptDirectory",
    "RunDirectory",
    "claim_attempt",
    "create_run",
    "new_id",
    "point_latest",
]

_ATTEMPT = re.compile(r"\d{4,}")


@dataclass(frozen=True)
class AttemptDirectory:
    """One start of the ranks: `attempts/0003/`."""

    path: Path

    @property
    def number(self) -> int:
        """The attempt's number, counted from 0."""
        return int(self.path.name)

    @property
    def owner(self) -> Path:
        """Who claimed the attempt: host, pid, job."""
        return self.path / "owner.json"

    @property
    def log(self) -> Path:
        """What the supervisor said."""
        return self.path / "supervisor.log"

    @property
    def step_errors(self) -> Path:
        """What srun (or the local agent) itself said."""
        return self.path / "srun.err"

    @property
    def rendezvous(self) -> Path:
        """Where rank 0 publishes its address (0700: it carries a cookie)."""
        return self.path / "rendezvous"

    @property
    def verdicts(self) -> Path:
        """Where each rank says how it ended."""
        return self.path / "verdict"

    @property
    def summary(self) -> Path:
        """Rank 0's word on how the attempt ended."""
        return self.verdicts / "summary.json"

    @property
    def saves(self) -> Path:
        """Rank 0's lines on checkpoints: saved, failed, set aside."""
        return self.path / "checkpoints.jsonl"

    def verdict(self, rank: int) -> Path:
        """What one rank says of its own end."""
        return self.verdicts / f"rank-{rank}.json"

    def rank_log(self, rank: int) -> Path:
        """The output of one rank, where each rank has a file."""
        return self.path / f"rank-{rank:04d}.log"

    def node_log(self, node: int) -> Path:
        """The output of all ranks of a node, where they share a file."""
        return self.path / f"node-{node:04d}.log"


@dataclass(frozen=True)
class RunDirectory:
    """One run: `runs/<name>/<run id>/`, the only state there is."""

    path: Path

    @property
    def id(self) -> str:
        """The run's id, unique below its name."""
        return self.path.name

    @property
    def job_file(self) -> Path:
        """The resolved job file; never changed after submit."""
        return self.path / "job.yaml"

    @property
    def code(self) -> Path:
        """A link to the snapshot of the user's code, if one was kept."""
        return self.path / "code"

    @property
    def events(self) -> Path:
        """The ledger: one file per writing process."""
        return self.path / "events"

    @property
    def submitit(self) -> Path:
        """What submitit writes."""
        return self.path / "submitit"

    @property
    def attempts(self) -> Path:
        """The parent of all attempts."""
        return self.path / "attempts"

    @property
    def checkpoints(self) -> Path:
        """The parent of all checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One line of JSON per log point."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def progress(self) -> Path:
        """Rank 0's word on where the training stands."""
        return self.path / "progress.json"

    def attempt(self, number: int) -> AttemptDirectory:
        """One attempt by its number."""
        return AttemptDirectory(self.attempts / f"{number:04d}")

    def list_attempts(self) -> list[AttemptDirectory]:
        """All attempts, oldest first; none where the disk has none to show."""
        try:
            names = [path.name for path in self.attempts.iterdir()]
        except OSError:
            return []
        numbers = sorted(int(name) for name in names if _ATTEMPT.fullmatch(name))
        return [self.attempt(number) for number in numbers]


def new_id(now: float | None = None) -> str:
    """Give a fresh run id: the second it was made and four random digits."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stamp}-{secrets.token_hex(2)}"


def create_run(root: Path, name: str, run_id: str) -> RunDirectory:
    """Make the directory of a new run.

    Raises:
        UsageError: the directory cannot be made.
    """
    run = RunDirectory(root / name / run_id)
    try:
        run.path.mkdir(parents=True)
        for child in (run.events, run.attempts, run.checkpoints, run.submitit):
            child.mkdir()
    except OSError as error:
        message = (
            f"{run.path}: the run directory cannot be made ({error.strerror}); choose "
            "a place that all nodes see with --runs DIR or $CLUSTERDDP_RUNS"
        )
        raise UsageError(message) from error
    return run


def point_latest(run: RunDirectory) -> None:
    """Let `runs/<name>/latest` name this run; the link is replaced atomically."""
    link = run.path.parent / "latest"
    temporary = link.with_name(f".latest.{os.getpid()}.{secrets.token_hex(4)}")
    temporary.symlink_to(run.id)
    temporary.replace(link)
    fsync_directory(link.parent)


def claim_attempt(run: RunDirectory, owner: Mapping[str, object]) -> AttemptDirectory:
    """Take the next attempt number; mkdir is the fence, so nobody shares one.

    Args:
        run: the run.
        owner: who claims it (host, pid, job id); written to `owner.json`.
    """
    run.attempts.mkdir(exist_ok=True)
    known = run.list_attempts()
    number = known[-1].number + 1 if known else 0
    while True:
        attempt = run.attempt(number)
        with contextlib.suppress(FileExistsError):
            attempt.path.mkdir()
            break
        number += 1
    attempt.verdicts.mkdir()
    make_private_directory(attempt.rendezvous)
    write_json(attempt.owner, owner)
    fsync_directory(run.attempts)
    return attempt
