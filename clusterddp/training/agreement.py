"""Agreement: whether the parameters are still equal on all ranks, bit for bit."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clusterddp.dist import World, broadcast_json, gather_json, operation
from clusterddp.errors import NumbersError

__all__ = ["check_equal"]

_BLOCK = 1 << 22
_MODULUS = 1 << 62  # so that a sum can be negated
# Bits are read as integers of the same size; sums of those are exact and have no order.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_equal(model: nn.Module, world: World, step: int) -> None:
    """Compare the ranks' parameters; all ranks must call it.

    One all-reduce of two numbers per tensor, whatever their size.

    Args:
        model: the bare model.
        world: this rank among the others.
        step: the number of finished steps, for the message.

    Raises:
        NumbersError: on all ranks: a parameter is not equal everywhere; the message
            names the first one, and the ranks that differ from rank 0.
    """
    if world.world_size == 1:
        return
    named = list(model.named_parameters())
    sums = torch.stack([_sum_of_bits(parameter) for _, parameter in named])
    extremes = torch.stack([sums, -sums])
    with operation("comparison of the ranks' parameters"):
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
    differing = (extremes[0] != -extremes[1]).nonzero().flatten().tolist()
    if differing:
        first = differing[0]
        _refuse(named[first][0], int(sums[first]), step, len(differing))


@torch.no_grad()
def _sum_of_bits(parameter: Tensor) -> Tensor:
    tensor = parameter.detach().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    bits = tensor.view(_BITS[tensor.element_size()]).flatten()
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start, part in enumerate(torch.split(bits, _BLOCK)):
        # The place counts too, or two swapped values would go unnoticed; sums wrap.
        first = start * _BLOCK + 1
        places = torch.arange(first, first + len(part), device=bits.device)
        total += (part.to(torch.int64) * places).sum()
    return total % _MODULUS


def _refuse(name: str, own: int, step: int, count: int) -> None:
    """Raise on all ranks; who differs is exchanged only now, through the store."""
    found = gather_json(own)
    others: list[int] | None = None
    if found is not None:
        others = [rank for rank, value in enumerate(found) if value != found[0]]
    ranks = ", ".join(map(str, broadcast_json(others)))
    raise NumbersError(
        f"parameters after step {step}: {name} (and {count - 1} more) of rank {ranks} "
        "differ from rank 0's, expected equal bits on all ranks; something changes "
        "weights on one rank only (an in-place change outside the optimizer, a rank's "
        "own random draw, a broken device): the newest checkpoint may be rank 0's view"
    )
