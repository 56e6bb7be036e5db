"""Small collectives of the trainer: sums, and JSON values through the store."""

import json
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from clusterddp.dist.operations import operation
from clusterddp.dist.session import Session, current_session

__all__ = ["broadcast_json", "gather_json", "reduce_sums"]

T = TypeVar("T")


def reduce_sums(values: Sequence[float | Tensor]) -> list[float]:
    """Give the sum of each value over all ranks, with one all-reduce in float64.

    Args:
        values: numbers and scalar tensors, as many and in the same order on every
            rank; fetching the result waits for the device once.

    Raises:
        LaunchError: init_dist was not called.
        CollectiveError: another rank did not take part.
    """
    device = current_session().device
    if not values:
        return []
    packed = torch.stack([_scalar(value, device) for value in values])
    with operation(f"sum of {len(values)} values over all ranks"):
        dist.all_reduce(packed)
        sums: list[float] = packed.tolist()
    return sums


def _scalar(value: float | Tensor, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().to(device, torch.float64).reshape(())
    return torch.tensor(value, dtype=torch.float64, device=device)


def broadcast_json(value: T | None) -> T:
    """Give the value of rank 0 on every rank; the others' argument is ignored.

    It passes through JSON on every rank, so tuples become lists.

    Raises:
        LaunchError: init_dist was not called.
        CollectiveError: another rank did not take part.
        TypeError: rank 0's value is not JSON.
    """
    session = current_session()
    key = f"broadcast/{next(session.calls)}"
    if session.world.rank == 0:
        text = json.dumps(value)
        if session.world.world_size > 1:
            session.store.set(key, text)
    else:
        with operation("broadcast of a value from rank 0"):
            text = session.store.get(key).decode()
            _delete_after_last(session, key)
    result: T = json.loads(text)
    return result


def _delete_after_last(session: Session, key: str) -> None:
    readers = session.world.world_size - 1
    if session.store.add(f"{key}/read", 1) == readers:
        session.store.delete_key(key)
        session.store.delete_key(f"{key}/read")


def gather_json(value: T) -> list[T] | None:
    """Give the values of all ranks, in their order, on rank 0; None elsewhere.

    Raises:
        LaunchError: init_dist was not called.
        CollectiveError: another rank did not take part.
        TypeError: a value is not JSON.
    """
    session = current_session()
    prefix = f"gather/{next(session.calls)}"
    text = json.dumps(value)
    if session.world.rank:
        session.store.set(f"{prefix}/{session.world.rank}", text)
        return None
    keys = [f"{prefix}/{rank}" for rank in range(1, session.world.world_size)]
    with operation("gathering of a value on rank 0"):
        texts = [text, *(session.store.get(key).decode() for key in keys)]
    for key in keys:
        session.store.delete_key(key)
    return [json.loads(item) for item in texts]
