"""A user's model as a task of the smoke trainer: how its batch is cut, how fast it learns, how much memory it takes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum

import torch

from preflight.sdk import memory
from preflight.train_smoke.strategies.training import variants_of
from preflight.train_smoke.trainer import batch
from preflight.train_smoke.trainer.batch import Cut, Part, each
from preflight.train_smoke.trainer.task import Rates, TrainingTask
from preflight.train_smoke.trainer.wrapped import Variant
from preflight.train_smoke.user import pipeline, tensor_parallel
from preflight.train_smoke.user.names import OWN
from preflight.train_smoke.user.validation import Given, TooBig

ON_DEVICE = 5
"""How many times the parameters' bytes a training needs on its device: weights, gradient, momentum, a copy of the
gradient in buckets, and one more (FSDP's pieces while the whole is still there; AdamW's second state)."""
KEPT = 6
"""How many float32 copies of the parameters are kept on the CPU for comparison: at the start, first gradient, own
gradient, at the end, and up to two of the optimizer's. They are freed between recipes."""


DRAWN = (
    "forward draws random numbers: of a layer that is cut each rank draws others than one process draws of the whole"
)


class Cutting(Enum):
    """How training alone may cut the batch, so that it trains the same function as the ranks."""

    FREELY = "in any parts: the loss is a mean over rows"
    BY_RANK = "as on the ranks: rows of one part have to do with each other"
    NEVER = "not at all: the loss exchanges values between ranks, and is one of all rows"


@dataclass(frozen=True)
class SoloSetting:
    """How a rank trains alone."""

    cutting: Cutting
    world: Callable[[], AbstractContextManager[None]] = nullcontext
    """The context of a world of one rank."""
    written: frozenset[str] = frozenset()
    """The parameters that forward itself changes."""
    given: Given | None = None
    """The same model and loss as built in a world of one rank; None if they do not depend on it."""


def rows_of(rows: int, rank: int, ranks: int) -> list[int]:
    """The rows of a rank, given by its number in the group; row 0 if there are fewer rows than ranks."""
    return list(batch.rows_of(rank, ranks, rows)) or [0]


def task(
    given: Given, rank: int, ranks: int, device: torch.device, rates: Rates, threads: int | None, steps: int,
    how: SoloSetting,
) -> TrainingTask:  # fmt: skip
    data = each(lambda tensor: tensor.to(device), given.batch)

    def recut(share: int, shares: int) -> Cut:
        return batch.cut(data, [batch.rows_of(number, shares, given.rows) for number in range(shares)], share)

    rows = [batch.rows_of(number, ranks, given.rows) for number in range(ranks)]
    cut = batch.cut(data, rows, rank)
    if how.cutting is Cutting.BY_RANK:
        cut = _by_rank(cut, data, rows)
    elif how.cutting is Cutting.NEVER:
        cut = replace(cut, whole=(whole := (Part(data, 1.0),)), parts=whole, early=whole)
    together = TrainingTask(
        "user's", lambda: given.copy(device), given.loss, cut, device, threads, rates, steps, recut,
        alone=how.world, common=how.cutting is Cutting.NEVER, written=how.written,
    )  # fmt: skip
    if (own := how.given) is None:
        return together
    return replace(together, solo=replace(together, new=lambda: own.copy(device), loss=own.loss))


def _by_rank(cut: Cut, data: object, rows: Sequence[range]) -> Cut:
    """The cut in which every part has the rows of one rank, this rank's own last."""

    total = sum(map(len, rows))

    def parts(ranks: int) -> tuple[Part, ...]:
        def part(rank: int) -> Part:
            return Part(batch.rows_in(data, rows[rank] or [0]), len(rows[rank]) / total)

        others = [part(other) for other in range(ranks) if other != cut.rank and rows[other]]
        return (*others, *([part(cut.rank)] if cut.rank < ranks else []))

    every = parts(cut.ranks)
    return replace(cut, whole=every, parts=every, early=parts((cut.ranks + 1) // 2))


# Which variants


def known(strategy: str) -> Mapping[str, Variant]:
    """The variants of a strategy; for those that depend on the model, what holds for every model."""
    if strategy not in OWN:
        return variants_of(strategy)
    return dict.fromkeys(
        OWN[strategy], tensor_parallel.variant(None, None) if strategy == "tp" else pipeline.variant(None)
    )


def left_out(names: Mapping[str, list[str]], *, cutting: Cutting, calls: int, draws: bool) -> dict[str, str]:
    """Why variants cannot be compared, for a model that is cut so or is called `calls` times per step."""
    exactly = cutting is not Cutting.FREELY
    reasons = {
        f"{strategy}/{name}": _alone_only(strategy, known(strategy)[name], cutting)
        or (DRAWN if draws and strategy == "tp" else "")
        or _unfit(known(strategy)[name], exactly, calls)
        or _uncut(strategy, exactly, calls)
        for strategy, variants in names.items()
        for name in variants
    }
    return {name: why for name, why in reasons.items() if why}


def _alone_only(strategy: str, variant: Variant, cutting: Cutting) -> str:
    """Why a loss that exchanges values between all ranks is no loss under this variant."""
    if cutting is not Cutting.NEVER:
        return ""
    if strategy in OWN:
        return "the loss exchanges values with all ranks, of which some have the same rows or no loss here"
    return (
        "the loss exchanges values at each step, and some ranks have none at the last" if variant.recipe.uneven else ""
    )


def _uncut(strategy: str, exactly: bool, calls: int) -> str:
    """Why a pipeline's micro-batches cannot be compared."""
    if strategy != "pp":
        return ""
    if exactly:
        return "its micro-batches cut the batch differently, which changes the loss"
    return "" if calls == 1 else f"the loss calls the model {calls} times, and a pipeline runs once"


def _unfit(variant: Variant, exactly: bool, calls: int) -> str:
    if exactly and variant.in_pieces:
        return "half of a rank's rows have a different loss by themselves"
    if exactly and variant.recipe.bfloat16:
        return "bfloat16's roundings are measured with a different cut of the batch"
    if variant.recipe.uneven and calls > 1:  # the others' collectives then do not match, and gloo aborts
        return f"Join replaces one call of the model per step, but the loss makes {calls}"
    return ""


def by_recipe(names: Mapping[str, list[str]], without: Iterable[str]) -> list[tuple[str, str, str]]:
    """(recipe, strategy, variant), grouped by recipe: variants of one share what is kept of the training alone."""
    found = [
        (known(strategy)[name].recipe.name, strategy, name)
        for strategy, variants in names.items()
        for name in variants
        if f"{strategy}/{name}" not in without
    ]
    order = list(dict.fromkeys(recipe for recipe, _, _ in found))
    return sorted(found, key=lambda training: order.index(training[0]))


# Memory


def fits(given: Given, device: torch.device, ranks_here: int) -> None:
    """Raises TooBig."""
    parameters = list(given.model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    if why := too_big(device, ranks_here, count, size):
        raise TooBig(why)


def too_big(device: torch.device, ranks_here: int, count: int, size: int) -> str:
    """Why there is no memory for a model with `count` parameters of `size` bytes, estimated from these alone; "" if
    there is. `ranks_here`: how many ranks share the node."""
    kept = KEPT * 4 * count
    needed = {"memory": kept} if device.type == "cuda" else {"memory": kept + ON_DEVICE * size}
    free = {"memory": memory.free_on_host() // ranks_here}
    if device.type == "cuda":
        needed["GPU memory"] = ON_DEVICE * size
        free["GPU memory"] = memory.free_on(device, ranks_here)
    for kind, bytes_ in needed.items():
        if bytes_ > free[kind]:
            return (
                f"the model is too big to be trained alone on each rank: its {count:,} parameters need about "
                f"{_gib(bytes_)} of {kind}, but {_gib(free[kind])} per rank are free"
            )
    return ""


def _gib(bytes_: int) -> str:
    return f"{bytes_ / 2**30:,.2f} GiB"
