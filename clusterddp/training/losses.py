"""Losses: calling the experiment's functions, and what their means weigh."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clusterddp.errors import UsageError
from clusterddp.training.experiment import Experiment, LossFunction

__all__ = ["Share", "call_loss", "evaluating", "weigh"]


class Share(NamedTuple):
    """A part of a global batch, computed by one rank in one go.

    Attributes:
        batch: what collate gave.
        size: samples that count; 0 for a filler.
    """

    batch: object
    size: int


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
    return (loss.reshape(()) if loss.dim() else loss), values


def weigh(
    experiment: Experiment, shares: Sequence[Share], device: torch.device
) -> list[float | Tensor]:
    """Give what the mean of each share weighs: its samples, or what `weight` says.

    A filler weighs 0, whatever is in it. Weights stay on the device.

    Raises:
        UsageError: `weight` gave something else than one number.
    """
    weight = experiment.weight
    if weight is None:
        return [share.size for share in shares]
    weights: list[float | Tensor] = []
    for share in shares:
        found = torch.as_tensor(weight(share.batch), dtype=torch.float64, device=device)
        if found.numel() != 1:
            raise UsageError(
                f"Experiment.weight: gave shape {tuple(found.shape)}, expected one "
                "number; return over how much the loss of the batch is a mean, such as "
                "its number of tokens"
            )
        value = found.detach().reshape(())
        weights.append(value if share.size else torch.zeros_like(value))
    return weights


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
