"""What ranks send to be copied, and what stands where something else should.

A chunk is what one rank sends to one rank, or to all. Its element at position i is 1 + (digit + byte(i)) mod 256: the
digits are, in turn, the sender's lower and upper 7 bits and the receiver's (0 where all get the same), and byte(i) is a
hash of the position in the chunk. So any 16 elements in a row say whose they are and where they belong. The values, 1
to 256, are exact in bfloat16 and float32, and the result holds EMPTY before: what never came is seen, too.

Nothing is unseen: a copy is compared bit by bit, but for the sign of zero, which no value has.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from preflight.checks.comm.shared.payload_pattern import BLOCK_ROWS, PERIOD, bytes_at, bytes_of, pieces
from preflight.checks.comm.shared.readings import Whose, Wrong
from preflight.checks.comm.shared.wrong_elements import MOST, count, sample, told

if TYPE_CHECKING:
    import torch

Tag = tuple[int, int]
"""(sender, receiver), as ranks of the group."""
EMPTY = -1.0
ENOUGH = 16
"""Elements in a row: each of the four digits four times."""


def fill(values: "torch.Tensor", tags: Sequence[Tag]) -> None:
    """Chunks of equal size, one for each tag. `values` has one dimension."""
    for start, stop, right in expected(values.numel(), tags, values.device):
        values[start:stop].copy_(right)


def expected(
    elements: int, tags: Sequence[Tag], device: "torch.device"
) -> Iterator[tuple[int, int, "torch.Tensor"]]:  # fmt: skip
    """(from, to, int16 values) of these chunks, piece by piece."""
    import torch

    chunk = elements // len(tags)
    words = torch.tensor([_word(tag) for tag in tags], dtype=torch.int32).to(device)
    at_once = max(1, PERIOD * BLOCK_ROWS.get(device.type, 16) // chunk)
    for first in range(0, len(tags), at_once):
        some = words[first : first + at_once]
        for piece in pieces(0, chunk, device.type):
            values = _values(some, bytes_of(piece, device).view(1, -1))
            yield from _laid(values, first * chunk, piece.start, chunk)


def _laid(
    values: "torch.Tensor", base: int, start: int, chunk: int
) -> Iterator[tuple[int, int, "torch.Tensor"]]:  # fmt: skip
    """Rows that are whole chunks lie one after the other; parts of chunks lie apart."""
    if values.shape[1] == chunk:
        yield base, base + values.numel(), values.view(-1)
        return
    for number, row in enumerate(values):
        at = base + number * chunk + start
        yield at, at + row.numel(), row


def _word(tag: Tag) -> int:
    """Its four digits, of 8 bits each, the first one lowest (as memory holds them)."""
    sender, receiver = tag
    return sender % 128 | sender // 128 << 8 | receiver % 128 << 16 | receiver // 128 << 24


def _values(words: "torch.Tensor", of_position: "torch.Tensor") -> "torch.Tensor":
    """int16 of shape (chunks, positions)."""
    import torch

    positions = of_position.shape[1]
    digits = words[:, None].expand(-1, -(-positions // 4)).contiguous().view(torch.uint8)[:, :positions]
    return (digits + of_position).to(torch.int16).add_(1)


# Whose it is


def compare(result: "torch.Tensor", tags: Sequence[Tag], ranks: int, addressed: bool) -> Wrong | None:
    """What is wrong in a result; every element is compared, with ranks of the group. `addressed`: whether each
    receiver is sent something else."""
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
    its = _whose(result[first:last].cpu().to(torch.float64), position, ranks, addressed)
    return told(found, elements, result.numel(), expected_first, senders.pop() if len(senders) == 1 else None, its)


def _wrong_chunks(result: "torch.Tensor", piece: "tuple[int, int, torch.Tensor]", chunk: int) -> set[int]:
    """Numbers of the chunks that a piece finds wrong: a piece is whole chunks, or a part of one."""
    start, stop, values = piece
    differs = (result[start:stop] != values).view(-1, min(chunk, stop - start))
    return {start // chunk + number for number in differs.any(1).nonzero().flatten().tolist()}


def _whose(got: "torch.Tensor", position: int, ranks: int, addressed: bool) -> Whose | None:
    """What all these elements in a row are, wherever they came from: None where they are no chunk's at this place."""
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
