"""The equipment of one `fit`: everything that is opened before the first step."""

import copy
from contextlib import ExitStack, closing

from clusterddp.config.schema import Job
from clusterddp.dist import World, device
from clusterddp.runs.directory import RunDirectory
from clusterddp.training.checkpoints import Loaded
from clusterddp.training.data import BatchSource, SeededBatches, move
from clusterddp.training.evaluation import Evaluator
from clusterddp.training.experiment import Experiment
from clusterddp.training.learner import Learner
from clusterddp.training.metrics import MetricLog
from clusterddp.training.progress import Progress
from clusterddp.training.randomness import mix, restore_state, seed_all
from clusterddp.training.resources import ResourceMonitor
from clusterddp.training.sampler import Span
from clusterddp.training.schedule import Schedule, Standing
from clusterddp.training.stop import StopSignal

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
        self.learner = Learner(self._experiment, self._world, self.device)
        self.metrics = MetricLog(
            self._run, self._world, self.device, resume_step=at.noted
        )
        stack.callback(self.metrics.close)
        if loaded is not None:
            self.learner.load(loaded.states)
            self.metrics.load([rank["metrics"] for rank in loaded.ranks])
        self.monitor = ResourceMonitor()
        if is_first:
            stack.enter_context(self.monitor)
        self.evaluator = stack.enter_context(closing(self._make_evaluator()))
        self._source = stack.enter_context(closing(self._make_source(at.position)))
        if not schedule.is_over(at):
            self._warm_up(schedule.sampler.span(at.position))
        self._start_random_streams(at.step, loaded)

    def fetch(self, span: Span) -> object:
        """Give this rank's batch for a span, on the device.

        A worker may have died of the very signal that asks the ranks to stop; the
        one or two steps that are left are then loaded in this process.
        """
        return move(self._first.pop() if self._first else self._load(span), self.device)

    def _load(self, span: Span) -> object:
        return self._source.next(
            lambda: self._schedule.keys(span),
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

    def _make_evaluator(self) -> Evaluator:
        train = self._job.train
        return Evaluator(
            self._experiment,
            self._world,
            self.device,
            seed=train.seed,
            batch_size=train.global_batch_size,
            workers=train.workers,
        )

    def _make_source(self, position: int) -> BatchSource:
        experiment, train = self._experiment, self._job.train
        return BatchSource(
            SeededBatches(experiment.train_data, experiment.collate, train.seed),
            lambda: self._schedule.all_keys(position),
            workers=train.workers,
            pin_memory=self.device.type == "cuda",
        )

    def _warm_up(self, span: Span) -> None:
        batch = self._load(span)
        # A copy, because a loss may change its batch, and this one comes again.
        self.learner.warm_up(move(copy.deepcopy(batch), self.device))
        self._first.append(batch)

    def _start_random_streams(self, step: int, loaded: Loaded | None) -> None:
        rank, world_size = self._world.rank, self._world.world_size
        if loaded is not None and loaded.world_size == world_size:
            restore_state(loaded.ranks[rank]["random"], self.device)
        else:
            seed_all(mix(self._job.train.seed, _STEPS, step, rank), self.device)
