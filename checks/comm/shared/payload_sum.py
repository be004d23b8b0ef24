"""Payloads for collectives that sum, and whose contribution a wrong sum lacks or counts too often.

Rank r sends a(g) * w(r, g) at position g. a is 1 to UNITS, from a hash of the position. w is 3 for the owner of g, each
rank in turn, 1 for the ranks up to WINDOW - 1 behind it, and 0 for the others. All sums are whole numbers up to 180, or
up to 240 if a contribution is counted three times: bfloat16 is exact up to 256, so the order of summing cannot matter,
however many ranks there are.

An error divided by a(g) is the weight of what is missing or in excess. A lost contribution of rank r is -3 where r is
the owner, and -1 elsewhere, which identifies r. A rank is named only if this fits all wrong elements, several of the
owner's among them; a single wrong element never names a rank.

What stays undetected: two contributions that change places (their sum is right), and a flipped bit in what a rank sends
that is rounded away in the sum, like the last bits, or that leaves a zero tiny; in training it would be as harmless.
Every flip in a result is detected.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from preflight.checks.comm.shared.payload_pattern import PERIOD, Piece, bytes_at, bytes_of, pieces
from preflight.checks.comm.shared.readings import Whose, Wrong
from preflight.checks.comm.shared.wrong_elements import Sample, count, sample, to_wrong

if TYPE_CHECKING:
    import torch

WINDOW, UNITS = 16, 10
OWNED = 4
"""How many wrong elements, both the culprit's own and others', are needed to name it."""
MOST_TO_TRY = 64


def fill(values: "torch.Tensor", rank: int, ranks: int) -> None:
    """Fills `values`, which has one dimension, with what this rank of the group sends, from position 0 on."""
    device = values.device
    for piece in pieces(0, values.numel(), device.type):
        sent = _unit(piece, device).mul_(_weights(piece, rank, ranks, device))
        values[piece.start : piece.stop].view(piece.rows, piece.columns).copy_(sent)


def expected(start: int, stop: int, ranks: int, device: "torch.device") -> Iterator[tuple[int, int, "torch.Tensor"]]:
    """The sums of all ranks at these positions: (start, end, int16 values), piece by piece."""
    total = min(ranks, WINDOW) + 2
    for piece in pieces(start, stop, device.type):
        yield piece.start - start, piece.stop - start, _unit(piece, device).mul_(total).view(-1)


def _unit(piece: Piece, device: "torch.device") -> "torch.Tensor":
    """a(g): int16 of shape (rows, columns)."""
    import torch

    return bytes_of(piece, device).to(torch.int16).mul_(UNITS).bitwise_right_shift_(8).add_(1)


def _weights(piece: Piece, rank: int, ranks: int, device: "torch.device") -> "torch.Tensor":
    """w(rank, g), of the same shape. The owner is (row + column) % ranks: each row is the previous one shifted."""
    import torch

    first = (piece.row + piece.column) % ranks
    along = torch.arange(first, first + piece.columns + piece.rows, device=device, dtype=torch.int32)
    behind = along.neg_().add_(rank).remainder_(ranks)  # how far this rank is behind the owner
    weights = (behind < WINDOW).to(torch.int16).add_((behind == 0).to(torch.int16), alpha=2)
    return weights.as_strided((piece.rows, piece.columns), (1, 1))


# Whose contribution it was


def compare(result: "torch.Tensor", start: int, chunk: int, ranks: int) -> Wrong | None:
    """What is wrong in a result, in ranks of the group (see `whose`); compares every element."""

    def right() -> Iterator[tuple[int, int, "torch.Tensor"]]:
        return expected(start, start + result.numel(), ranks, result.device)

    elements = count(result, right())
    if not elements:
        return None
    found = sample(result, right(), elements)
    first = float(units_at(found.index[:1] + start)) * (min(ranks, WINDOW) + 2)
    return to_wrong(found, elements, result.numel(), first, None, whose(found, start, chunk, ranks))


def whose(found: Sample, start: int, chunk: int, ranks: int) -> Whose | None:
    """Whose contribution explains all wrong elements of a result that starts at position `start`; None if no rank's.
    `chunk`: elements per rank's part of a reduce-scatter, 0 if all get everything. Ranks are those of the group."""
    positions = found.index + start
    if ranks == 1 or positions.numel() < 2 * OWNED:
        return None
    units = units_at(positions)
    error = found.got - units * (min(ranks, WINDOW) + 2)
    owner = owners_at(positions, ranks)
    weight = error / units
    exact = found.is_exact
    return (
        _times(weight, owner, positions, ranks, exact)
        or _instead(weight, owner, positions, ranks)
        or (_meant(found, chunk, ranks) if chunk else None)
    )


def units_at(positions: "torch.Tensor") -> "torch.Tensor":
    """a(g) at any positions, on the CPU: float64."""
    import torch

    return ((bytes_at(positions).to(torch.int64) * UNITS) >> 8).add_(1).to(torch.float64)


def owners_at(positions: "torch.Tensor", ranks: int) -> "torch.Tensor":
    return (positions // PERIOD + positions % PERIOD) % ranks


def weights_at(positions: "torch.Tensor", rank: int, ranks: int) -> "torch.Tensor":
    """w(rank, g) at any positions: float64."""
    import torch

    behind = (rank - owners_at(positions, ranks)) % ranks
    return (behind < WINDOW).to(torch.float64) + 2.0 * (behind == 0).to(torch.float64)


def _times(
    weight: "torch.Tensor", owner: "torch.Tensor", positions: "torch.Tensor", ranks: int, exact: bool
) -> Whose | None:
    """One rank's contribution, counted 0, 2 or more times, or in part."""
    strongest = int(weight.abs().argmax())
    rank, more = int(owner[strongest]), float(weight[strongest]) / 3
    rank_weights = weights_at(positions, rank, ranks)
    slack = 1e-9 if exact else 1e-3 * abs(more)  # float32 rounds fractions
    own = int((owner == rank).sum())
    fits = bool(((weight - rank_weights * more).abs() <= slack * 3).all())
    if not fits or not OWNED <= own <= positions.numel() - OWNED:
        return None
    return {"what": "times", "rank": rank, "other": None, "times": round(1 + more, 4)}


def _instead(weight: "torch.Tensor", owner: "torch.Tensor", positions: "torch.Tensor", ranks: int) -> Whose | None:
    """One rank's contribution in the place of another's: too much where the first is the owner, too little where the
    second is."""
    other, rank = int(owner[weight.argmax()]), int(owner[weight.argmin()])
    off = weights_at(positions, other, ranks) - weights_at(positions, rank, ranks)
    enough = min(int((owner == other).sum()), int((owner == rank).sum())) >= OWNED
    if other == rank or not enough or not bool(((weight - off).abs() < 1e-9).all()):
        return None
    return {"what": "instead", "rank": rank, "other": other, "times": None}


def _meant(found: Sample, chunk: int, ranks: int) -> Whose | None:
    """Another rank's entire part, in the right order."""
    import torch

    starts = torch.arange(ranks, dtype=torch.int64) * chunk
    total = min(ranks, WINDOW) + 2
    few = slice(0, MOST_TO_TRY)
    tried = units_at(starts[:, None] + found.index[few][None, :]) * total
    fitting = [int(rank) for rank in (tried == found.got[few]).all(1).nonzero().flatten()]
    if len(fitting) != 1:
        return None
    (rank,) = fitting
    whole = bool((units_at(found.index + rank * chunk) * total == found.got).all())
    return {"what": "meant", "rank": rank, "other": None, "times": None} if whole else None
