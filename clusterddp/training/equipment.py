"""The equipment of one `fit`: everything that is opened before the first step."""

import copy
import time
from contextlib import ExitStack, closing

from clusterddp.config.schema import Job
from clusterddp.dist import World, device
from clusterddp.runs.directory import RunDirectory
from clusterddp.training.checkpoints import Loaded
from clusterddp.training.data import BatchSource, SeededBatches, move
from clusterddp.training.evaluation import Evaluator
from clusterddp.training.experiment import Experiment
from clusterddp.training.housekeeping import open_chores
from clusterddp.training.learner import Learner
from clusterddp.training.losses import Share
from clusterddp.training.metrics import MetricLog
from clusterddp.training.pace import Pace, read_train_seconds
from clusterddp.training.prefetch import Prefetcher, lane_to
from clusterddp.training.preflight import look_first
from clusterddp.training.progress import Progress
from clusterddp.training.randomness import mix, restore_state, seed_all
from clusterddp.training.resources import ResourceMonitor
from clusterddp.training.sampler import Span
from clusterddp.training.schedule import Schedule, Standing
from clusterddp.training.stop import StopSignal
from clusterddp.training.weights import restore

__all__ = ["Equipment"]

_STEPS = 0x7374657073  # "steps": keeps this stream apart from the others
_PATIENCE_S = 1.0


class Equipment:
    """Opens what a training needs, in the one order that keeps it exact."""

    def __init__(
        self,
        experiment: Experiment,
        job: Job,
        world: World,
        run: RunDirectory,
        stop: StopSignal,
    ) -> None:
        """Open nothing yet.

        Args:
            experiment: what is trained.
            job: how.
            world: this rank among the others.
            run: where metrics and progress go.
            stop: tells whether somebody asked to stop.
        """
        self._experiment = experiment
        self._job = job
        self._world = world
        self._run = run
        self._stop = stop
        self.device = device()
        self._first: list[object] = []

    def open(
        self, stack: ExitStack, schedule: Schedule, at: Standing, loaded: Loaded | None
    ) -> None:
        """Open everything; the stack closes it again.

        Args:
            stack: takes what must be closed.
            schedule: which batches come.
            at: where to start.
            loaded: the checkpoint to start from; None for a fresh start.
        """
        self._schedule = schedule
        is_first = self._world.rank == 0
        progress = Progress(self._run.progress, active=is_first)
        self.progress = stack.enter_context(closing(progress))
        self._announce(at, None if loaded is None else loaded.step)
        train = self._job.train
        self.learner = Learner(self._experiment, train, self._world, self.device)
        self.metrics = MetricLog(
            self._run, self._world, self.device, resume_step=at.noted
        )
        stack.callback(self.metrics.close)
        if loaded is not None:
            restore(self.learner, self.learner.model, loaded)
            self.metrics.load([rank["metrics"] for rank in loaded.ranks])
        self.monitor = ResourceMonitor()
        if is_first:
            stack.enter_context(self.monitor)
        evaluator = Evaluator(self._experiment, self._world, self.device, train)
        self.pace = Pace(self._train_seconds(), self._began())
        model, profiles = self.learner.model, self._run.path / "profiles"
        self.chores = open_chores(stack, train, model, self._world, profiles)
        self.evaluator = stack.enter_context(closing(evaluator))
        self._source = stack.enter_context(closing(self._make_source(at.position)))
        self._batches = Prefetcher(
            self._load_all, schedule.following, lane_to(self.device)
        )
        if not schedule.is_over(at):
            self._warm_up(schedule.sampler.span(at.position), at.step)
        self._start_random_streams(at.step, loaded)

    def fetch(self, span: Span) -> list[Share]:
        """Give this rank's parts of a global batch, on the device.

        A worker may have died of the very signal that asks the ranks to stop; the
        one or two steps that are left are then loaded in this process.
        """
        counts = self._schedule.counts(span)
        return list(map(Share, self._batches.take(span), counts))

    def _load_all(self, span: Span) -> list[object]:
        return [
            self._first.pop() if self._first else self._load(span, part)
            for part in range(len(self._schedule.counts(span)))
        ]

    def _load(self, span: Span, part: int) -> object:
        return self._source.next(
            lambda: list(self._schedule.keys(span))[part],
            alone=lambda: self._stop.wait(_PATIENCE_S),
        )

    def _announce(self, at: Standing, checkpoint: int | None) -> None:
        self.progress.update(
            step=at.step,
            total_steps=self._schedule.total_steps(at),
            epoch=self._schedule.epoch(at),
            epochs=self._schedule.epochs,
            loss=None,
            samples_per_s=None,
            phase="start",
            checkpoint=checkpoint,
        )

    def _make_source(self, position: int) -> BatchSource:
        experiment, train = self._experiment, self._job.train
        return BatchSource(
            SeededBatches(experiment.train_data, experiment.collate, train.seed),
            lambda: self._schedule.all_keys(position),
            workers=train.workers,
            pin_memory=self.device.type == "cuda",
        )

    def _warm_up(self, span: Span, step: int) -> None:
        batch = self._load(span, 0)
        if step == 0:
            look_first(
                self._experiment,
                self.learner.model,
                self._copy(batch),
                self.learner.precision,
            )
        self.learner.warm_up(self._copy(batch))
        self._first.append(batch)

    def _copy(self, batch: object) -> object:
        # A loss may change its batch, and this one comes again.
        return move(copy.deepcopy(batch), self.device)

    def _train_seconds(self) -> float:
        is_first = self._world.rank == 0
        return read_train_seconds(self._run.metrics) if is_first else 0.0

    def _began(self) -> float:
        """Give when the run was submitted: its job file is never written again."""
        try:
            return self._run.job_file.stat().st_mtime
        except OSError:
            return time.time()

    def _start_random_streams(self, step: int, loaded: Loaded | None) -> None:
        rank, world_size = self._world.rank, self._world.world_size
        if loaded is not None and loaded.world_size == world_size:
            restore_state(loaded.ranks[rank]["random"], self.device)
        else:
            seed_all(mix(self._job.train.seed, _STEPS, step, rank), self.device)
