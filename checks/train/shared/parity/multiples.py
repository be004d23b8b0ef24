"""What it means if a gradient is a multiple of the expected one: by which number, in words."""

import math
from collections.abc import Mapping

from preflight.checks.train.shared.parity.divergence import TrainingPair
from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.compare import SAME, Number
from preflight.train_smoke.trainer.names import MICRO_BATCHES

TIMES = {
    "microbatches": "their losses were added up instead of averaged",
    "accumulation steps": "their losses were added up instead of averaged",
    MICRO_BATCHES: "their losses were added up instead of averaged",
    "microbatches of all accumulation steps": "their losses were added up instead of averaged",
    "tensor-parallel ranks": "what is the same on each of them was added up",
    "ranks": "it is the sum over them, not their mean",
    "data-parallel ranks": "it is the sum over them, not their mean",
    "shards": "it is the sum over them, not their mean",
    "replicas": "it is the sum over them, not their mean",
}
DIVIDED = {
    "microbatches": "it was divided by their number twice, or all but one were lost",
    "accumulation steps": "it was divided by their number twice, or all but one were lost",
    MICRO_BATCHES: "it was divided by their number twice, or all but one were lost",
    "microbatches of all accumulation steps": "all but one were lost",
    "tensor-parallel ranks": "it was averaged over them, or each has only its own part of it",
}
TWICE = "it was divided by their number twice"


def first_gradient(pair: TrainingPair, *, bound: float) -> str:
    """The parameter furthest off, by how much, how many are off the same way, and what that multiple is; or "".
    `bound`: the relative error that roundings may cause."""
    told = pair.apart["gradients"]
    if not told["worst"]:
        return ""
    worst = told["worst"][0]
    ratio, error = worst["ratio"], worst["error"]
    if isinstance(ratio, str) or isinstance(error, str):
        return f"the gradient of {worst['parameter']} is {ratio} times the one expected"
    if ratio == 0:
        so = f", and so it is with {told['alike']} of {told['count']} parameters" if told["alike"] > 1 else ""
        return f"no gradient comes to {worst['parameter']}{so}: they are cut off from the loss (detach, no_grad)"
    value = f"{ratio:.2f}" if ratio >= 1 + SAME else f"{ratio:.3f}"
    if abs(error - abs(ratio - 1)) > SAME * max(abs(ratio - 1), SAME):  # not that gradient times something
        text = f"the gradient of {worst['parameter']} is {error:.1%} off, expected at most {bound:.0e}"
        return f"{text}; its norm is {value} times the one expected"
    so = f", and so are {told['alike']} of {told['count']} parameters'" if told["alike"] > 1 else ""
    meaning = of(ratio, pair.sizes)
    return f"the gradient of {worst['parameter']} is {value} times the one expected{so}{meaning and f': {meaning}'}"


def of(ratio: float, sizes: Mapping[str, int]) -> str:
    """ "the number of microbatches (4), so their losses were added up instead of averaged", or "".
    Merges those with the same meaning."""
    beginning = "the number of " if ratio > 1 else "1 / the number of "
    by_meaning: dict[str, list[str]] = {}
    for what, size in sizes.items():
        if size < 2:
            continue
        if abs(ratio / size - 1) < SAME:
            by_meaning.setdefault(TIMES[what], []).append(f"{what} ({size})")
        elif abs(ratio * size - 1) < SAME:
            by_meaning.setdefault(DIVIDED.get(what, TWICE), []).append(f"{what} ({size})")
    return "; or ".join(f"{beginning}{' or of '.join(whats)}, so {meaning}" for meaning, whats in by_meaning.items())


def norm(measured: Number, expected: Number, sizes: Mapping[str, int]) -> str:
    """The same for the gradient's norm as computed by clipping, including roots, since squares add up."""
    if isinstance(measured, str) or isinstance(expected, str) or not expected:
        return ""
    ratio = measured / expected
    for what, size in sizes.items():
        if size > 1 and abs(ratio / math.sqrt(size) - 1) < SAME:
            return f", {ratio:.2f} times: the root of the number of {what} ({size}), so each of them was counted"
        if size > 1 and abs(ratio / size - 1) < SAME:
            return f", {ratio:.2f} times: the number of {what} ({size})"
    return f", {compare.text(ratio, 3)} times"
