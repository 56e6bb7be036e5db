"""Prefetching: the next batch goes to the GPU while this one is computed with."""

from collections.abc import Callable
from typing import Protocol

import torch

from clusterddp.training.data import move
from clusterddp.training.sampler import Span

__all__ = ["Lane", "Prefetcher", "SideStream", "lane_to"]


class Lane(Protocol):
    """A way to the device beside the one on which is computed."""

    def send(self, batch: object) -> object:
        """Begin to copy a batch; give what will be the copy."""

    def arrive(self) -> None:
        """Let what is computed from now on wait for all copies so far."""


class Prefetcher:
    """Gives this rank's parts of each global batch, one batch ahead of its use."""

    def __init__(
        self,
        load: Callable[[Span], list[object]],
        following: Callable[[Span], Span | None],
        lane: Lane | None,
    ) -> None:
        """Load nothing yet.

        Args:
            load: gives the parts of a global batch in host memory.
            following: names the global batch after one; None after the last.
            lane: None where host memory is the device's: nothing is loaded ahead.
        """
        self._load, self._following, self._lane = load, following, lane
        self._ahead: tuple[Span, list[object]] | None = None

    def take(self, span: Span) -> list[object]:
        """Give the parts of a global batch on the device, and send the next one."""
        if self._lane is None:
            return self._load(span)
        ahead, self._ahead = self._ahead, None
        is_there = ahead is not None and ahead[0] == span
        parts = ahead[1] if ahead is not None and is_there else self._send(span)
        self._lane.arrive()
        following = self._following(span)
        if following is not None:
            self._ahead = following, self._send(following)
        return parts

    def _send(self, span: Span) -> list[object]:
        lane = self._lane
        parts = self._load(span)
        return parts if lane is None else [lane.send(part) for part in parts]


class SideStream:
    """A CUDA stream of its own for copies from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream; batches are copied to this device."""
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, batch: object) -> object:
        """Begin to copy a batch; give what will be the copy.

        Its memory may be that of an earlier batch, which Python has let go of while
        the GPU still computes with it. So the copy waits for all that is under way:
        the step before, as long as it is begun before the next step is.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            return move(batch, self._device)

    def arrive(self) -> None:
        """Let what is computed from now on wait for all copies so far."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


def lane_to(device: torch.device) -> Lane | None:
    """Give the lane to a device; None to a CPU, where there is nothing to copy."""
    return SideStream(device) if device.type == "cuda" else None
