"""What it means if the gradient is wrong after the exchange, though each rank's own was right."""

import math
from collections.abc import Iterator

from preflight.check import ranges
from preflight.checks.train.shared.parity import collectives, divergence, multiples
from preflight.checks.train.shared.parity.divergence import CLEARLY, TrainingPair
from preflight.checks.train.shared.parity.variant import Case, Meaning, blamed, how_far, named, parameter_of, unblamed
from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.compare import Curve, Quantity
from preflight.train_smoke.trainer.names import MICRO_BATCHES

ONE_RANKS = 0.99
"""If a rank's own gradient explains this share of a difference (of its square), the rank is the cause: a difference of
0.1% is a thousand times float32's rounding."""
ROUNDED = 1e-6
"""The share of such a squared difference that roundings leave unexplained."""
COARSE = 0.005
"""Share of a tensor's largest element: bfloat16 rounds off up to 0.4% of a number."""
CLIPPED = 0.01
"""How far a mean of clipped gradients may be from the measured one at every step, relative to the norm. bfloat16's
limits are so wide that anything would fit."""
AGREE = 1e-5
"""Two gradients are the same if 1 minus their cosine is below this: float32 rounds off 1e-7."""


def of(case: Case) -> Iterator[Meaning]:
    at_first = case.divergence.place.step == 0
    if at_first and (ranks := divergence.odd_pieces(case.pairs, "gradient", case.limits)):
        for rank in ranks:
            piece = how_far(case.pairs[rank].apart["own"]["gradient"])
            why = f": only rank {rank}'s piece is wrong ({piece}), the other ranks' are right"
            yield named(case, "wrong_exchange", rank, why, parameter_of(case.pairs[rank], "gradient"))
    elif _is_own(case):
        yield from blamed(case, "not_exchanged", f", which is the norm of its own gradient{_missing(case)}")
    elif case.divergence.blamed:
        why = f", though its own gradient is right; {_of_tensors(case)}" if at_first else ", though its own is right"
        yield from blamed(
            case, "wrong_exchange", why, lambda pair: parameter_of(pair, "gradient") if at_first else None
        )
    elif ratio := _times_ranks(case):
        yield unblamed(case, "not_averaged", ratio)
    elif clipped := _clipped_to(case):
        why = f": each rank's own gradient was clipped to {clipped:.4g} before the ranks exchanged it"
        yield unblamed(case, "wrong_clip", why)
    elif at_first:
        yield _of_first_gradient(case)
    else:
        yield unblamed(case, "wrong_exchange", ", though every rank's own gradient is right")


def _of_first_gradient(case: Case) -> Meaning:
    """The first gradient is equally wrong on all ranks; its tensors are known."""
    name = parameter_of(case.pairs[min(case.divergence.first)], "gradient")
    candidates = _out_of_proportion(case)
    if len(candidates) == 1:
        (rank,) = candidates
        why = f": rank {rank}'s own gradient went into the mean {_times(case, rank)} times, expected 1"
        return named(case, "wrong_exchange", rank, why, None)
    if candidates:
        why = f": the own gradient of one of {ranges.ranks(candidates)}, which have equal data, went into the mean"
        return unblamed(case, "wrong_exchange", f"{why} {_times(case, candidates[0])} times, expected 1")
    if _is_coarse(case):
        why = f": all of it is a little off ({_of_tensors(case)}), as after rounding to bfloat16"
        return unblamed(case, "drift", why, name)
    why = f", though every rank's own gradient is right; {_of_tensors(case)}{_multiple(case)}{_missing(case)}"
    if case.pairs[min(case.pairs)].sizes.get(MICRO_BATCHES, 1) > 1:
        why += "; it adds up two micro-batches: see whether it is right without"
    return unblamed(case, "wrong_exchange", why, name)


def _missing(case: Case) -> str:
    told = collectives.missing(case.pairs)
    return f"; {told}" if told else ""


def _multiple(case: Case) -> str:
    """What the parameter furthest off is a multiple of, if that is a number of ranks."""
    pair = case.pairs[min(case.divergence.first)]
    worst = pair.apart["gradients"]["worst"][:1]
    ratio = worst[0]["ratio"] if worst else 1.0
    is_known = not isinstance(ratio, str) and multiples.of(ratio, pair.sizes)
    return f"; {multiples.first_gradient(pair, bound=case.limits.gradient)}" if is_known else ""


def _is_own(case: Case) -> bool:
    """Whether each rank steps with its own gradient."""
    if len(case.pairs) == 1:
        return False
    step, quantity = case.divergence.place
    if step == 0:
        likes = [pair.apart["like"] for pair in case.pairs.values()]
        agree = max(AGREE, case.limits.gradient**2)
        if all(not isinstance(like, str) and like is not None and 1 - like < agree for like in likes):
            return True
    firsts = [case.pairs[rank].measured for rank in case.divergence.first]
    return quantity == "norms" and all(
        step < len(curve["own_norms"])
        and compare.difference(curve["norms"][step], curve["own_norms"][step]) <= case.limits.curves
        for curve in firsts
    )


def _times_ranks(case: Case) -> str:
    """In words, if the whole gradient is the mean times or divided by the number of ranks; else ""."""
    ranks, point = len(case.pairs), case.point
    if (
        ranks == 1
        or point.place.quantity != "norms"
        or isinstance(point.measured, str)
        or isinstance(point.expected, str)
    ):
        return ""
    ratio = point.measured / point.expected if point.expected else math.inf
    if abs(ratio / ranks - 1) < 0.01:
        return f": {ranks} times as much, so it is the sum over the ranks instead of their mean"
    if abs(ratio * ranks - 1) < 0.01:
        return f": 1/{ranks} of it, so it was divided by the number of ranks twice"
    return ""


def _clipped_to(case: Case) -> float | None:
    """The norm to which each rank clipped its own gradient before the exchange, or None. Then the signed sum of the
    mean is that of the ranks' own signed sums, each scaled by its clipping: fitted at one step, verified at all."""
    curves = [pair.measured for pair in case.pairs.values()]
    own = [_numbers(curve, "own_norms", "own_prints") for curve in curves]
    taken = _numbers(curves[0], "norms", "prints")
    steps = min(len(taken), *map(len, own))
    if len(curves) == 1 or steps < 2:
        return None
    unit = sum(print_ / norm for norm, print_ in (norms[0] for norms in own) if norm) / len(own)
    to = taken[0][1] / unit if unit else 0.0
    if not 0 < to < min(norms[0][0] for norms in own):
        return None
    for step in range(steps):
        mean = sum(print_ * min(1.0, to / norm) for norm, print_ in (norms[step] for norms in own) if norm) / len(own)
        if not abs(mean - taken[step][1]) <= min(CLIPPED, CLEARLY * case.limits.curves) * taken[step][0]:
            return None
    return to


def _numbers(curve: Curve, norms: Quantity, prints: Quantity) -> list[tuple[float, float]]:
    return [(float(norm), float(print_)) for norm, print_ in zip(curve[norms], curve[prints], strict=False)]


def _out_of_proportion(case: Case) -> list[int]:
    """Ranks whose own gradient, times a factor, explains the error of the mean: one, or several with the same data.
    None if it fits all."""
    left = {rank: 1 - _share(pair) for rank, pair in case.pairs.items()}
    best = max(min(left.values()), ROUNDED)
    near = [rank for rank, left_over in left.items() if left_over <= CLEARLY * best]
    return near if best < 1 - ONE_RANKS and len(near) < len(left) else []


def _share(pair: TrainingPair) -> float:
    along = pair.apart["along"]
    return 0.0 if along is None or isinstance(along["share"], str) else along["share"]


def _times(case: Case, rank: int) -> str:
    along = case.pairs[rank].apart["along"]
    return compare.text(1 + along["times"], 5) if along and not isinstance(along["times"], str) else "?"


def _is_coarse(case: Case) -> bool:
    """Whether all tensors are slightly off, and no rank's own gradient explains it."""
    pair = case.pairs[min(case.divergence.first)]
    furthest = pair.apart["whole"]["gradient"]
    if isinstance(furthest["rest"], str):
        return False
    off, norm_off = compare.way_off(furthest), compare.difference(pair.measured["norms"][0], pair.expected["norms"][0])
    return (
        off < COARSE * _times_mean(case)
        and 2 * norm_off < off  # roundings go both ways, while a factor moves the norm as far as the elements
        and CLEARLY * furthest["rest"] * CLEARLY > COARSE
        and all(_share(pair) < 0.5 for pair in case.pairs.values())
    )


def _times_mean(case: Case) -> float:
    """How much larger than the mean a rank's own first gradient is: that is what was rounded."""
    norms = [(pair.expected["norms"][0], pair.expected["own_norms"][:1]) for pair in case.pairs.values()]
    numbers = [(float(mean), float(own)) for mean, owns in norms for own in owns]
    return max((own / mean for mean, own in numbers if mean), default=1.0)


def _of_tensors(case: Case) -> str:
    """Which tensors of the first step's gradient are wrong, in words."""
    furthest = case.pairs[min(case.divergence.first)].apart["whole"]["gradient"]
    limit = case.limits.gradient
    off = how_far(furthest)
    rest, elsewhere = (
        math.inf if isinstance(part, str) else part for part in (furthest["rest"], furthest["elsewhere"])
    )
    block = compare.block_of(furthest["parameter"])
    if compare.way_off(furthest) <= limit:
        return "no tensor of it is further off than roundings make it"
    if rest <= limit:
        return f"only {off}{f' (of the block {block})' if block else ''}, all others' are right"
    if elsewhere <= limit:
        return f"only in {f'the block {block}' if block else 'what is in no block'}, most of all {off}"
    return f"most of all {off}"
