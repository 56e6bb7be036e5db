"""The learner: model, optimizer and scheduler of a rank, and one step of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from clusterddp.dist import World, operation
from clusterddp.errors import UsageError
from clusterddp.training.experiment import Experiment, LossFunction
from clusterddp.training.randomness import preserved

__all__ = ["Learner", "call_loss", "evaluating"]


class Learner:
    """Model, optimizer and scheduler; equal on all ranks after every step."""

    def __init__(
        self, experiment: Experiment, world: World, device: torch.device
    ) -> None:
        """Move the model to the device and spread rank 0's weights.

        Args:
            experiment: what is trained.
            world: this rank among the others.
            device: where this rank computes.
        """
        self.model = experiment.model.to(device)
        self.device = device
        self._loss: LossFunction = experiment.loss
        self._world_size = world.world_size
        self._wrapped: nn.Module = self.model
        if world.world_size > 1:
            ids = [device] if device.type == "cuda" else None
            with operation("comparison of the ranks' models"):
                self._wrapped = DistributedDataParallel(self.model, device_ids=ids)
        self.optimizer = experiment.optimizer(self.model.parameters())
        self.scheduler = (
            None
            if experiment.scheduler is None
            else experiment.scheduler(self.optimizer)
        )

    @property
    def lr(self) -> float:
        """The learning rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, batch: object, count: int, total: int) -> tuple[Tensor, Any]:
        """Make one optimizer step on a global batch of which this is a share.

        DDP averages gradients over ranks, which is the mean over samples only if
        all shares are equal; so the loss is weighted by world size x share.

        Args:
            batch: this rank's share, on any device.
            count: samples of the share that count; 0 for a filler.
            total: samples of the global batch.

        Returns:
            The loss of the share, a detached scalar, and further scalars to log.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss, values = call_loss(self._loss, self._wrapped, batch)
        weight = self._world_size * count / total
        with operation("average of the gradients"):
            (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        return loss.detach(), values

    def warm_up(self, batch: object) -> None:
        """Go forward and backward once, for nothing, before the first real step.

        DDP lays out its gradient buckets anew after the first backward of every
        process. From 3 ranks on the layout decides the order of the sums, so a
        resumed process would differ from one that never stopped in the bits of
        its first step (pytorch#30509). After this call both use the final
        layout. Weights, buffers and random streams are left as they were.
        """
        buffers = [buffer.detach().clone() for buffer in self.model.buffers()]
        with preserved(self.device):
            loss, _ = call_loss(self._loss, self._wrapped, batch)
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

    def state(self) -> dict[str, dict[str, Any]]:
        """Give references to all that a checkpoint must hold, by file name."""
        optimizer: dict[str, Any] = {"optimizer": self.optimizer.state_dict()}
        if self.scheduler is not None:
            optimizer["scheduler"] = self.scheduler.state_dict()
        return {"model.pt": self.model.state_dict(), "optimizer.pt": optimizer}

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what `state` gave, on every rank."""
        self.model.load_state_dict(state["model.pt"])
        self.optimizer.load_state_dict(dict(state["optimizer.pt"]["optimizer"]))
        if self.scheduler is not None:
            self.scheduler.load_state_dict(dict(state["optimizer.pt"]["scheduler"]))


def call_loss(
    function: LossFunction, model: nn.Module, batch: object
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Call the experiment's loss; give the loss and the further scalars.

    Raises:
        UsageError: it gave something else than a scalar tensor (and a dict).
    """
    result = function(model, batch)
    loss, values = result if isinstance(result, tuple) else (result, {})
    found: object = loss  # whatever the annotation says
    if not isinstance(found, Tensor) or found.numel() != 1:
        shape = f"shape {tuple(loss.shape)}" if hasattr(loss, "shape") else repr(loss)
        raise UsageError(
            f"Experiment.loss: gave {shape}, expected a scalar tensor; return the mean "
            "over the samples of the batch"
        )
    return loss.reshape(()), values


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode, without gradients; each module gets its mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
