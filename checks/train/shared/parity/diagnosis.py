"""What it means if training under a strategy diverges from the expected one, and which rank is to blame."""

import bisect
from collections.abc import Iterator

from preflight.checks.train.shared.parity import divergence, gradient_exchange, multiples
from preflight.checks.train.shared.parity.divergence import CLEARLY
from preflight.checks.train.shared.parity.variant import Case, Meaning, blamed, named, parameter_of, unblamed
from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.compare import Curve


def of(case: Case) -> Iterator[Meaning]:
    """At least one meaning; several if several ranks are to blame."""
    quantity = case.divergence.place.quantity
    if isinstance(case.point.measured, str) and quantity not in ("start", "gradient", "end", "state"):
        yield from blamed(case, "not_finite", _own_norm(case) if divergence.is_whole(quantity) else "")
    elif quantity == "start":
        yield from _of_start(case)
    elif quantity == "clipped":
        yield from _of_found_norm(case)
    elif divergence.is_whole(quantity):
        yield from gradient_exchange.of(case)
    elif quantity in ("end", "state"):
        yield from _of_end(case)
    else:
        yield from _of_own(case)


# The initial weights


def _of_start(case: Case) -> Iterator[Meaning]:
    if ranks := divergence.odd_pieces(case.pairs, "start", case.limits):
        for rank in ranks:
            name = parameter_of(case.pairs[rank], "start")
            yield named(case, "wrong_start", rank, f", in rank {rank}'s piece", name)
    elif case.divergence.blamed:
        yield from blamed(case, "wrong_start", "", lambda pair: parameter_of(pair, "start"))
    else:
        why = ": see what alters weights while the model is wrapped; DDP distributes those of the lowest rank"
        yield unblamed(case, "wrong_start", why, parameter_of(case.pairs[min(case.divergence.first)], "start"))


# A rank's own loss or gradient


def _of_own(case: Case) -> Iterator[Meaning]:
    first = case.divergence.first
    trained_on = _parts_of_others(case)
    parts = set(trained_on.values())
    if len(trained_on) == len(first) == _differing(case, parts):
        part = min(parts)
        why = f": it is the loss of rank {part}'s part, and all ranks have trained on the same data"
        yield unblamed(case, "wrong_data", why)
    elif case.divergence.blamed and len(trained_on) == len(first):
        for rank, part in trained_on.items():
            why = f": it is the loss of rank {part}'s part, so it has trained on that rank's data"
            yield named(case, "wrong_data", rank, why, None)
    elif 2 * len(trained_on) > len(first):
        rank, part = next(iter(trained_on.items()))
        yield unblamed(case, "wrong_data", f": rank {rank}'s is the loss of rank {part}'s part")
    elif not divergence.in_sync(case.pairs.values(), case.limits):
        why = ": the ranks no longer have the same parameters"
        yield from blamed(case, "out_of_sync", why, lambda pair: parameter_of(pair, "end"))
    elif case.divergence.blamed:
        yield from blamed(case, "wrong_step", "")
    elif case.divergence.place.step == 0:
        yield unblamed(case, "wrong_step", ": the weights are right, so it is the data or the forward pass")
    else:
        yield _of_wrong_weights(case)


def _differing(case: Case, parts: set[int]) -> int:
    """How many ranks have a wrong part of the batch, of the one part in question; -1 if there are several."""
    if len(parts) != 1:
        return -1
    its = case.pairs[min(parts)].expected["losses"][0]
    return sum(compare.difference(pair.expected["losses"][0], its) > case.limits.curves for pair in case.pairs.values())


def _parts_of_others(case: Case) -> dict[int, int]:
    """For ranks that differ first: {rank: the rank whose part of the batch gives the loss and gradient that it
    measured}."""
    step, quantity = case.divergence.place
    if quantity != "losses":
        return {}
    expected = {rank: pair.expected for rank, pair in case.pairs.items() if step < len(pair.expected["losses"])}
    by_loss = sorted((float(curve["losses"][step]), rank) for rank, curve in expected.items())
    found = {}
    for rank in case.divergence.first:
        mine = case.pairs[rank].measured
        loss = float(mine["losses"][step])
        near = bisect.bisect_left(by_loss, (loss - abs(loss) * case.limits.curves, -1))
        for other_loss, other in (by_loss[place] for place in range(near, len(by_loss))):
            if not other_loss <= loss + abs(loss) * case.limits.curves:
                break
            if other != rank and _is_like(mine, expected[other], step, case.limits.curves):
                found[rank] = other
                break
    return found


def _is_like(mine: Curve, its: Curve, step: int, limit: float) -> bool:
    """Whether the gradient also matches that part's, if it is known."""
    left, right = mine["own_norms"], its["own_norms"]
    return step >= min(len(left), len(right)) or compare.difference(left[step], right[step]) <= limit


def _of_wrong_weights(case: Case) -> Meaning:
    """All ranks continue with the same wrong weights, though no gradient was wrong before."""
    step = case.divergence.place.step
    now, before = (divergence.worst(case.pairs.values(), at, case.limits) for at in (step, step - 1))
    if now < CLEARLY and before * CLEARLY > now:
        why = f": no step stands out (step {step - 1} was at {before:.1g} of the limit), so roundings have accumulated"
        return unblamed(case, "drift", why)
    if case.clips and step == 1:  # the first step is always clipped, so a wrong clip shows at once, in different pieces
        return _of_wrong_clip(case)
    if (rank := divergence.furthest_piece(case.pairs, "end", case.limits)) is not None:
        why = f": the ranks have taken a wrong step, and rank {rank}'s piece ends furthest off"
        return named(case, "out_of_sync", rank, why, parameter_of(case.pairs[rank], "end"))
    if case.clips:
        return _of_wrong_clip(case)
    return unblamed(case, "wrong_exchange", ": all ranks have taken the same wrong step")


def _of_wrong_clip(case: Case) -> Meaning:
    why = f": the gradient of step {case.divergence.place.step - 1} was right, and was not clipped by its norm over"
    return unblamed(case, "wrong_clip", f"{why} all ranks, or a rank's step is wrong")


def _of_found_norm(case: Case) -> Iterator[Meaning]:
    """The gradient is right, but clipping computes a wrong norm."""
    pair = case.pairs[min(case.divergence.first)]
    points = ((rank, divergence.at(its, case.point.place, case.limits)) for rank, its in case.pairs.items())
    every = {rank: point for rank, point in points if point}
    values = {compare.text(point.measured, 4): rank for rank, point in reversed(every.items())}
    told = [f"{value} on rank {rank}" for value, rank in reversed(values.items())]
    differ = f"; {', '.join(told[:3])}{', ...' if len(told) > 3 else ''}" if len(told) > 1 else ""
    times = multiples.norm(case.point.measured, case.point.expected, pair.sizes)
    why = f"{times}: the gradient is right, but is not clipped by its norm over all ranks{differ}"
    yield from blamed(case, "wrong_clip", why)


# The end


def _of_end(case: Case) -> Iterator[Meaning]:
    moment: compare.Moment = "end" if case.divergence.place.quantity == "end" else "state"
    if ranks := divergence.odd_pieces(case.pairs, moment, case.limits):
        for rank in ranks:
            why = f", in rank {rank}'s piece; the other ranks' are right"
            yield named(case, "out_of_sync", rank, why, parameter_of(case.pairs[rank], moment))
    elif case.divergence.blamed or not divergence.in_sync(case.pairs.values(), case.limits):
        yield from blamed(case, "out_of_sync", "", lambda pair: parameter_of(pair, moment))
    elif case.point.over < CLEARLY:
        yield unblamed(case, "drift", ": no step stands out, so roundings have accumulated")
    else:
        yield unblamed(case, "wrong_exchange", ": all ranks have taken the same wrong step")


def _own_norm(case: Case) -> str:
    step, rank = case.divergence.place.step, min(case.divergence.first)
    norms = case.pairs[rank].measured["own_norms"]
    return f"; the norm of its own gradient is {compare.text(norms[step])}" if step < len(norms) else ""
