"""The effective batch, and learning rates for it."""

from collections.abc import Collection

import pytest

from preflight.sdk.effective_batch import in_words, learning_rate


@pytest.mark.parametrize(
    ("rows", "ranks", "pieces", "base", "text"),
    [
        (32, 8, 4, 256, "32 per rank x 8 ranks x 4 accumulation = 1,024"
                        "; linear scaling from 256 gives 4x the learning rate"),
        (32, 8, 1, None, "32 per rank x 8 ranks = 256"),
        ([33, 32, 32], 3, 1, None, "32 or 33 per rank x 3 ranks = 97"),
        ([1, 2, 3], 3, 2, 8, "1 to 3 per rank x 3 ranks x 2 accumulation = 12"
                             "; linear scaling from 8 gives 1.5x the learning rate"),
        (2, 1, 1, 6, "2 per rank x 1 rank = 2; linear scaling from 6 gives 0.333x the learning rate"),
    ],
)  # fmt: skip
def test_the_effective_batch_in_words(
    rows: int | Collection[int], ranks: int, pieces: int, base: int | None, text: str
) -> None:
    assert in_words(rows, ranks, pieces, base) == text


@pytest.mark.parametrize(
    ("ranks", "base", "text"),
    [
        (4, None, "8 per rank x 4 ranks = 32 (one rank alone: 8); a learning rate of 0.0003 for a batch of 8 becomes "
                  "0.0012 by the linear rule (SGD) or 0.0006 by the square-root rule (Adam), either after a warm-up "
                  "from 0.0003"),
        (4, 32, "8 per rank x 4 ranks = 32 (one rank alone: 8); a learning rate of 0.0003 for a batch of 32 stays as "
                "it is"),
        (2, 64, "8 per rank x 2 ranks = 16 (one rank alone: 8); a learning rate of 0.0003 for a batch of 64 becomes "
                "7.5e-05 by the linear rule (SGD) or 0.00015 by the square-root rule (Adam)"),
    ],
)  # fmt: skip
def test_what_becomes_of_a_learning_rate(ranks: int, base: int | None, text: str) -> None:
    assert in_words(8, ranks, base=base, rate=3e-4) == text


def test_a_learning_rate_is_a_number_above_0() -> None:
    assert learning_rate("3e-4") == 3e-4
    for wrong in ("0", "-1", "inf", "nan", "fast"):
        with pytest.raises(ValueError, match=r"not a learning rate above 0|could not convert"):
            learning_rate(wrong)
