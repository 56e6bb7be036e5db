"""Log points: what is told of the last steps, to people and to files, a step later.

The all-reduce of a point runs beside the step that follows it; the point is written
when that step is done, or before a save, an evaluation or the end, whatever is first.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from clusterddp.dist import World
from clusterddp.training.equipment import Equipment
from clusterddp.training.experiment import Experiment, wants_run_id
from clusterddp.training.progress import render_evaluation, render_step
from clusterddp.training.resources import gpu_memory
from clusterddp.training.schedule import Schedule, Standing
from clusterddp.training.sums import means

__all__ = ["LogPoints"]

_SHOWN = ("loss", "samples_per_s", "ettr")
_PATIENCE_S = 1.0
_POLL_S = 0.01


class LogPoints:
    """Begins and finishes log points; at most one is on its way."""

    def __init__(
        self,
        experiment: Experiment,
        world: World,
        schedule: Schedule,
        equipment: Equipment,
        run_id: str,
    ) -> None:
        """Begin nothing.

        Args:
            experiment: its `on_log` is called on rank 0.
            world: this rank among the others.
            schedule: names the epoch and the number of steps.
            equipment: what is read and where it is written; open when points begin.
            run_id: given to an `on_log` that wants it.
        """
        self._on_log = experiment.on_log if world.rank == 0 else None
        self._schedule = schedule
        self._tools = equipment
        self._for_log = {"run_id": run_id} if wants_run_id(experiment) else {}
        self._finish: Callable[[], None] | None = None
        self._is_done: Callable[[], bool] = lambda: True

    def open(self, stack: ExitStack) -> None:
        """See to it that a failing step does not lose the point before it."""
        stack.callback(self._rescue)

    def begin(self, at: Standing, evaluated: Mapping[str, float]) -> None:
        """Begin the point of a standing; all ranks must.

        Args:
            at: where the training stands.
            evaluated: the values of an evaluation at this step; empty without one.
        """
        tools, step = self._tools, at.step
        window, values = tools.pace.window(), self._values(at)
        reduction = tools.metrics.begin_reduce(*window.own)
        epoch, total = self._schedule.epoch(at), self._schedule.total_steps(at)
        used = {**tools.monitor.values(), **gpu_memory(tools.device)}

        def finish() -> None:
            reduced = reduction.finish()
            point = {**means(reduced.sums), **values, **window.values(reduced.ranks)}
            self._tell(step, (epoch, total), point, evaluated)
            point.update({f"eval/{name}": value for name, value in evaluated.items()})
            point.update(used)
            tools.metrics.write(step, epoch, point)
            if self._on_log is not None:
                self._on_log(step, point, **self._for_log)

        self._finish, self._is_done = finish, lambda: reduction.is_done

    def finish(self) -> None:
        """Write the point that is on its way, if there is one; all ranks must.

        Raises:
            UsageError: the ranks gave other names.
        """
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()

    def _rescue(self) -> None:
        """Write the last point after an error, if its sums come without waiting long.

        It may be the one that shows why. Nothing here may hide the error.
        """
        if self._finish is None:
            return
        deadline = time.monotonic() + _PATIENCE_S
        while not self._is_done() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if self._is_done():
            with suppress(Exception):
                self.finish()

    def _values(self, at: Standing) -> dict[str, float]:
        learner = self._tools.learner
        values = {"lr": learner.lr}
        if at.grad_norm is not None:
            values["grad_norm"] = at.grad_norm
        if learner.guard.skipped:
            values["skipped"] = learner.guard.skipped
        if learner.precision.scaler is not None:
            values["loss_scale"] = learner.precision.scaler.get_scale()
        return values

    def _tell(
        self,
        step: int,
        of: tuple[int, int],
        values: Mapping[str, float],
        evaluated: Mapping[str, float],
    ) -> None:
        progress, (epoch, total) = self._tools.progress, of
        shown = {name: values[name] for name in _SHOWN if name in values}
        progress.update(epoch=epoch, **shown)
        epochs = (epoch, self._schedule.epochs)
        progress.show(render_step(step, total, epochs, values))
        if evaluated:
            progress.say(render_evaluation(step, total, evaluated))
