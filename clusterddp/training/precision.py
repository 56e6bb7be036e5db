"""Precision: autocast for bf16 and fp16, and the loss scale that fp16 needs."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["Precision", "PrecisionName"]

PrecisionName = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """In which numbers the forward pass computes; weights stay as the model has them.

    Args of its methods are the trainer's; `scaler` is None unless the loss is scaled.
    """

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        """Prepare.

        Args:
            name: `fp32` leaves the model alone; `bf16` and `fp16` autocast.
            device: where this rank computes.
        """
        self.device = device
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None
        self.autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        if name in _DTYPES:
            self.autocast = lambda: torch.autocast(device.type, _DTYPES[name])

    def scale(self, loss: Tensor) -> Tensor:
        """Give what backward starts from."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def state(self) -> dict[str, Any]:
        """Give the scale and how long it has held; empty without one."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave; nothing for a run that had no scale."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(dict(state))
