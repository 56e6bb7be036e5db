"""One all-reduce per log point: sums by name, and what each rank says of its time."""

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from clusterddp.dist import World, broadcast_json, gather_json, operation
from clusterddp.errors import UsageError

__all__ = ["Reduced", "reduce_named"]

_ROOM = 128
_HASH = (1 << 20) - 1  # the sum of 2 ** 13 squares is still exact in float64


class Reduced(NamedTuple):
    """What all ranks have together.

    Attributes:
        sums: over all ranks, by name.
        ranks: what each rank gave, in their order.
    """

    sums: dict[str, float]
    ranks: list[list[float]]


def reduce_named(
    values: Mapping[str, float | Tensor],
    world: World,
    device: torch.device,
    *,
    own: Sequence[float] = (),
    source: str = "Experiment.loss",
) -> Reduced:
    """Give sums over all ranks; all must call it. Waits for the device once.

    Ranks with other names would add up apples and pears, or with more of them hang.
    So the vector has a fixed length and carries a checksum of the names.

    Args:
        values: what is added up.
        world: this rank among the others.
        device: where the vector lies.
        own: what the others are to know of this rank; as many on each.
        source: which function the names come from, for the message.

    Raises:
        UsageError: on all ranks: the names differ between the ranks, or there are
            more than 128.
    """
    names = sorted(values)
    if len(names) > _ROOM:
        raise UsageError(
            f"{source}: gave {len(names)} values, expected at most {_ROOM}; log fewer, "
            "or write them to a file of your own"
        )
    packed = _pack([values[name] for name in names], names, world, device, own)
    with operation(f"sum of {len(names)} values over all ranks"):
        dist.all_reduce(packed)
    sums: list[float] = packed.tolist()
    if int(sums[0]) ** 2 != world.world_size * int(sums[1]):
        _refuse(names, source)
    told = sums[2 + _ROOM :]
    ranks = [told[at : at + len(own)] for at in range(0, len(told), len(own) or 1)]
    return Reduced(dict(zip(names, sums[2:], strict=False)), ranks)


def _pack(
    values: Sequence[float | Tensor],
    names: Sequence[str],
    world: World,
    device: torch.device,
    own: Sequence[float],
) -> Tensor:
    checksum = zlib.crc32("\n".join(names).encode()) & _HASH
    host = [0.0] * (2 + _ROOM + world.world_size * len(own))
    host[:2] = float(checksum), float(checksum**2)
    first = 2 + _ROOM + world.rank * len(own)
    host[first : first + len(own)] = own
    packed = torch.tensor(host, dtype=torch.float64, device=device)
    for place, value in enumerate(values, start=2):
        packed[place] = value
    return packed


def _refuse(names: Sequence[str], source: str) -> None:
    told = gather_json([name for name in names if name])
    found = None
    if told is not None:
        other = next(rank for rank, given in enumerate(told) if given != told[0])
        found = [other, told[other], told[0]]
    rank, theirs, first = broadcast_json(found)
    raise UsageError(
        f"{source}: rank {rank} gave {theirs}, rank 0 {first}; give the same names on "
        "all ranks, with the value 0 where there is nothing to say"
    )
