"""A byte for every position of a message, which distinguishes it from the others.

A message is treated as rows of `PERIOD` elements. An element's byte is a hash of its column plus a hash of its row,
modulo 256. So it costs one addition of bytes, is the same on all devices and versions, and a shifted message differs in
nearly all elements: the period is not a power of two, and the hashes are not linear.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PERIOD = 65532
"""Elements per row: a multiple of 4, which payload_copy.py needs, but not a power of two."""
ROWS = 66000
"""Rows with distinct hashes: 8 GiB of bfloat16 are 65,541 rows."""
BLOCK_ROWS = {"cpu": 4, "cuda": 256}
"""Rows to make and compare at once: what fits a core's cache, or what keeps a GPU busy, in 64 MiB."""


@dataclass(frozen=True)
class Piece:
    """Positions `start` to `stop` of a message: all columns from `column` on, in `rows` rows."""

    start: int
    stop: int
    row: int
    rows: int
    column: int
    columns: int


def pieces(start: int, stop: int, device: str) -> Iterator[Piece]:
    """The positions, split into parts of a row or blocks of whole rows. `device` is a device type."""
    at = start
    while at < stop:
        row, column = divmod(at, PERIOD)
        if column or stop - at < PERIOD:
            columns = min(PERIOD - column, stop - at)
            piece = Piece(at, at + columns, row, 1, column, columns)
        else:
            rows = min((stop - at) // PERIOD, BLOCK_ROWS.get(device, 16))
            piece = Piece(at, at + rows * PERIOD, row, rows, 0, PERIOD)
        yield piece
        at = piece.stop


def bytes_of(piece: Piece, device: "torch.device") -> "torch.Tensor":
    """uint8 of shape (rows, columns)."""
    columns, rows = _tables(device)
    of_rows = rows[piece.row : piece.row + piece.rows]
    return columns[piece.column : piece.column + piece.columns][None, :] + of_rows[:, None]


def bytes_at(positions: "torch.Tensor") -> "torch.Tensor":
    """The bytes at any positions (int64, on the CPU): uint8 of the same shape."""
    columns, rows = _tables(positions.device)
    return columns[positions % PERIOD] + rows[positions // PERIOD]


@functools.lru_cache(maxsize=2)
def _tables(device: "torch.device") -> tuple["torch.Tensor", "torch.Tensor"]:
    """A byte for each column, and for each row."""
    import torch

    hashed = _hash(torch.arange(PERIOD + ROWS, dtype=torch.int64))
    return hashed[:PERIOD].to(device), hashed[PERIOD:].to(device)


def _hash(numbers: "torch.Tensor") -> "torch.Tensor":
    """A byte for each number, by alternate multiplications and shifts like a hash function's finalizer. No product
    reaches 2^63."""
    import torch

    mixed = numbers + 1
    for shift in (15, 13, 16):
        mixed = (mixed * 0x2C1B3C6D) & 0xFFFFFFFF
        mixed = mixed ^ (mixed >> shift)
    return ((mixed >> 7) & 0xFF).to(torch.uint8)
