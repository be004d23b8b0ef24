"""A byte for every position of a message, that tells it from the others.

A message is looked at as rows of `PERIOD` elements. The byte of an element is a hash of its column plus a hash of its
row, modulo 256. So it costs one addition of bytes to make, the same on all devices and versions, and a message that was
shifted differs in nearly all of its elements: the period is no power of two, and
the hashes are not linear.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PERIOD = 65532
"""Elements of a row: a multiple of 4, which payload_copy.py needs, and no power of two."""
ROWS = 66000
"""With a hash of their own: 8 GiB of bfloat16 are 65,541 rows."""
BLOCK_ROWS = {"cpu": 4, "cuda": 256}
"""Rows that are made and compared at once: what fits a core's cache; on a GPU what keeps it busy, in 64 MiB."""


@dataclass(frozen=True)
class Piece:
    """Positions from `start` to `stop` of a message: all columns from `column` on, of so many rows."""

    start: int
    stop: int
    row: int
    rows: int
    column: int
    columns: int


def pieces(start: int, stop: int, device: str) -> Iterator[Piece]:
    """The positions, cut into part of a row or blocks of whole rows. `device` is its type."""
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
    """The same at any positions (int64, on the CPU): uint8 of their shape."""
    columns, rows = _tables(positions.device)
    return columns[positions % PERIOD] + rows[positions // PERIOD]


@functools.lru_cache(maxsize=2)
def _tables(device: "torch.device") -> tuple["torch.Tensor", "torch.Tensor"]:
    """A byte for each column, and for each row."""
    import torch

    hashed = _hash(torch.arange(PERIOD + ROWS, dtype=torch.int64))
    return hashed[:PERIOD].to(device), hashed[PERIOD:].to(device)


def _hash(numbers: "torch.Tensor") -> "torch.Tensor":
    """A byte for each number: multiplications and shifts by turns, as a finaliser of a hash function does. No product
    reaches 2^63."""
    import torch

    mixed = numbers + 1
    for shift in (15, 13, 16):
        mixed = (mixed * 0x2C1B3C6D) & 0xFFFFFFFF
        mixed = mixed ^ (mixed >> shift)
    return ((mixed >> 7) & 0xFF).to(torch.uint8)
