"""A copy of the state in host memory: buffers made once, pinned where it is a GPU's."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["HostCopy", "count_bytes", "on_host"]

T = TypeVar("T")
_UNCHANGING = frozenset({bool, int, float, str, type(None)})


class HostCopy:
    """Copies nested state into buffers that the next copy uses again.

    Pinned memory lets the GPU copy while the host goes on; `wait` tells when it is
    through. What comes later on the same CUDA stream finds the source unchanged by
    anything before it, so the next step need not wait at all.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._twins: dict[tuple[object, ...], Tensor] = {}
        self._event: torch.cuda.Event | None = None
        self._on_device = False
        self.bytes = 0
        """Of all tensors of the last copy; shared ones count once."""

    def take(self, state: Mapping[str, T]) -> dict[str, T]:
        """Give a copy that shares nothing with the state.

        The copy before this one becomes invalid: its buffers are reused.

        Args:
            state: nested dicts, lists and tuples of tensors and plain values.
        """
        self._twins.clear()
        self._event, self._on_device, self.bytes = None, False, 0
        copied: dict[str, T] = _map(dict(state), self._copy, "")
        if self._on_device:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        self._twins.clear()
        return copied

    def wait(self) -> None:
        """Wait until the device has copied everything; any thread may."""
        if self._event is not None:
            self._event.synchronize()

    def _copy(self, tensor: Tensor, place: str) -> Tensor:
        if tensor.layout is not torch.strided:
            self.bytes += tensor.nbytes
            return tensor.cpu().clone()
        # Tied weights stay tied in the file, and are copied once.
        identity = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        twin = self._twins.get(identity) if tensor.numel() else None
        if twin is not None:
            return twin
        buffer = self._buffer(tensor, place)
        buffer.copy_(tensor, non_blocking=True)
        self._twins[identity] = buffer
        self.bytes += buffer.nbytes
        self._on_device = self._on_device or tensor.is_cuda
        return buffer

    def _buffer(self, tensor: Tensor, place: str) -> Tensor:
        known = self._buffers.get(place)
        if (
            known is not None
            and known.dtype == tensor.dtype
            and known.shape == tensor.shape
        ):
            return known
        made = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        self._buffers[place] = made
        return made


def on_host(state: Mapping[str, T]) -> dict[str, T]:
    """Give the state with every tensor in host memory; those there already as is."""
    result: dict[str, T] = _map(dict(state), lambda tensor, _place: tensor.cpu(), "")
    return result


def count_bytes(state: Mapping[str, object]) -> int:
    """Give the bytes of all tensors in a state; shared ones count once."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor, _place: str) -> Tensor:
        sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    _map(dict(state), note, "")
    return sum(sizes.values())


def _map(
    value: Any,  # noqa: ANN401 - any nested state
    change: Callable[[Tensor, str], Tensor],
    place: str,
) -> Any:  # noqa: ANN401
    if isinstance(value, Tensor):
        return change(value.detach(), place)
    if isinstance(value, dict):
        result = copy.copy(value)  # keeps the type and a module's _metadata
        for key, item in value.items():
            result[key] = _map(item, change, f"{place}/{key}")
        return result
    if type(value) in (list, tuple):
        return type(value)(
            _map(item, change, f"{place}/{index}") for index, item in enumerate(value)
        )
    return value if type(value) in _UNCHANGING else copy.deepcopy(value)
