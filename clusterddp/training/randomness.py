"""Random streams: seeds as pure functions, and the generators' states as JSON."""

import base64
import importlib
import random
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["Seeds", "mix", "preserved", "read_state", "restore_state", "seed_all"]

_MASK = (1 << 64) - 1
_PYTHON: Any = random.seed.__self__  # type: ignore[attr-defined]  # the shared instance


def mix(*parts: int) -> int:
    """Give 63 well mixed bits that depend on all the numbers and their order.

    Each number goes through one round of splitmix64 (Steele, Lea and Flood,
    OOPSLA 2014), so neighbouring (seed, epoch, index) have unrelated streams.
    """
    return _fold(parts) >> 1


class Seeds:
    """Gives mix(*prefix, number) for many numbers; a quarter of the time of that."""

    def __init__(self, *prefix: int) -> None:
        self._state = _fold(prefix)

    def __getitem__(self, number: int) -> int:
        return _round(self._state, number) >> 1


def _fold(parts: Iterable[int]) -> int:
    state = 0
    for part in parts:
        state = _round(state, part)
    return state


def _round(state: int, part: int) -> int:
    state = (state + part + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def seed_all(seed: int, device: torch.device | None = None) -> None:
    """Seed python, numpy (if it is loaded), torch, and the device's generator."""
    # What random.seed does with a number, less 2.5 us of asking what it is.
    super(random.Random, _PYTHON).seed(seed)
    _PYTHON.gauss_next = None
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    # Not torch.manual_seed: that visits every backend, 154 us against 1 us.
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed(seed)


@contextmanager
def preserved(device: torch.device | None = None) -> Iterator[None]:
    """Leave the global generators as they were, whatever is drawn inside."""
    numpy = _numpy()
    python_state = random.getstate()
    numpy_state = None if numpy is None else numpy.random.get_state()
    torch_state = torch.get_rng_state()
    cuda = device is not None and device.type == "cuda"
    cuda_state = torch.cuda.get_rng_state(device) if cuda and device else None
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if cuda_state is not None and device is not None:
            torch.cuda.set_rng_state(cuda_state, device)


def read_state(device: torch.device) -> dict[str, object]:
    """Give the state of this process's global generators as plain JSON."""
    version, words, gauss = random.getstate()
    state: dict[str, object] = {
        "python": [version, _encode(struct.pack(f"<{len(words)}Q", *words)), gauss],
        "torch": _encode_tensor(torch.get_rng_state()),
    }
    if device.type == "cuda":
        state["cuda"] = _encode_tensor(torch.cuda.get_rng_state(device))
    numpy = _numpy()
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = [kind, _encode(keys.tobytes()), *rest]
    return state


def restore_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put the global generators back to what `read_state` gave."""
    version, words, gauss = state["python"]
    data = base64.b64decode(words)
    random.setstate((version, struct.unpack(f"<{len(data) // 8}Q", data), gauss))
    torch.set_rng_state(_decode_tensor(state["torch"]))
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(_decode_tensor(state["cuda"]), device)
    if "numpy" in state:
        numpy: Any = importlib.import_module("numpy")
        kind, keys, *rest = state["numpy"]
        words = numpy.frombuffer(base64.b64decode(keys), dtype=numpy.uint32)
        numpy.random.set_state((kind, words, *rest))


def _numpy() -> Any:  # noqa: ANN401 - numpy is no dependency, so it has no type here
    return sys.modules.get("numpy")


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _encode_tensor(tensor: torch.Tensor) -> str:
    return _encode(bytes(tensor.tolist()))


def _decode_tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
