"""One all-reduce per log point: sums by name, and what each rank says of its time."""

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from clusterddp.dist import World, broadcast_json, gather_json, operation
from clusterddp.errors import UsageError

__all__ = ["Reduced", "Reduction"]

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


class Reduction:
    """Sums over all ranks, on their way: begun here, finished when they are wanted.

    What happens between the two runs beside it (an all-reduce of a log point costs
    0.8 ms at 2 ranks on gloo, more than many a step). Ranks with other names would
    add up apples and pears, or with more of them hang. So the vector has a fixed
    length and carries a checksum of the names.
    """

    def __init__(
        self,
        values: Mapping[str, float],
        world: World,
        device: torch.device,
        *,
        own: Sequence[float] = (),
        source: str = "Experiment.loss",
    ) -> None:
        """Begin; all ranks must, and all must finish it.

        Args:
            values: what is added up.
            world: this rank among the others.
            device: where the vector lies.
            own: what the others are to know of this rank; as many on each.
            source: which function the names come from, for the message.

        Raises:
            UsageError: there are more than 128 names.
        """
        self._names = sorted(values)
        if len(self._names) > _ROOM:
            raise UsageError(
                f"{source}: gave {len(values)} values, expected at most {_ROOM}; log "
                "fewer, or write them to a file of your own"
            )
        self._world_size, self._own, self._source = world.world_size, len(own), source
        self._operation = operation(f"sum of {len(values)} values over all ranks")
        host = _pack([values[name] for name in self._names], self._names, world, own)
        self._packed = torch.tensor(host, dtype=torch.float64, device=device)
        self._work: dist.Work | None = None
        if world.world_size > 1:
            with self._operation:
                self._work = dist.all_reduce(self._packed, async_op=True)

    @property
    def is_done(self) -> bool:
        """Whether `finish` would not wait."""
        return self._work is None or self._work.is_completed()

    def finish(self) -> Reduced:
        """Give the sums; waits for the other ranks, and for the device once.

        Raises:
            UsageError: on all ranks: the names differ between the ranks.
        """
        with self._operation:
            if self._work is not None:
                self._work.wait()
            sums: list[float] = self._packed.tolist()
        if int(sums[0]) ** 2 != self._world_size * int(sums[1]):
            _refuse(self._names, self._source)
        told, own = sums[2 + _ROOM :], self._own
        ranks = [told[at : at + own] for at in range(0, len(told), own or 1)]
        return Reduced(dict(zip(self._names, sums[2:], strict=False)), ranks)


def _pack(
    values: Sequence[float],
    names: Sequence[str],
    world: World,
    own: Sequence[float],
) -> list[float]:
    checksum = zlib.crc32("\n".join(names).encode()) & _HASH
    packed = [0.0] * (2 + _ROOM + world.world_size * len(own))
    packed[:2] = float(checksum), float(checksum**2)
    packed[2 : 2 + len(values)] = values
    first = 2 + _ROOM + world.rank * len(own)
    packed[first : first + len(own)] = own
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
