"""Checksums of pieces put together: equal to zlib's of the whole, byte for byte."""

import random
import zlib
from pathlib import Path

import pytest

from clusterddp.runs import checksums
from clusterddp.runs.checksums import combine, sum_files

MIB = 1 << 20


@pytest.mark.parametrize(
    ("first", "second"),
    [(0, 0), (1, 0), (0, 1), (5, 7), (1000, 1), (3, 65537), (MIB, 12345)],
)
def test_two_pieces_have_the_sum_of_the_whole(first: int, second: int) -> None:
    """Of any lengths, none included."""
    luck = random.Random(first + second)
    one, two = luck.randbytes(first), luck.randbytes(second)
    assert combine(zlib.crc32(one), zlib.crc32(two), second) == zlib.crc32(one + two)


@pytest.mark.parametrize("size", [0, 1, MIB - 1, 3 * MIB, 3 * MIB + 1, 9 * MIB + 77])
def test_a_file_is_summed_up_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Empty, smaller than a piece, some pieces exactly, and some and a rest."""
    monkeypatch.setattr(checksums, "_PIECE", 3 * MIB)
    data, path = random.Random(size).randbytes(size), tmp_path / "file"
    path.write_bytes(data)
    assert sum_files([path]) == {path: (size, zlib.crc32(data))}


def test_what_cannot_be_read_is_told_beside_what_can(tmp_path: Path) -> None:
    """A missing file and a directory; no exception passes over the others."""
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    found = sum_files([tmp_path / "none", tmp_path, path])
    assert isinstance(found[tmp_path / "none"], FileNotFoundError)
    assert isinstance(found[tmp_path], IsADirectoryError)
    assert found[path] == (3, zlib.crc32(b"abc"))
