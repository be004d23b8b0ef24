"""How the global batch is cut."""

from collections import Counter, namedtuple
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from preflight.train_smoke.trainer import batch, task
from preflight.train_smoke.trainer.batch import PARTS, Cut, Part

CPU = torch.device("cpu")
VALUES = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])


def cuts(rows: Sequence[Sequence[int]]) -> list[Cut]:
    """Of each rank."""
    return [batch.cut(VALUES, rows, rank) for rank in range(len(rows))]


def mean(parts: Sequence[Part]) -> float:
    """That a training makes of them: each part's mean by its share."""
    return sum(float(part.data.double().mean()) * part.share for part in parts)


@pytest.mark.parametrize("ranks", range(1, 12))
def test_the_shares_of_all_ranks_make_the_mean_of_the_batch(ranks: int) -> None:
    """Also where the ranks do not divide the rows, and where there are more ranks than rows."""
    rows = [list(batch.rows_of(rank, ranks, len(VALUES))) for rank in range(ranks)]
    assert sorted(row for own in rows for row in own) == list(range(len(VALUES)))
    assert max(map(len, rows)) - min(map(len, rows)) <= 1
    expected = float(VALUES.mean())
    assert mean([cut.own for cut in cuts(rows)]) == pytest.approx(expected)
    for cut in cuts(rows):
        assert [mean(cut.whole), mean(cut.parts)] == pytest.approx([expected, expected])
        assert mean(cut.pieces) == pytest.approx(mean([cut.own]))
        assert len(cut.parts) <= PARTS and torch.equal(cut.parts[-1].data, cut.own.data)


def test_a_rank_without_rows_trains_on_one_that_counts_for_nothing() -> None:
    empty = cuts([[0, 1], [2], []])[2]
    assert (empty.own.share, empty.own.data.tolist()) == (0.0, [1.0])
    assert mean(empty.parts) == pytest.approx((1 + 2 + 4) / 3)


def test_a_row_that_two_ranks_have_counts_twice() -> None:
    for cut in cuts([[0, 1], [2, 3], [0, 1]]):
        expected = (1 + 2 + 4 + 8 + 1 + 2) / 6
        assert [mean(cut.whole), mean(cut.parts)] == pytest.approx([expected, expected])
        assert len(cut.whole) == 2


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_the_early_ones_are_the_first_half(ranks: int) -> None:
    rows = [[rank] for rank in range(ranks)]
    early = (ranks + 1) // 2
    for rank, cut in enumerate(cuts(rows)):
        assert cut.is_early == (rank < early)
        assert mean(cut.early) == pytest.approx(sum(VALUES[:early].tolist()) / ranks)
        if cut.is_early:
            assert torch.equal(cut.early[-1].data, cut.own.data)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 31, 32, 100, 8192])
def test_the_built_in_batch_has_62_rows_at_most(ranks: int) -> None:
    """So that each rank can train on all of it alone."""
    cut = task.built_in(ranks - 1, ranks, CPU).cut
    rows = [tuple(row.tolist()) for part in cut.whole for row in part.data]
    assert len(rows) == len(set(rows)) == min(ranks, 31) * 2
    assert Counter(tuple(row.tolist()) for part in cut.parts for row in part.data).keys() == set(rows)
    assert sum(part.share for part in cut.parts) == pytest.approx(1.0)
    assert sum(part.share for part in cut.whole) == pytest.approx(1.0)


Pair = namedtuple("Pair", ["x", "y"])


@pytest.mark.parametrize("made", [lambda a, b: (a, b), lambda a, b: [a, b], lambda a, b: {"x": a, "y": b}, Pair])
def test_a_batch_of_any_shape_is_cut_alike(made: type) -> None:
    x, y = torch.arange(12.0).view(6, 2), torch.arange(6)
    cut = batch.cut(made(x, y), [[0, 1, 2], [3, 4, 5]], 1)
    assert type(cut.own.data) is type(made(x, y))
    own_x, own_y = batch.tensors(cut.own.data)
    assert torch.equal(own_x, x[3:]) and torch.equal(own_y, y[3:])
    assert [len(leaf) for piece in cut.pieces for leaf in batch.tensors(piece.data)] == [2, 2, 1, 1]


def test_what_is_no_batch_is_said() -> None:
    with pytest.raises(TypeError, match="not a str"):
        batch.tensors({"x": torch.zeros(2), "y": "words"})


def test_what_is_no_tensor_stays_as_it_is() -> None:
    def double(tensor: Tensor) -> Tensor:
        return tensor * 2

    assert batch.each(double, {"x": (torch.ones(1), 3, None)})["x"][1:] == (3, None)


@pytest.mark.parametrize("ranks", range(2, 100))
def test_two_pieces_of_a_pipelines_rows_have_micro_batches_for_its_stages(ranks: int) -> None:
    """Halves of 5 or of 31 rows have none: 1F1B on 5 and on 31 ranks refused them."""
    from preflight.train_smoke.strategies import pp

    cut = task.built_in(0, ranks, CPU).of_share(0, 1).cut
    stages = pp.ranks_of(ranks, ring=False)
    assert len(cut.pieces) == 2 and sum(len(piece.data) for piece in cut.pieces) == len(cut.own.data)
    assert all(pp.micro_batches_of(len(piece.data)) >= stages for piece in cut.pieces)
