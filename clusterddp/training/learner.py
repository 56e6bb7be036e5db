"""The learner: model, optimizer and scheduler of a rank, and one step of them."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clusterddp.config.schema import Train
from clusterddp.dist import World, operation
from clusterddp.training.average import WeightAverage
from clusterddp.training.compression import Compression
from clusterddp.training.experiment import Experiment
from clusterddp.training.gradients import FiniteCheck, clip, gradients, total_norm
from clusterddp.training.guard import NumberGuard
from clusterddp.training.losses import Share, call_loss, weigh
from clusterddp.training.precision import Precision
from clusterddp.training.randomness import preserved
from clusterddp.training.wrapping import Waiting, prepare, warm_ups, wrap

__all__ = ["Learned", "Learner"]

_TINY = 1e-30
_AVERAGE = operation("average of the gradients")


class Learned(NamedTuple):
    """What one step gave.

    Attributes:
        losses: of each part of the share: its mean loss, what that weighs, and
            further means.
        norm: of the averaged gradients, before clipping; None where not asked for.
        made: whether the optimizer made the step; False if it was left out.
        ready: when the last backward pass began, by time.perf_counter(), less what
            was waited for others before.
    """

    losses: list[tuple[Tensor, float | Tensor, Mapping[str, Tensor]]]
    norm: Tensor | None
    made: bool
    ready: float


class Learner:
    """Model, optimizer and scheduler; equal on all ranks after every step."""

    def __init__(
        self, experiment: Experiment, train: Train, world: World, device: torch.device
    ) -> None:
        """Move the model to the device and spread rank 0's weights.

        Args:
            experiment: what is trained.
            train: accumulation, precision, clipping, averaging and the like.
            world: this rank among the others.
            device: where this rank computes.
        """
        self.model = prepare(experiment.model, train, device)
        self.device = device
        self._experiment = experiment
        self._train = train
        self._world_size = world.world_size
        self.ddp = wrap(self.model, train.ddp, world, device)
        self._compression = Compression(self.ddp, train.ddp, world)
        # Hooks that read a clock would break a compiled model into pieces.
        timed = None if train.compile is not None else self.ddp
        self._waiting = Waiting(timed, self.model)
        self._are_finite = FiniteCheck()
        self._wrapped: nn.Module = self.ddp or self.model
        self.optimizer = experiment.optimizer(self.model.parameters())
        make = experiment.scheduler
        self.scheduler = None if make is None else make(self.optimizer)
        self._parameters = self._all_parameters()
        self.precision = Precision(train.precision, device)
        scaled = self.precision.scaler is not None
        self.guard = NumberGuard(train.not_finite, train.max_skips, scaled=scaled)
        self.average = (
            None if train.ema is None else WeightAverage(self.model, train.ema)
        )

    @property
    def lr(self) -> float:
        """The learning rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def step(
        self, shares: Sequence[Share], total: int, *, at: int, want_norm: bool = False
    ) -> Learned:
        """Make one optimizer step on a global batch of which these are a share.

        DDP averages gradients over ranks, which is the mean over samples only if
        all shares are equal; so each loss is weighted by world size x its part of
        the batch. Only the last part's backward pass meets the other ranks.

        Args:
            shares: the parts of this rank's share, on this rank's device.
            total: samples of the global batch.
            at: the number of finished steps.
            want_norm: whether the norm of the gradients is wanted.

        Raises:
            NumbersError: on all ranks: the gradients hold NaN or Inf, and the
                policy is to stop.
        """
        for parameter in self._parameters:  # 10 us less than zero_grad
            parameter.grad = None
        weights = weigh(self._experiment, shares, self.device)
        whole = self._sum_of_weights(weights, total)
        losses, ready = [], 0.0
        for index, share in enumerate(shares):
            with self._meeting(index == len(shares) - 1):
                loss, values = self._forward(share.batch)
                ready = time.perf_counter()
                part = weights[index] * self._world_size / whole
                self._backward(loss, part)
            losses.append((loss.detach(), weights[index], values))
        norm, made = self._finish(at, want_norm=want_norm)
        return Learned(losses, norm, made, ready - self._waiting.take())

    def _all_parameters(self) -> list[Tensor]:
        """Give those of the model, and what else the optimizer was given."""
        groups = self.optimizer.param_groups
        known = chain(self.model.parameters(), *(group["params"] for group in groups))
        return list({id(parameter): parameter for parameter in known}.values())

    def _sum_of_weights(
        self, weights: Sequence[float | Tensor], total: int
    ) -> float | Tensor:
        """Give the weight of the global batch; known without a word for samples."""
        if self._experiment.weight is None:
            return total
        whole = torch.as_tensor(sum(weights), device=self.device)
        if self._world_size > 1:
            with operation("sum of the batch's weights"):
                dist.all_reduce(whole)
        return whole.clamp(min=_TINY)

    def _meeting(self, is_last: bool) -> AbstractContextManager[None]:  # noqa: FBT001
        """Keep the gradients to this rank, for the forward pass too, but at last."""
        return nullcontext() if is_last or self.ddp is None else self.ddp.no_sync()

    def _forward(self, batch: object) -> tuple[Tensor, Mapping[str, Tensor]]:
        with self.precision.autocast():
            return call_loss(self._experiment.loss, self._wrapped, batch)

    def _backward(self, loss: Tensor, part: float | Tensor) -> None:
        if isinstance(part, Tensor):
            loss = loss * part.to(loss.dtype)
        elif part != 1:
            loss = loss * part
        with _AVERAGE:
            self.precision.scale(loss).backward()  # type: ignore[no-untyped-call]

    def _finish(self, at: int, *, want_norm: bool) -> tuple[Tensor | None, bool]:
        """Look at the averaged gradients and, if they are sound, use them."""
        scaler, most = self.precision.scaler, self._train.clip_grad_norm
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        norm, finite = None, True
        if self.guard.is_watching or want_norm or most is not None:
            grads = gradients(self._parameters)
            finite = not self.guard.is_watching or self._are_finite(grads)
            norm = total_norm(grads) if want_norm or most is not None else None
            if finite and most is not None and norm is not None:
                clip(grads, norm, most)
        made = self.guard.allows(finite=finite, step=at)
        if made:
            self._update()
        if scaler is not None:
            scaler.update()
        return norm, made

    def _update(self) -> None:
        if self.precision.scaler is not None:
            self.precision.scaler.step(self.optimizer)
        else:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        if self.average is not None:
            self.average.update()

    def warm_up(self, batch: object) -> None:
        """Go forward and backward for nothing, before the first real step.

        DDP lays out its gradient buckets anew after the first backward of every
        process. From 3 ranks on the layout decides the order of the sums, so a
        resumed process would differ from one that never stopped in the bits of
        its first step (pytorch#30509). After this call both use the final
        layout. Weights, buffers and random streams are left as they were.
        """
        buffers = [buffer.detach().clone() for buffer in self.model.buffers()]
        with preserved(self.device), self._compression.idle():
            for _ in range(warm_ups(self._train.ddp)):
                loss, _values = self._forward(batch)
                with operation("average of the gradients, before the first step"):
                    loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, kept in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(kept)

    def spread_buffers(self) -> None:
        """Give all ranks rank 0's buffers, the ones that a checkpoint holds.

        DDP does so before each forward in training; between two steps the ranks'
        running statistics differ, and so would their evaluations.
        """
        if self._world_size > 1:
            with operation("broadcast of the model's buffers"):
                for buffer in self.model.buffers():
                    dist.broadcast(buffer, 0)

    def evaluated(self) -> AbstractContextManager[None]:
        """Give the model, inside, the weights that are evaluated."""
        if self._train.eval_weights == "raw" or self.average is None:
            return nullcontext()
        return self.average.in_place()

    def state(self) -> dict[str, dict[str, Any]]:
        """Give references to all that a checkpoint must hold, by file name.

        All ranks must call it: PowerSGD's part is gathered.
        """
        optimizer: dict[str, Any] = {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.precision.state(),
            "guard": self.guard.state(),
        }
        if self.scheduler is not None:
            optimizer["scheduler"] = self.scheduler.state_dict()
        state = {"model.pt": self.model.state_dict(), "optimizer.pt": optimizer}
        if self.average is not None:
            state["ema.pt"] = self.average.state()
        remembered = self._compression.state()
        if remembered is not None:
            state["powersgd.pt"] = remembered
        return state

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what `state` gave, on every rank."""
        rest = state["optimizer.pt"]
        self.model.load_state_dict(state["model.pt"])
        self.optimizer.load_state_dict(dict(rest["optimizer"]))
        if self.scheduler is not None:
            self.scheduler.load_state_dict(dict(rest["scheduler"]))
        self.precision.load(rest.get("scaler", {}))
        if "guard" in rest:
            self.guard.load(rest["guard"])
        if self.average is not None and "ema.pt" in state:
            self.average.load(state["ema.pt"])
        if "powersgd.pt" in state:
            self._compression.load(state["powersgd.pt"])
