"""The order of the samples in an epoch: a permutation drawn from (seed, epoch)."""

import torch
from torch import Tensor

from clusterddp.training.randomness import mix

__all__ = ["LARGEST_LIST", "Order"]

LARGEST_LIST = 1 << 24
"""Data with more samples than this (a list of 128 MiB) are not listed."""
_STREAM = 0x6F72646572  # "order": keeps this stream apart from the others
_ROUNDS = 6
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)  # the golden ratio, as int64


class Order:
    """Gives parts of the permutation of each epoch.

    Up to 2**24 samples the permutation is drawn and kept, one epoch at a time.
    Beyond that every rank would hold 8 bytes a sample (8 GB for 1e9) and draw them
    anew at every start; there each place is computed by itself, by a Feistel network
    over the next even number of bits, walked until it falls inside (Black and
    Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
    """

    def __init__(self, size: int, seed: int) -> None:
        """Draw nothing yet.

        Args:
            size: samples in the data.
            seed: what all orders follow from.
        """
        self._size = size
        self._seed = seed
        self._half = max(1, (size - 1).bit_length() + 1 >> 1)
        self._list: tuple[int, Tensor] | None = None

    def slice(self, epoch: int, first: int, count: int) -> Tensor:
        """Give the samples at places [first, first + count) of an epoch, int64."""
        if self._size > LARGEST_LIST:
            return self._walk(epoch, torch.arange(first, first + count))
        if self._list is None or self._list[0] != epoch:
            generator = torch.Generator().manual_seed(mix(self._seed, _STREAM, epoch))
            self._list = (epoch, torch.randperm(self._size, generator=generator))
        return self._list[1][first : first + count]

    def _walk(self, epoch: int, places: Tensor) -> Tensor:
        keys = [mix(self._seed, _STREAM, epoch, each) for each in range(_ROUNDS)]
        found = self._encrypt(places, keys)
        while bool((outside := found >= self._size).any()):
            found[outside] = self._encrypt(found[outside], keys)
        return found

    def _encrypt(self, values: Tensor, keys: list[int]) -> Tensor:
        """Permute the numbers of 2 * half bits."""
        mask = (1 << self._half) - 1
        left, right = values >> self._half, values & mask
        for key in keys:
            # int64 products wrap; of the 64 bits the upper ones are the mixed ones.
            mixed = (right + key) * _MULTIPLIER
            mixed = (mixed ^ (mixed >> 29)) * _MULTIPLIER
            left, right = right, left ^ ((mixed >> (63 - self._half)) & mask)
        return (left << self._half) | right
