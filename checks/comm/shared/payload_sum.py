"""What ranks send to be summed, and whose contribution a wrong sum lacks or has too often.

Rank r sends at position g: a(g) * w(r, g). a is 1 to UNITS, by a hash of the position. w is 3 for the owner of g, which
is every rank in turn, 1 for the ranks up to WINDOW - 1 behind it, and 0 for the others. All sums are whole numbers up
to 180, and up to 240 where a contribution is counted three times: bfloat16 holds them exactly up to 256, so the order
of summing cannot matter, however many ranks there are.

An error divided by a(g) is the weight of what is lost or too much. One lost contribution of rank r is -3 where r is the
owner, and -1 elsewhere: so r is known. Only an error that is so at all the wrong elements, several of the owner's among
them, names a rank; one single wrong element never does.

What cannot be seen: two contributions that change places (their sum is right). A flipped bit in what one rank sends
that is rounded away in the sum, as the last bits are, or one in a zero that leaves it tiny; in training it would be as
harmless. Every flip in a result is seen.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from preflight.checks.comm.shared.payload_pattern import PERIOD, Piece, bytes_at, bytes_of, pieces
from preflight.checks.comm.shared.readings import Whose, Wrong
from preflight.checks.comm.shared.wrong_elements import Sample, count, sample, told

if TYPE_CHECKING:
    import torch

WINDOW, UNITS = 16, 10
OWNED = 4
"""Wrong elements of the culprit's own, and of others', that are needed to name it."""
MOST_TO_TRY = 64


def fill(values: "torch.Tensor", rank: int, ranks: int) -> None:
    """What this rank of the group sends, from position 0 on. `values` has one dimension."""
    device = values.device
    for piece in pieces(0, values.numel(), device.type):
        sent = _unit(piece, device).mul_(_weights(piece, rank, ranks, device))
        values[piece.start : piece.stop].view(piece.rows, piece.columns).copy_(sent)


def expected(start: int, stop: int, ranks: int, device: "torch.device") -> Iterator[tuple[int, int, "torch.Tensor"]]:
    """The sums of all ranks at these positions: (from, to, int16 values), piece by piece."""
    total = min(ranks, WINDOW) + 2
    for piece in pieces(start, stop, device.type):
        yield piece.start - start, piece.stop - start, _unit(piece, device).mul_(total).view(-1)


def _unit(piece: Piece, device: "torch.device") -> "torch.Tensor":
    """a(g): int16 of shape (rows, columns)."""
    import torch

    return bytes_of(piece, device).to(torch.int16).mul_(UNITS).bitwise_right_shift_(8).add_(1)


def _weights(piece: Piece, rank: int, ranks: int, device: "torch.device") -> "torch.Tensor":
    """w(rank, g), of the same shape. The owner is (row + column) % ranks: each row is the one before, moved by one."""
    import torch

    first = (piece.row + piece.column) % ranks
    along = torch.arange(first, first + piece.columns + piece.rows, device=device, dtype=torch.int32)
    behind = along.neg_().add_(rank).remainder_(ranks)  # how far this rank stands behind the owner
    weights = (behind < WINDOW).to(torch.int16).add_((behind == 0).to(torch.int16), alpha=2)
    return weights.as_strided((piece.rows, piece.columns), (1, 1))


# Whose it was


def compare(result: "torch.Tensor", start: int, chunk: int, ranks: int) -> Wrong | None:
    """What is wrong in a result; every element is compared. Whose is in ranks of the group (see `whose`)."""

    def right() -> Iterator[tuple[int, int, "torch.Tensor"]]:
        return expected(start, start + result.numel(), ranks, result.device)

    elements = count(result, right())
    if not elements:
        return None
    found = sample(result, right(), elements)
    first = float(units_at(found.index[:1] + start)) * (min(ranks, WINDOW) + 2)
    return told(found, elements, result.numel(), first, None, whose(found, start, chunk, ranks))


def whose(found: Sample, start: int, chunk: int, ranks: int) -> Whose | None:
    """Whose contribution explains all the wrong elements of a result that begins at position `start`; `chunk`: elements
    of each rank's part of a reduce-scatter, 0 where all get everything. Ranks are the group's."""
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
    """One rank's contribution counted 0, 2 or more times, or as a part of itself."""
    strongest = int(weight.abs().argmax())
    rank, more = int(owner[strongest]), float(weight[strongest]) / 3
    its = weights_at(positions, rank, ranks)
    slack = 1e-9 if exact else 1e-3 * abs(more)  # float32 rounds what is no whole number
    own = int((owner == rank).sum())
    fits = bool(((weight - its * more).abs() <= slack * 3).all())
    if not fits or not OWNED <= own <= positions.numel() - OWNED:
        return None
    return {"what": "times", "rank": rank, "other": None, "times": round(1 + more, 4)}


def _instead(weight: "torch.Tensor", owner: "torch.Tensor", positions: "torch.Tensor", ranks: int) -> Whose | None:
    """One rank's contribution in the place of another's: too much where the one is the owner, too little where the
    other is."""
    other, rank = int(owner[weight.argmax()]), int(owner[weight.argmin()])
    off = weights_at(positions, other, ranks) - weights_at(positions, rank, ranks)
    enough = min(int((owner == other).sum()), int((owner == rank).sum())) >= OWNED
    if other == rank or not enough or not bool(((weight - off).abs() < 1e-9).all()):
        return None
    return {"what": "instead", "rank": rank, "other": other, "times": None}


def _meant(found: Sample, chunk: int, ranks: int) -> Whose | None:
    """The whole part of another rank, in its right order."""
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
