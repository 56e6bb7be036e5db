"""The experiment: what is trained, on which data, by which rule."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, IterableDataset

from clusterddp.errors import UsageError

__all__ = ["Experiment", "LossFunction", "wants_run_id"]

# What a batch is, only the user's dataset and collate function know: Any.
LossFunction: TypeAlias = Callable[
    [nn.Module, Any], Tensor | tuple[Tensor, Mapping[str, Tensor]]
]
EvaluateFunction: TypeAlias = Callable[[nn.Module, Any], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Experiment:
    """What `build(params)` gives: everything the shared trainer must be told.

    All ranks build the same experiment. The trainer moves the model and the
    batches to the rank's device, wraps the model in DistributedDataParallel,
    and hands `loss` the wrapped model.

    Attributes:
        model: the module to train; parameters on any device.
        train_data: a map-style dataset, `len()` and `[index]`. Random draws of a
            sample (python, numpy, torch) are seeded by (seed, epoch, index).
        loss: `(model, batch)` -> a scalar, the mean over the samples of the
            batch; or that and a dict of further scalars to log, also means.
        optimizer: `(parameters)` -> optimizer.
        weight: `(batch)` -> over how much its loss is a mean, such as its number of
            tokens; the number of samples when None. Gradients and logged values
            are means over all of it, whatever each rank's part.
        eval_data: a map-style dataset for the evaluation after each epoch.
        scheduler: `(optimizer)` -> learning rate scheduler, stepped after every
            optimizer step.
        collate: list of samples -> batch; torch's default when None.
        evaluate: `(model, batch)` -> scalars, means over the samples of the
            batch, without gradients and on the bare model in eval mode. When
            None, `loss` is evaluated.
        on_log: `(step, values)`, called on rank 0 at every log point. If it has a
            parameter `run_id`, it gets the run's, which a resumed run keeps.

    Raises:
        UsageError: a field is of the wrong kind; the message names it.
    """

    model: nn.Module
    train_data: Dataset[Any]
    loss: LossFunction
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    eval_data: Dataset[Any] | None = None
    scheduler: Callable[[Optimizer], LRScheduler] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    evaluate: EvaluateFunction | None = None
    on_log: Callable[..., None] | None = None
    weight: Callable[[Any], float | Tensor] | None = None

    def __post_init__(self) -> None:
        _check_model(self.model)
        _check_data("train_data", self.train_data)
        if self.eval_data is not None:
            _check_data("eval_data", self.eval_data)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _FUNCTIONS and not callable(value):
                if value is None and field.default is None:
                    continue
                raise UsageError(
                    f"Experiment.{field.name}: {type(value).__name__} cannot be "
                    f"called; give a function {_FUNCTIONS[field.name]}"
                )


_FUNCTIONS = {
    "loss": "(model, batch) -> mean loss",
    "optimizer": "(parameters) -> optimizer, not the optimizer itself",
    "scheduler": "(optimizer) -> scheduler, not the scheduler itself",
    "collate": "(list of samples) -> batch",
    "evaluate": "(model, batch) -> dict of means",
    "on_log": "(step, values) -> None",
    "weight": "(batch) -> number",
}


def wants_run_id(experiment: Experiment) -> bool:
    """Say whether `on_log` has a parameter of that name."""
    on_log = experiment.on_log
    return on_log is not None and "run_id" in inspect.signature(on_log).parameters


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"Experiment.model: {type(model).__name__} is no torch.nn.Module; give "
            "the module itself (an instance, not its class)"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(
            f"Experiment.model: no parameter of {type(model).__name__} requires a "
            "gradient, so there is nothing to train"
        )


def _check_data(name: str, data: object) -> None:
    if isinstance(data, IterableDataset):
        raise UsageError(
            f"Experiment.{name}: {type(data).__name__} is an iterable dataset, which "
            "has no positions: after a stop it could only go on by reading everything "
            "again, and not at all on another number of ranks; give a map-style "
            "dataset (len() and [index])"
        )
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise UsageError(
            f"Experiment.{name}: {type(data).__name__} lacks __len__ or __getitem__; "
            "give a map-style dataset (len() and [index])"
        )
    if len(data) == 0:
        raise UsageError(
            f"Experiment.{name}: the dataset is empty; give at least one sample"
        )
