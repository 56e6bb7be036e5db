"""Sums of means times their weights; what they become over all ranks is a mean."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from clusterddp.dist import World
from clusterddp.errors import UsageError
from clusterddp.training.reduction import Reduction

__all__ = ["WeightedSums", "means"]

_WEIGHT = ""  # no name of a user's
_MOST_WAITING = 1000


class WeightedSums:
    """Sums of per-batch means times their weights, in float64.

    The sum of such sums over batches and ranks, over the sum of weights, is the
    mean over samples (or tokens); a mean of means is not.

    Adding costs a step 2 us: what comes is kept as it is, on its device, and added
    up, in the order in which it came, when somebody asks (or every 1,000 times).
    Only then is a device waited for.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin with nothing.

        Args:
            device: where the sums of all ranks are added up.
        """
        self._device = device
        self._count = 0.0
        self._sums: dict[str, float] = {}
        self._waiting: list[tuple[dict[str, Tensor | float], float | Tensor]] = []

    def add(self, values: Mapping[str, Tensor | float], count: float | Tensor) -> None:
        """Take in means of this weight; the number 0 makes the names known only.

        Raises:
            UsageError: a value is not one number.
        """
        # Copies: an experiment may give a buffer that it changes in the next step.
        kept = {name: _one(name, value) for name, value in values.items()}
        self._waiting.append((kept, count))
        if len(self._waiting) >= _MOST_WAITING:
            self._settle()

    def reduce(
        self, world: World, *, own: Sequence[float] = (), source: str
    ) -> Reduction:
        """Begin to add up over all ranks; all must call it; `means` of the result."""
        self._settle()
        values = {**self._sums, _WEIGHT: self._count}
        return Reduction(values, world, self._device, own=own, source=source)

    def state(self) -> dict[str, object]:
        """Give what was added up so far, as JSON."""
        self._settle()
        return {"count": self._count, "sums": dict(self._sums)}

    def take(self, state: Mapping[str, object], *, keep: bool = True) -> None:
        """Add what `state` gave; not keeping it, take over the names only.

        Raises:
            TypeError: the state is not what `state` gave.
        """
        sums, count = state["sums"], state["count"]
        if not isinstance(sums, dict) or not isinstance(count, int | float):
            raise TypeError(f"metric sums: {state!r} is not what state() gave")
        self._settle()
        self._count += count if keep else 0
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + (value if keep else 0.0)

    def _settle(self) -> None:
        waiting, self._waiting = self._waiting, []
        counts = iter(_numbers([count for _, count in waiting]))
        flat = [value for values, _ in waiting for value in values.values()]
        numbers = iter(_numbers(flat))
        for values, _ in waiting:
            count = next(counts)
            self._count += count
            for name in values:
                value = next(numbers)
                # Not value * 0 for a filler: that of a NaN is a NaN.
                term = value * count if count else 0.0
                self._sums[name] = self._sums.get(name, 0.0) + term


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Give the means that finished sums stand for; none over nothing."""
    whole = sums[_WEIGHT]
    return {name: sums[name] / whole for name in sums if whole and name != _WEIGHT}


def _one(name: str, value: Tensor | float) -> Tensor | float:
    if not isinstance(value, Tensor):
        return float(value)
    if value.numel() != 1:
        raise UsageError(
            f"logged value {name!r}: found shape {tuple(value.shape)}, expected one "
            "number; give the mean over the samples of the batch"
        )
    return value.detach().clone()


def _numbers(values: Sequence[Tensor | float]) -> list[float]:
    """Give all as numbers of the host; float64 keeps every bit; one wait a device."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        flat = [tensor.double().reshape(()) for tensor in tensors]
        moved = iter(torch.stack(flat).tolist())
        return [next(moved) if isinstance(v, Tensor) else v for v in values]
    return [float(value) for value in values]
