"""Says in words how many samples one step of all ranks trains on, and how to scale the learning rate for it."""

import math
from collections.abc import Collection

from preflight.core.rank_ranges import count


def in_words(
    rows_a_rank: int | Collection[int], ranks: int, pieces: int = 1, base: int | None = None, rate: float | None = None
) -> str:
    """ "8 per rank x 4 ranks x 2 accumulation = 64; ...", for ranks that see different samples: `rows_a_rank` in each
    of `pieces` micro-batches (one number per rank if they differ). `rate`: a learning rate that was tuned for a batch
    of `base` (default: one rank's batch); the text gives the scaled rates."""
    each = [rows_a_rank] * ranks if isinstance(rows_a_rank, int) else sorted(rows_a_rank)
    rows, alone = sum(each) * pieces, max(each) * pieces
    counts = [f"{number:,}" for number in dict.fromkeys(each)]
    own = " or ".join(counts) if len(counts) < 3 else f"{counts[0]} to {counts[-1]}"
    times = f" x {pieces} accumulation" if pieces > 1 else ""
    text = f"{own} per rank x {count(ranks, 'rank')}{times} = {rows:,}"
    if rate is not None:
        return f"{text} (one rank alone: {alone:,}); {_rates(rows, base or alone, rate)}"
    return f"{text}; linear scaling from {base:,} gives {rows / base:.3g}x the learning rate" if base else text


def _rates(rows: int, base: int, rate: float) -> str:
    """The rate scaled by the linear rule (Goyal et al. 2017, Accurate, Large Minibatch SGD, arXiv:1706.02677) and by
    Adam's square-root rule (Malladi et al. 2022, On the SDEs and Scaling Rules for Adaptive Gradient Algorithms,
    arXiv:2205.10287)."""
    if rows == base:
        return f"a learning rate of {rate:g} for a batch of {base:,} stays as it is"
    by_linear, by_root = rate * rows / base, rate * math.sqrt(rows / base)
    warm_up = f", either after a warm-up from {rate:g}" if rows > base else ""
    return (
        f"a learning rate of {rate:g} for a batch of {base:,} becomes {by_linear:.3g} by the linear rule (SGD) or "
        f"{by_root:.3g} by the square-root rule (Adam){warm_up}"
    )


def learning_rate(text: str) -> float:
    """An option type: a learning rate. Raises ValueError."""
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{text!r} is not a learning rate above 0")
    return value
