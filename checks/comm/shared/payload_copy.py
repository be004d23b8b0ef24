"""Payloads for collectives that copy, and how to find out where wrong data came from.

A chunk is what one rank sends to one rank, or to all. Its element at position i is 1 + (digit + byte(i)) mod 256: the
digits are, in turn, the sender's lower and upper 7 bits and the receiver's (0 if all get the same), and byte(i) is a
hash of the position in the chunk. So any 16 consecutive elements reveal whose they are and where they belong. The
values, 1 to 256, are exact in bfloat16 and float32, and the result is EMPTY before, so missing data shows, too.

No error goes unnoticed: copies are compared bit by bit, except for the sign of zero, which no value is.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from preflight.checks.comm.shared.payload_pattern import BLOCK_ROWS, PERIOD, bytes_at, bytes_of, pieces
from preflight.checks.comm.shared.readings import Whose, Wrong
from preflight.checks.comm.shared.wrong_elements import MOST, count, sample, to_wrong

if TYPE_CHECKING:
    import torch

Tag = tuple[int, int]
"""(sender, receiver), as ranks of the group."""
EMPTY = -1.0
ENOUGH = 16
"""Consecutive elements: each of the four digits four times."""


def fill(values: "torch.Tensor", tags: Sequence[Tag]) -> None:
    """Fills `values`, which has one dimension, with equal chunks, one per tag."""
    for start, stop, right in expected(values.numel(), tags, values.device):
        values[start:stop].copy_(right)


def expected(elements: int, tags: Sequence[Tag], device: "torch.device") -> Iterator[tuple[int, int, "torch.Tensor"]]:
    """(start, end, int16 values) of these chunks, piece by piece."""
    import torch

    chunk = elements // len(tags)
    words = torch.tensor([_word(tag) for tag in tags], dtype=torch.int32).to(device)
    at_once = max(1, PERIOD * BLOCK_ROWS.get(device.type, 16) // chunk)
    for first in range(0, len(tags), at_once):
        some = words[first : first + at_once]
        for piece in pieces(0, chunk, device.type):
            values = _values(some, bytes_of(piece, device).view(1, -1))
            yield from _laid(values, first * chunk, piece.start, chunk)


def _laid(values: "torch.Tensor", base: int, start: int, chunk: int) -> Iterator[tuple[int, int, "torch.Tensor"]]:
    """Places rows: whole chunks are contiguous, parts of chunks are not."""
    if values.shape[1] == chunk:
        yield base, base + values.numel(), values.view(-1)
        return
    for number, row in enumerate(values):
        at = base + number * chunk + start
        yield at, at + row.numel(), row


def _word(tag: Tag) -> int:
    """A tag's four digits, 8 bits each, the first one lowest (as in memory)."""
    sender, receiver = tag
    return sender % 128 | sender // 128 << 8 | receiver % 128 << 16 | receiver // 128 << 24


def _values(words: "torch.Tensor", of_position: "torch.Tensor") -> "torch.Tensor":
    """int16 of shape (chunks, positions)."""
    import torch

    positions = of_position.shape[1]
    digits = words[:, None].expand(-1, -(-positions // 4)).contiguous().view(torch.uint8)[:, :positions]
    return (digits + of_position).to(torch.int16).add_(1)


# Whose data it is


def compare(result: "torch.Tensor", tags: Sequence[Tag], ranks: int, addressed: bool) -> Wrong | None:
    """What is wrong in a result, in ranks of the group; compares every element. `addressed`: whether each receiver is
    sent different data."""
    import torch

    def right() -> Iterator[tuple[int, int, "torch.Tensor"]]:
        return expected(result.numel(), tags, result.device)

    elements = count(result, right())
    if not elements:
        return None
    chunk = result.numel() // len(tags)
    wrong_in = {number for piece in right() for number in _wrong_chunks(result, piece, chunk)}
    found = sample(result, right(), elements)
    first, number = int(found.index[0]), int(found.index[0]) // chunk
    in_first = found.index[found.index // chunk == number]
    last = min(int(in_first[-1]) + 1, first + MOST)
    senders = {tags[which][0] for which in wrong_in}
    position, digit = first % chunk, _word(tags[number]) >> 8 * (first % chunk % 4) & 0xFF
    expected_first = 1.0 + (digit + int(bytes_at(torch.tensor([position]))[0])) % 256
    origin = _whose(result[first:last].cpu().to(torch.float64), position, ranks, addressed)
    return to_wrong(
        found, elements, result.numel(), expected_first, senders.pop() if len(senders) == 1 else None, origin
    )


def _wrong_chunks(result: "torch.Tensor", piece: "tuple[int, int, torch.Tensor]", chunk: int) -> set[int]:
    """Numbers of the chunks that are wrong in a piece, which is whole chunks or a part of one."""
    start, stop, values = piece
    differs = (result[start:stop] != values).view(-1, min(chunk, stop - start))
    return {start // chunk + number for number in differs.any(1).nonzero().flatten().tolist()}


def _whose(got: "torch.Tensor", position: int, ranks: int, addressed: bool) -> Whose | None:
    """Whose data these consecutive elements are; None if no chunk has them at this position."""
    import torch

    if got.numel() < ENOUGH or not bool(((got >= 1) & (got <= 256) & (got == got.round())).all()):
        return None
    positions = torch.arange(position, position + got.numel())
    digits = (got.to(torch.int64) - 1 - bytes_at(positions)) % 256
    told_by = [digits[positions % 4 == place] for place in range(4)]
    low, high, to_low, to_high = (int(values[0]) for values in told_by)
    if not all(bool((values == values[0]).all()) and int(values[0]) < 128 for values in told_by):
        return None
    sender, receiver = low + 128 * high, to_low + 128 * to_high
    if max(sender, receiver) >= ranks:
        return None
    return {"what": "sent", "rank": sender, "other": receiver if addressed else None, "times": None}
