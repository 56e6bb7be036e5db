"""Gradients: whether they are finite, how long they are, and cutting them to length.

All of it after the average over ranks, so every rank sees the same numbers: what one
rank decides from them, all decide, and nothing has to be sent.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["FiniteCheck", "clip", "gradients", "total_norm"]

_TINY = 1e-6  # as torch.nn.utils.clip_grad_norm_


def gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Give the gradients there are; of sparse ones, the values."""
    found = (p.grad for p in parameters if p.grad is not None)
    return [grad.coalesce().values() if grad.is_sparse else grad for grad in found]


class FiniteCheck:
    """Says whether no gradient holds NaN or Inf; on a GPU this waits for it.

    The kernel is GradScaler's own, which costs a quarter of a norm (5 against 21 us
    for 4 small tensors, 2 with its two scalars kept); multiplying by 1 leaves every
    bit as it is.
    """

    def __init__(self) -> None:
        self._found = torch.zeros(())
        self._one = torch.ones(())

    def __call__(self, grads: list[Tensor]) -> bool:
        """Look at all gradients of one device."""
        if not grads:
            return True
        if any(grad.dtype != torch.float32 for grad in grads):
            return bool(torch.isfinite(total_norm(grads)))
        if self._found.device != grads[0].device:
            self._found = self._found.to(grads[0].device)
            self._one = self._one.to(grads[0].device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, self._found, self._one)
        if self._found.item() == 0:
            return True
        self._found.zero_()
        return False


def total_norm(grads: list[Tensor]) -> Tensor:
    """Give the 2-norm of all gradients together, a scalar."""
    if not grads:
        return torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))  # noqa: SLF001
    return norm


def clip(grads: list[Tensor], norm: Tensor, most: float) -> None:
    """Shorten gradients whose common norm is above `most`, as clip_grad_norm_ does."""
    factor = (most / (norm + _TINY)).clamp(max=1.0)
    torch._foreach_mul_(grads, factor)
