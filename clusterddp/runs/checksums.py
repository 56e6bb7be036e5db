"""CRC-32 of large files, piece by piece in parallel.

A CRC is linear: that of two pieces in a row is that of the first, moved on by as many
zeros as the second is long, xor that of the second (zlib's crc32_combine, which Python
does not offer). So pieces are summed up apart, and a file of many GiB is not bound to
the 2 to 3 GB/s of one core.
"""

import os
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

__all__ = ["combine", "sum_files"]

_POLYNOMIAL = 0xEDB88320  # of CRC-32; bit 31 stands for x**0, bit 0 for x**31
_ONE, _X_TO_THE_8 = 1 << 31, 1 << 23
_PIECE = 64 << 20
_BLOCK = 1 << 20
_MOST_THREADS = 8


def sum_files(paths: Sequence[Path]) -> dict[Path, tuple[int, int] | OSError]:
    """Give bytes and CRC-32 of each file, or why it could not be read to its end."""
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(max_workers=threads) as pool:
        asked = {path: _ask(pool, path) for path in paths}
        return {path: _put_together(pieces) for path, pieces in asked.items()}


def combine(first: int, second: int, length: int) -> int:
    """Give the CRC-32 of two pieces in a row.

    Args:
        first: that of the first.
        second: that of the second.
        length: bytes of the second.
    """
    return _multiply(_zeros(length), first) ^ second


Piece = Future[tuple[int, int]]


def _ask(pool: ThreadPoolExecutor, path: Path) -> list[Piece] | OSError:
    try:
        size = path.stat().st_size
    except OSError as error:
        return error
    starts = range(0, max(size, 1), _PIECE)
    return [pool.submit(_sum_piece, path, start) for start in starts]


def _put_together(pieces: list[Piece] | OSError) -> tuple[int, int] | OSError:
    if isinstance(pieces, OSError):
        return pieces
    size, crc = 0, 0
    try:
        for length, part in (piece.result() for piece in pieces):
            size, crc = size + length, combine(crc, part, length)
    except OSError as error:
        return error
    return size, crc


def _sum_piece(path: Path, start: int) -> tuple[int, int]:
    """Read at most one piece; reading and summing leave the interpreter to others."""
    length, crc = 0, 0
    block = memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while count := file.readinto(block[: _PIECE - length]):
            crc = zlib.crc32(block[:count], crc)
            length += count
    return length, crc


@lru_cache(maxsize=64)
def _zeros(length: int) -> int:
    """Give x**(8 * length) modulo the polynomial: what so many zeros multiply with."""
    product, square = _ONE, _X_TO_THE_8
    while length:
        if length & 1:
            product = _multiply(square, product)
        square = _multiply(square, square)
        length >>= 1
    return product


def _multiply(a: int, b: int) -> int:
    """Multiply two polynomials over GF(2), modulo that of CRC-32."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product
