"""The first look at an experiment: bad ones get a clear word before step 1."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clusterddp.dist import broadcast_json, gather_json
from clusterddp.errors import UsageError
from clusterddp.training.experiment import Experiment
from clusterddp.training.losses import call_loss
from clusterddp.training.precision import Precision
from clusterddp.training.randomness import preserved

__all__ = ["check_size", "describe_batch", "look_first"]


def check_size(samples: int, batch_size: int) -> None:
    """Refuse training data that does not fill one global batch.

    Raises:
        UsageError: it does not.
    """
    if samples < batch_size:
        raise UsageError(
            f"train.global_batch_size: found {batch_size}, expected at most the "
            f"{samples} samples of Experiment.train_data; make it smaller, or look why "
            "the data is so short"
        )


def look_first(
    experiment: Experiment,
    model: nn.Module,
    batch: object,
    precision: Precision,
) -> None:
    """Compute one loss on the bare model, for nothing, and compare it on all ranks.

    Nothing collective happens in it, so that a rank whose loss fails can say so
    before the others wait for it. Random streams and buffers stay as they were.

    Raises:
        Exception: what this rank's own loss raised.
        UsageError: on all ranks: the loss of one failed or is not finite, or their
            batches are of different kinds.
    """
    buffers = [buffer.detach().clone() for buffer in model.buffers()]
    failure: Exception | None = None
    try:
        with preserved(precision.device), torch.no_grad(), precision.autocast():
            loss, _values = call_loss(experiment.loss, model, batch)
        said = _judge(loss)
    except Exception as error:  # noqa: BLE001 - told to all ranks, and raised below
        failure, said = error, f"{type(error).__name__}: {error}"
    with torch.no_grad():
        for buffer, kept in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(kept)
    words = gather_json([said, describe_batch(batch)])
    told = broadcast_json(None if words is None else _compare(words))
    if failure is not None:
        raise failure
    if told:
        raise UsageError(told)


def _judge(loss: Tensor) -> str:
    if torch.isfinite(loss):
        return ""
    return f"the loss of the first batch is {loss.item()}"


def _compare(words: Sequence[Sequence[str]]) -> str:
    """Give what is wrong with the ranks' first batches; empty if nothing is."""
    failing = [rank for rank, word in enumerate(words) if word[0]]
    kinds = [word[1] for word in words]
    other = next((rank for rank, kind in enumerate(kinds) if kind != kinds[0]), None)
    if failing:
        advice = "look at that rank's own log and data"
        if other is not None:
            advice = f"its batch is {kinds[failing[0]]}, rank 0's {kinds[0]}"
        found = f"rank {failing[0]}: {words[failing[0]][0]}"
        return f"Experiment.loss: {found}, expected a finite scalar; {advice}"
    if other is not None:
        return (
            f"Experiment.collate: rank {other} gave {kinds[other]}, rank 0 {kinds[0]}; "
            "give batches of the same types and dimensions on all ranks (lengths may "
            "differ)"
        )
    return ""


def describe_batch(value: Any) -> str:  # noqa: ANN401 - any nesting
    """Give types and dimensions of a batch; lengths, which may differ, as `*`."""
    if isinstance(value, Tensor):
        sizes = ", ".join("*" * value.dim()) if value.dim() else ""
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    if isinstance(value, Mapping):
        parts = ", ".join(f"{key}: {describe_batch(value[key])}" for key in value)
        return f"{{{parts}}}"
    if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
        return f"[{', '.join(map(describe_batch, value))}]"
    return type(value).__name__
