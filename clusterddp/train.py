"""`clusterddp.train`: what one rank does, whatever started it.

Supervised, `train RUN_DIR`; by hand, `train JOB.yaml` under srun or torchrun. Every
rank executes this same program; before it leaves it says how it ended, unless all
went well.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from clusterddp.config import Job, load_job, parse_override
from clusterddp.config.schema import DistParams
from clusterddp.errors import (
    EXIT_BUG,
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
    ClusterDDPError,
)
from clusterddp.launch.environment import AGENT, LAUNCHER, OUTPUT
from clusterddp.launch.last_words import LastWords
from clusterddp.launch.leaving import leave
from clusterddp.launch.lifeline import end_with_parent
from clusterddp.launch.orphan import OrphanWatch
from clusterddp.launch.rank import (
    Seat,
    build_experiment,
    run_script,
    seat_from_environment,
)
from clusterddp.launch.stacks import answer_on_request
from clusterddp.runs.blame import is_echo
from clusterddp.runs.changes import read_run_job
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.stackfiles import stacks_directory
from clusterddp.slurm.remaining import seconds_left
from clusterddp.terminal import talk_to_stderr

if TYPE_CHECKING:
    from clusterddp.dist import World
    from clusterddp.training import StopSignal, Trainer
    from clusterddp.training.alarm import Alarm

__all__ = ["main"]

_LOG = logging.getLogger("clusterddp")
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    given = build_parser().parse_intermixed_args(arguments)
    seat = seat_from_environment(os.environ)
    _settle_in(seat)
    talk_to_stderr()
    if seat is not None:
        answer_on_request(seat.attempt, _rank_hint())
    return _Rank(given, seat).live()


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="clusterddp train",
        description="Be one rank of a run; start it with srun or torchrun.",
        epilog="exit codes: 0 finished, 75 stopped with its state saved, 1 crashed",
    )
    add = parser.add_argument
    add("target", metavar="JOB.yaml|RUN_DIR", type=Path, help="what to train")
    add(
        "overrides",
        metavar="key=value",
        nargs="*",
        default=[],
        help="e.g. train.epochs=3",
    )
    add("--launcher", choices=["slurm", "pytorch", "none"], help="what started me")
    add("--run", type=Path, metavar="DIR", help="the run directory to use or make")
    return parser


def _settle_in(seat: Seat | None) -> None:
    """Under our agent: write to the rank's log, if any, and go when the agent goes."""
    agent, rank = os.environ.get(AGENT), os.environ.get("RANK")
    if seat is None or agent is None or rank is None:
        return
    end_with_parent(int(agent))
    kept = os.environ.get(OUTPUT, "all")
    if kept == "node":
        return  # the agent has given it a pipe
    is_kept = kept == "all" or int(rank) == 0
    path = seat.attempt.rank_log(int(rank)) if is_kept else Path(os.devnull)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)


class _Rank:
    """A rank's life; remembers what a verdict needs to know."""

    def __init__(self, given: argparse.Namespace, seat: Seat | None) -> None:
        self._given = given
        self._words = LastWords(_rank_hint(), seat)
        self._trainer: Trainer | None = None
        self._early: list[int] = []
        self._orphans: OrphanWatch | None = None
        self._alarm: Alarm | None = None

    def live(self) -> int:
        """Do the work; a failure becomes a verdict and ends the process at once.

        After a failure nothing collective can be done, and threads of torch may
        hang: so no clean-up, os._exit (a group that lost a member cannot be
        dissolved in order: destroy_process_group was seen to hang for hours).
        """
        for signum in _STOP_SIGNALS:
            signal.signal(signum, self._note_early)
        try:
            code = self._work()
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        except SystemExit as leaving:
            code = _exit_code(leaving)
            if code not in (0, EXIT_STOPPED):
                self._fail(leaving, code)
            self._words.script_over(code)
        except Exception as error:  # noqa: BLE001 - the boundary of a rank
            code = error.exit_code if isinstance(error, ClusterDDPError) else EXIT_BUG
            self._fail(error, code)
        return self._leave(code)

    def _work(self) -> int:
        job = self._load_job()
        threads = str(job.threads)
        os.environ["OMP_NUM_THREADS"] = threads  # before torch is imported
        os.environ.setdefault(LAUNCHER, self._given.launcher or job.launcher)
        self._miss_supervisor(job)
        if job.script is not None:
            run_script(job, self._words.seat.run if self._words.seat else None)
            return self._words.script_over(0)
        return self._train(job)

    def _miss_supervisor(self, job: Job) -> None:
        """Watch for the loss of the supervisor's node where Slurm lets the job live."""
        if self._words.seat is not None and job.outlives_nodes:
            seat, patience_s = self._words.seat, job.slurm.supervisor_timeout
            self._orphans = OrphanWatch(seat.run, seat.attempt, patience_s)
            self._orphans.start()

    def _load_job(self) -> Job:
        target: Path = self._given.target
        if self._words.seat is not None:
            return read_run_job(self._words.seat.run)
        if target.is_dir():
            self._given.run = self._given.run or target
            return read_run_job(RunDirectory(target))
        overrides = [parse_override(text) for text in self._given.overrides]
        job = load_job(target, overrides)
        launcher = self._given.launcher
        return job.model_copy(update={"launcher": launcher}) if launcher else job

    def _train(self, job: Job) -> int:
        import torch

        from clusterddp.dist import default_store, shutdown
        from clusterddp.launch.together import part
        from clusterddp.training import StopSignal, Trainer
        from clusterddp.training.alarm import Alarm
        from clusterddp.training.randomness import seed_all
        from clusterddp.training.stacks import StackTeller

        torch.set_num_threads(job.threads)
        with StopSignal(lambda: seconds_left(os.environ, time.time)) as stop:
            world = self._join(job.dist_params)
            self._words.rank = world.rank
            self._alarm = Alarm(default_store(), world, self._follow)
            seat = self._find_seat(job, world)
            StackTeller(default_store(), world, stacks_directory(seat.attempt))
            seed_all(job.train.seed)
            experiment = build_experiment(job, seat.run)
            self._trainer = Trainer(
                experiment,
                job,
                world,
                run=seat.run,
                attempt=seat.attempt.number,
                stop=stop,
            )
            self._pass_on_early(stop)
            outcome = self._trainer.fit()
            part(outcome, seat.attempt, world)
            self._alarm.close()
            signum = stop.received
        shutdown()
        return 0 if outcome.finished else self._words.stopped(outcome.step, signum)

    def _join(self, how: DistParams) -> "World":
        from clusterddp.dist import init_dist

        return init_dist(
            self._given.launcher,
            how.backend,
            timedelta(seconds=how.timeout),
            rendezvous_timeout=timedelta(seconds=how.rendezvous_timeout),
            port_range=how.port_range,
        )

    def _find_seat(self, job: Job, world: "World") -> Seat:
        """Give the seat that the supervisor assigned, or agree on one by hand."""
        from clusterddp.launch.together import agree_on_seat

        if self._words.seat is None:
            seat = agree_on_seat(job, self._given.run, world)
            self._words.seat = seat
            if world.rank == 0:
                _LOG.info("run %s, attempt %s", seat.run.path, seat.attempt.number)
        return self._words.seat

    def _pass_on_early(self, stop: "StopSignal") -> None:
        """A signal that came before the ranks could talk stops them all the same."""
        if self._early:
            stop.request()

    def _note_early(self, signum: int, _frame: FrameType | None) -> None:
        self._early.append(signum)

    def _fail(self, error: BaseException, code: int) -> None:
        """Leave a verdict and end this process at once."""
        failure = self._words.failed(error, code, self._step)
        if self._alarm is not None and not is_echo(failure.message):
            self._alarm.sound(f"{failure.type}: {failure.message}")
        self._end(code)

    def _follow(self, words: str) -> None:
        """Leave, from a thread, because another rank has failed."""
        self._words.followed(words, self._step)
        self._end(EXIT_BUG)

    def _end(self, code: int) -> None:
        if self._orphans is not None:
            self._orphans.linger()
        os._exit(code)

    @property
    def _step(self) -> int | None:
        return self._trainer.step if self._trainer else None

    def _leave(self, code: int) -> int:
        """Give the exit code; under our agent a common stop is no failure.

        The elastic agent would terminate the others, and kill them after 30 s, when
        the first rank leaves with another code than 0.
        """
        if self._orphans is not None:
            self._orphans.leave()
        is_agents = AGENT in os.environ and self._words.seat is not None
        return 0 if is_agents and code == EXIT_STOPPED else code


def _rank_hint() -> int:
    """Which rank this probably is, for a verdict before init_dist has said it."""
    for name in ("RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def _exit_code(leaving: SystemExit) -> int:
    """Give the code that a SystemExit means (see sys.exit)."""
    if leaving.code is None:
        return 0
    return leaving.code if isinstance(leaving.code, int) else EXIT_BUG


if __name__ == "__main__":
    leave(main())
