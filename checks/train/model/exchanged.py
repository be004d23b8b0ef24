"""A loss that exchanges values between ranks, and what it means if it trains otherwise on many ranks than on one.

It is one loss of all rows. No rank has a gradient of its own to compare: only what comes of the exchange is judged.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from preflight.check import Code
from preflight.checks.train.shared import model_parallel, parity
from preflight.checks.train.shared.parity import diagnosis, divergence, multiples
from preflight.checks.train.shared.parity.variant import Case, Meaning, blamed, unblamed
from preflight.train_smoke.trainer import compare

if TYPE_CHECKING:
    from preflight.train_smoke.strategies import training

OTHER_LOSS = Code(
    "The loss exchanges values between ranks, and is another one than in one process with all rows.",
    fix="Follow the number of ranks through your loss: a mean over all rows is the sum over all ranks divided by the "
    "count over all ranks; DDP and FSDP then divide by the number of ranks once more, so multiply by it.",
)
WRONG_GRADIENT = Code(
    "The loss is the one of all rows, but its gradient is not.",
    fix="Look at the backward pass of what exchanges values: a gather must add up the gradients of all ranks for each "
    "rank's rows (torch.distributed.nn.functional.all_gather does; all_gather without autograd carries none, and a "
    "slice of the gradient is only this rank's share). Look for a division by the number of ranks that DDP does, too.",
)
SCALED = 1e-3
"""How far a gradient's norm may be off where only the loss is scaled; what is beyond roundings is found at the norm."""
CODES = parity.CODES | {"other_loss": OTHER_LOSS, "wrong_gradient": WRONG_GRADIENT}


def by_gradient(facts: "training.Facts") -> "training.Facts":
    """The same, with the losses of training alone where the first gradient is right: what a loss shows may be scaled. A
    contrastive loss of gathered rows, of which only a rank's own carry a gradient, is rightly multiplied by the number
    of ranks."""
    for compared in facts["variants"].values():
        curve, alone = compared["curve"], facts["alone"][compared["recipe"]]["curve"] if compared["curve"] else None
        if curve and alone and compare.difference(curve["norms"][0], alone["norms"][0]) <= SCALED:
            curve["losses"] = [*alone["losses"]]
    return facts


def of(case: Case) -> Iterator[Meaning]:
    """At least one meaning."""
    step, quantity = case.divergence.place
    if isinstance(case.point.measured, str) and quantity not in ("gradient", "end", "state"):
        yield from blamed(case, "not_finite", "")
    elif quantity == "losses" and step == 0:
        why = f": the mean over the ranks{_times(case)}, though the weights are the same"
        yield unblamed(case, "other_loss", why)
    elif divergence.is_whole(quantity):
        yield _of_gradient(case)
    else:
        yield from diagnosis.of(case)


def _of_gradient(case: Case) -> Meaning:
    pair = case.pairs[min(case.divergence.first)]
    if case.divergence.place.step:
        return unblamed(case, "wrong_gradient", ", though the loss and the gradient of the first step were right")
    worst = pair.apart["gradients"]["worst"]
    told = multiples.first_gradient(pair, bound=case.limits.gradient)
    why = f"{_share(case) or (told and f': {told}')}; the loss is right"
    return unblamed(case, "wrong_gradient", why, worst[0]["parameter"] if worst else None)


def _ratio(case: Case) -> float:
    """How many times the expected value was measured."""
    measured, expected = case.point.measured, case.point.expected
    return measured / expected if not isinstance(measured, str) and not isinstance(expected, str) and expected else 0.0


def _times(case: Case) -> str:
    ratio, ranks = _ratio(case), len(case.pairs)
    if math.isclose(ratio, 1 / ranks, rel_tol=compare.SAME):
        return f" is 1/{ranks} of it, so it is divided by the number of ranks once too often"
    if math.isclose(ratio, ranks, rel_tol=compare.SAME):
        return f" is {ranks} times it, so it is multiplied by the number of ranks once too often, or not divided by it"
    return f" is {ratio:.3g} times it"


def _share(case: Case) -> str:
    ratio, ranks = _ratio(case), len(case.pairs)
    if math.isclose(ratio, 1 / ranks, rel_tol=compare.SAME):
        return (
            f": 1/{ranks} of it. Each rank's backward pass keeps only its own share of what was gathered, or it is "
            "divided by the number of ranks twice"
        )
    if math.isclose(ratio, ranks, rel_tol=compare.SAME):
        return f": {ranks} times as much. It is multiplied by the number of ranks, or added up, once too often"
    return ""


HOW = parity.Judging(of, CODES, is_known=False)
"""For `parity.judge`."""
CUT = parity.Judging(model_parallel.of, CODES, is_known=False)
"""The same under tensor and pipeline parallelism, where no rank has a gradient of its own either."""
