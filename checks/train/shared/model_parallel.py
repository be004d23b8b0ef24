"""What strategies that split a model among ranks add to parity: their codes, and what a difference means there.

No rank has its own gradient: ranks that share a matrix, and stages of a pipeline, see the same rows and wait for each
other throughout a step.
"""

from collections.abc import Iterator

from preflight.check import Code
from preflight.checks.train.shared import parity
from preflight.checks.train.shared.parity import (
    NOT_FINITE,
    OUT_OF_SYNC,
    WRONG_CLIP,
    WRONG_START,
    WRONG_STEP,
    collectives,
    diagnosis,
    divergence,
    multiples,
)
from preflight.checks.train.shared.parity.structure import MODEL_CHANGED
from preflight.checks.train.shared.parity.variant import (
    Case,
    Meaning,
    blamed,
    how_far,
    named,
    parameter_of,
    unblamed,
)

MISSING_COLLECTIVE = Code(
    "A step makes fewer collectives than the strategy needs, and the training is wrong.",
    fix="Check the layer plan and the mesh: a RowwiseParallel layer reduces its output, FSDP with replicas reduces "
    "over both dimensions; look for what patches torch.distributed.",
)
WRONG_GRADIENT = Code(
    "Under the strategy a gradient differs from that of one process.",
    fix="Read the ratio in the message: look for what divides or multiplies by that number (scale_grads, the loss's "
    "mean, zero_grad between accumulation steps, the placement of a replicated parameter).",
)
SHARED = (NOT_FINITE, WRONG_START, WRONG_STEP, WRONG_CLIP, OUT_OF_SYNC, MODEL_CHANGED)
CODES = {name.lower(): code for name, code in tuple(globals().items()) if isinstance(code, Code)}
OTHERWISE = {"drift": WRONG_GRADIENT, "wrong_exchange": OUT_OF_SYNC, "unsteady": WRONG_STEP}
"""Replacements for parity's own codes. The small transformer is steady in float32: if it is not, the arithmetic is
wrong."""


def of(case: Case) -> Iterator[Meaning]:
    """At least one meaning."""
    step, quantity = case.divergence.place
    if quantity == "start":
        yield from diagnosis.of(case)
    elif (rank := _first_product(case)) is not None:
        yield named(case, "wrong_step", rank, _of_product(case, rank), None)
    elif missing := collectives.missing(case.pairs):
        yield unblamed(case, "missing_collective", f": {missing}")
    elif isinstance(case.point.measured, str) and quantity not in ("gradient", "end", "state"):
        yield from blamed(case, "not_finite", "")
    elif quantity == "losses" and step == 0:
        why = ": the weights are right, so it is the forward pass, the data or the order of the microbatches"
        yield from blamed(case, "wrong_step", why)
    elif divergence.is_whole(quantity):
        yield from _of_gradient(case)
    elif quantity == "losses":
        yield _of_wrong_weights(case)
    else:
        yield from diagnosis.of(case)


def _first_product(case: Case) -> int | None:
    """The rank whose own part of a layer's product is wrong before any other rank's, no later than the numbers: what
    it exchanges carries it to all. None if several are at once, as by a wrong plan."""
    products = {rank: pair.product for rank, pair in case.pairs.items() if pair.product}
    if not products:
        return None
    place = min(product["place"] for product in products.values())
    first = [rank for rank, product in products.items() if product["place"] == place]
    is_before = products[first[0]]["step"] <= case.divergence.place.step
    return first[0] if is_before and len(first) == 1 < len(case.pairs) else None


def _of_product(case: Case, rank: int) -> str:
    product = case.pairs[rank].product
    assert product
    off = "not a number" if isinstance(product["off"], str) else f"{product['off']:.1e} off"
    return f": first rank {rank}'s own part of the product in {product['layer']} is {off}, before ranks exchange it"


def _of_gradient(case: Case) -> Iterator[Meaning]:
    if case.divergence.place.step > 0:
        why = ", though that of the first step was right: look for what is kept from one step to the next"
        yield unblamed(case, "wrong_gradient", why)
    elif ranks := _odd_pieces(case):
        for rank in ranks:
            piece = how_far(case.pairs[rank].apart["own"]["gradient"])
            why = f": only rank {rank}'s piece is wrong ({piece}), the other ranks' are right"
            yield named(case, "wrong_gradient", rank, why, parameter_of(case.pairs[rank], "gradient"))
    else:
        pair = case.pairs[min(case.divergence.first)]
        worst = pair.apart["gradients"]["worst"]
        told = multiples.first_gradient(pair, bound=case.limits.gradient)
        name = worst[0]["parameter"] if worst else None
        yield unblamed(case, "wrong_gradient", told and f": {told}", name)


def _odd_pieces(case: Case) -> list[int]:
    """Ranks whose piece of the first gradient alone is wrong. None in a pipeline: a stage gets its gradient from the
    next one, so the stage that is wrong first is the last of those that are."""
    if any("microbatches" in pair.sizes for pair in case.pairs.values()):
        return []
    return divergence.odd_pieces(case.pairs, "gradient", case.limits)


def _of_wrong_weights(case: Case) -> Meaning:
    why = f": the gradient of step {case.divergence.place.step - 1} was right, so ranks have taken a wrong step"
    return unblamed(case, "out_of_sync", why)


HOW = parity.Judging(of, {**CODES, **OTHERWISE})
"""For `parity.judge`."""
