"""The trainer: for batch -> step -> note -> maybe log -> maybe save -> maybe stop."""

import copy
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import count

from clusterddp.config.schema import Job
from clusterddp.dist import World, broadcast_json, default_store, note_step
from clusterddp.errors import CheckpointError
from clusterddp.runs.directory import RunDirectory
from clusterddp.training.checkpoint_writer import Result
from clusterddp.training.checkpoints import Checkpoints, Loaded, Saved, Snapshot
from clusterddp.training.equipment import Equipment
from clusterddp.training.experiment import Experiment
from clusterddp.training.log_points import LogPoints
from clusterddp.training.preflight import check_size
from clusterddp.training.randomness import read_state
from clusterddp.training.retention import is_rated
from clusterddp.training.save_clock import SaveClock
from clusterddp.training.schedule import Schedule, Standing
from clusterddp.training.stop import StopSignal
from clusterddp.training.weights import start_warm

__all__ = ["Outcome", "Trainer"]

_PARTING_S = 10
_uses = count()


@dataclass(frozen=True)
class Outcome:
    """How `fit` ended.

    Attributes:
        step: finished steps, all saved.
        total_steps: steps of the whole training.
        finished: False if the ranks stopped on request.
        metrics: the values of the last evaluation; empty without one.
    """

    step: int
    total_steps: int
    finished: bool
    metrics: dict[str, float]


class Trainer:
    """Trains an experiment on all ranks, from the newest checkpoint to the end.

    A run that was stopped or killed and started again gives the same bits as one
    that was not; same number of ranks, threads and hardware provided.
    """

    def __init__(
        self,
        experiment: Experiment,
        job: Job,
        world: World,
        *,
        run: RunDirectory,
        attempt: int,
        stop: StopSignal | None = None,
    ) -> None:
        """Look at nothing yet.

        Args:
            experiment: what is trained; equal on all ranks.
            job: epochs, batch size, seed, intervals.
            world: this rank among the others, as `init_dist` gave it.
            run: where checkpoints and metrics go.
            attempt: the number of this start of the ranks.
            stop: notes signals since an earlier moment and to a later one; made
                and closed by `fit` when None.

        Raises:
            UsageError: the training data does not fill one global batch.
        """
        self._experiment = experiment
        self._world = world
        self._stop, self._owns_stop = stop or StopSignal(), stop is None
        samples = len(experiment.train_data)  # type: ignore[arg-type]  # checked there
        check_size(samples, job.train.global_batch_size)
        self._schedule = Schedule(job, samples, world)
        self._equipment = Equipment(experiment, job, world, run, self._stop)
        self._checkpoints = Checkpoints(
            run, world, attempt=attempt, rules=job.checkpoint
        )
        self._rules, self._init_from = job.checkpoint, job.init_from
        self._clock = SaveClock(job.checkpoint.every.seconds, world)
        self._at = Standing()
        self._points = LogPoints(
            experiment, world, self._schedule, self._equipment, run.id
        )
        self._saved: Standing | None = None

    @property
    def step(self) -> int:
        """The number of finished steps, for whoever has to say where it ended."""
        return self._at.step

    def fit(self) -> Outcome:
        """Train until the end or until all ranks stop together; all must call it.

        Returns:
            The same on all ranks, and only once the state is durable; on rank 0
            after all others are through.

        Raises:
            CheckpointError: no state could be read or, at the end, written.
        """
        loaded = self._checkpoints.load()
        if loaded is not None:
            self._take_standing(loaded)
        elif self._init_from is not None:
            start_warm(self._experiment.model, self._init_from)
        if not self._schedule.is_finished(self._at):
            with ExitStack() as stack:
                if self._owns_stop:
                    stack.enter_context(self._stop)
                self._stop.connect(default_store(), self._world)
                self._equipment.open(stack, self._schedule, self._at, loaded)
                self._checkpoints.call_when_done(self._note_result)
                stack.callback(self._checkpoints.close)
                self._points.open(stack)
                self._train()
                self._stop.disconnect()
        self._part()
        return self._outcome()

    def _train(self) -> None:
        going = self._settle()
        while going and not self._schedule.is_over(self._at):
            if self._stop.agreed(self._at.step):
                break
            self._learn()
            going = self._settle() and not self._save_and_stop()
        self._leave()

    def _learn(self) -> None:
        started = time.perf_counter()
        note_step(self._at.step + 1)
        tools, span = self._equipment, self._schedule.sampler.span(self._at.position)
        want_norm = self._schedule.is_log_next(self._at, span)
        shares = tools.fetch(span)
        fetched = time.perf_counter()
        learned = tools.learner.step(
            shares, span.total, at=self._at.step, want_norm=want_norm
        )
        for loss, weight, values in learned.losses:
            tools.metrics.note(loss, weight if learned.made else 0, values)
        if want_norm and learned.norm is not None:
            self._at.grad_norm = float(learned.norm) if learned.made else None
        self._at.position += span.total
        self._at.step += 1
        tools.pace.note(started, fetched, learned.ready, span.total)
        tools.progress.update(step=self._at.step, phase="train")
        for chore in tools.chores:
            chore(self._at.step)

    def _settle(self) -> bool:
        """Evaluate and log what is due; False if a stop came during the former."""
        self._points.finish()
        if self._at.is_settled:
            return True
        is_edge = self._schedule.is_epoch_edge(self._at)
        evaluated = self._evaluate() if is_edge else {}
        if evaluated is None:
            return False
        if self._schedule.is_log_due(self._at):
            self._points.begin(self._at, evaluated)
        self._at.noted = self._at.step
        return True

    def _evaluate(self) -> dict[str, float] | None:
        tools = self._equipment
        if not tools.evaluator.wanted:
            return {}
        tools.progress.update(phase="eval")
        tools.learner.spread_buffers()
        with tools.learner.evaluated():
            values = tools.evaluator.run(
                tools.learner.model, interrupted=lambda: self._stop.requested
            )
        tools.progress.update(phase="train")
        if values is not None:
            self._at.metrics = values
        return values

    def _save_and_stop(self) -> bool:
        """Save if it is due; True if rank 0 then knew of a request to stop.

        All ranks meet here anyway: they can as well agree on the stop, and need
        not save once more a step later.
        """
        due = self._clock.is_due(self._at.step)
        if due or self._schedule.is_save_due(self._at) or self._is_rated():
            saved = self._save(wait=not self._rules.background)
            self._equipment.progress.update(phase="train")
            return saved.stop
        return False

    def _is_rated(self) -> bool:
        return is_rated(self._rules.best, self._fresh_metrics())

    def _fresh_metrics(self) -> dict[str, float]:
        """Give the values of an evaluation at this very step; empty without one."""
        fresh = self._schedule.is_epoch_edge(self._at) and self._at.is_settled
        return self._at.metrics if fresh else {}

    def _save(self, *, wait: bool) -> Saved:
        """Have this step saved; returns when it is copied or, waiting, durable."""
        tools = self._equipment
        self._points.finish()
        shared = {**asdict(self._at), "samples": self._schedule.sampler.size}
        local = {
            "random": read_state(tools.device),
            "metrics": tools.metrics.state(),
        }
        state, metrics = tools.learner.state(), self._fresh_metrics()
        saved = (self._checkpoints.save if wait else self._checkpoints.start)(
            Snapshot(self._at.step, state, shared, metrics),
            local,
            stop=lambda: self._stop.requested,
            before=tools.metrics.sync,
            met=self._note_save,
        )
        self._clock.restart()
        if saved.error is None or not wait:
            self._saved = copy.copy(self._at)
        return saved

    def _note_save(self) -> None:
        """Say that it may take long from here on; who waits for a rank says `train`."""
        self._equipment.progress.update(phase="save")

    def _note_result(self, result: Result) -> None:
        """Tell what is durable now, on rank 0; its writer thread calls this."""
        if result.error is None:
            self._equipment.progress.update(checkpoint=result.step)
        elif result.fatal:
            self._stop.request()  # all leave together; `_leave` says why

    def _leave(self) -> None:
        """Save what is not saved yet; nobody leaves before that is durable."""
        self._points.finish()
        if self._saved is not None and self._is_late():
            # The weights are those of a later step: nothing more can be saved here.
            self._at = copy.copy(self._saved)
            self._require(self._finish())
        elif self._saved != self._at or self._finish().error is not None:
            self._require(self._save(wait=True))

    def _finish(self) -> Saved:
        return self._checkpoints.finish(met=self._note_save)

    def _require(self, saved: Saved) -> None:
        if saved.error is not None:
            raise CheckpointError(
                f"{saved.error}; make room, then start again: the run goes on from "
                "its newest checkpoint"
            )

    def _is_late(self) -> bool:
        """Whether the job would end before another save does; rank 0's word.

        Then the newest snapshot is made durable instead: a few steps are done again,
        where a save cut off in the middle would lose as many and be no use.
        """
        if self._schedule.is_finished(self._at) or self._saved == self._at:
            return False
        left = self._stop.time_left() if self._world.rank == 0 else None
        needed = self._checkpoints.longest_save_s
        is_late = broadcast_json(left is not None and left < needed)
        if is_late:
            self._equipment.progress.say(
                f"step {self._at.step}: {left or 0:.0f} s left, too few for a save of "
                f"{needed:.0f} s; leaving with the one before"
            )
        return is_late

    def _part(self) -> None:
        """Let rank 0, which holds the store, be the last to return."""
        store, rank, use = default_store(), self._world.rank, next(_uses)
        keys = [f"fit/{use}/{other}" for other in range(self._world.world_size)]
        if rank > 0:
            store.set(keys[rank], "")
        elif len(keys) > 1:
            with suppress(RuntimeError):  # who has died by now has lost nothing
                store.wait(keys[1:], timedelta(seconds=_PARTING_S))

    def _outcome(self) -> Outcome:
        return Outcome(
            step=self._at.step,
            total_steps=self._schedule.total_steps(self._at),
            finished=self._schedule.is_finished(self._at),
            metrics=self._at.metrics,
        )

    def _take_standing(self, loaded: Loaded) -> None:
        shared = dict(loaded.shared)
        samples, now = shared.pop("samples"), self._schedule.sampler.size
        if samples != now:
            raise CheckpointError(
                f"{loaded.path}: written with {samples} training samples, now there "
                f"are {now}, and a position means nothing in other data; give the "
                "same data, or start a new run"
            )
        self._at = Standing(**shared)
        self._saved = copy.copy(self._at)
