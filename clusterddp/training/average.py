"""The average of the weights over the steps (EMA), beside the weights themselves."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["WeightAverage"]


class WeightAverage:
    """An exponential moving average of a model's floating-point parameters.

    After step n the average moves by 1 - d of the way to the weights, where d is the
    smaller of `decay` and (1 + n) / (10 + n): the first steps are forgotten quickly
    (as in TensorFlow's ExponentialMovingAverage with num_updates).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Begin at the weights as they are.

        Args:
            model: the bare model; its parameters are read, never changed.
            decay: how much of the average stays at each step, below 1.
        """
        self.count = 0
        self._decay = decay
        self._model = model
        self._names = [n for n, p in model.named_parameters() if p.is_floating_point()]
        self._averages = [weight.clone() for weight in self._weights()]

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the weights of a step that was made."""
        self.count += 1
        decay = min(self._decay, (1 + self.count) / (10 + self.count))
        torch._foreach_lerp_(self._averages, self._weights(), 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the average instead of its weights; inside only."""
        weights = self._weights()
        kept = [weight.clone() for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(weights, self._averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, kept)

    def state(self) -> dict[str, Any]:
        """Give references: the count of updates, and the average by name."""
        average = dict(zip(self._names, self._averages, strict=True))
        return {"count": self.count, "model": average}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.count = state["count"]
        for name, average in zip(self._names, self._averages, strict=True):
            average.copy_(state["model"][name])

    def _weights(self) -> list[Tensor]:
        return [p.detach() for p in self._model.parameters() if p.is_floating_point()]
