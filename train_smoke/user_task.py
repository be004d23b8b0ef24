"""A user's model as a task of the smoke trainer: how it is cut, how fast it learns, and what it takes of memory."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import psutil
import torch

from preflight.sdk import cgroups
from preflight.train_smoke import batch, user_pp, user_tp
from preflight.train_smoke.batch import Cut, Part, each
from preflight.train_smoke.strategies import variants_of
from preflight.train_smoke.task import Rates, TrainingTask
from preflight.train_smoke.user_given import Given, TooBig
from preflight.train_smoke.user_names import OWN
from preflight.train_smoke.wrapped import Variant

ON_DEVICE = 5
"""How many times the parameters' bytes a training holds where it computes: weights, gradient, momentum, a copy of the
gradient in buckets, and one to spare (FSDP's pieces while the whole is still there; AdamW's second state)."""
KEPT = 6
"""How many float32 copies of the parameters are kept on the CPU to be compared with: at the start, first gradient, own
gradient, at the end, and up to two of the optimizer's. They are let go of between recipes."""


def rows_of(rows: int, rank: int, ranks: int) -> list[int]:
    """Those of a rank, by its number in the group; row 0 where there are fewer rows than ranks."""
    return list(batch.rows_of(rank, ranks, rows)) or [0]


def task(
    given: Given, rank: int, ranks: int, device: torch.device, rates: Rates, threads: int | None, steps: int, *,
    exactly: bool,
) -> TrainingTask:  # fmt: skip
    """`exactly`: alone the batch is always cut as the ranks have it, since another cut is another function."""
    data = each(lambda tensor: tensor.to(device), given.batch)

    def recut(share: int, shares: int) -> Cut:
        return batch.cut(data, [batch.rows_of(number, shares, given.rows) for number in range(shares)], share)

    rows = [batch.rows_of(number, ranks, given.rows) for number in range(ranks)]
    cut = batch.cut(data, rows, rank)
    cut = _by_rank(cut, data, rows) if exactly else cut
    return TrainingTask("user's", lambda: given.copy(device), given.loss, cut, device, threads, rates, steps, recut)


def _by_rank(cut: Cut, data: object, rows: Sequence[range]) -> Cut:
    """Every part is the rows of one rank, this rank's own last."""

    total = sum(map(len, rows))

    def parts(ranks: int) -> tuple[Part, ...]:
        def part(rank: int) -> Part:
            index = torch.tensor(list(rows[rank]) or [0])
            return Part(each(lambda tensor: tensor[index.to(tensor.device)], data), len(rows[rank]) / total)

        others = [part(other) for other in range(ranks) if other != cut.rank and rows[other]]
        return (*others, *([part(cut.rank)] if cut.rank < ranks else []))

    every = parts(cut.ranks)
    return replace(cut, whole=every, parts=every, early=parts((cut.ranks + 1) // 2))


# Which variants


def known(strategy: str) -> Mapping[str, Variant]:
    """The variants of a strategy; of those that are a model's own, what is so with every model."""
    if strategy not in OWN:
        return variants_of(strategy)
    return {name: user_tp.variant(None, None) if strategy == "tp" else user_pp.variant(None) for name in OWN[strategy]}


def left_out(names: Mapping[str, list[str]], *, exactly: bool, calls: int) -> dict[str, str]:
    """Variants in which a model cannot be compared that is cut `exactly`, or is called so often a step, and why."""
    reasons = {
        f"{strategy}/{name}": _unfit(known(strategy)[name], exactly, calls) or _uncut(strategy, exactly, calls)
        for strategy, variants in names.items()
        for name in variants
    }
    return {name: why for name, why in reasons.items() if why}


def _uncut(strategy: str, exactly: bool, calls: int) -> str:
    """Why a pipeline's micro-batches cannot be compared."""
    if strategy != "pp":
        return ""
    if exactly:
        return "its micro-batches are another cut of the batch, of which the loss is another one"
    return "" if calls == 1 else f"the loss calls the model {calls} times, and a pipeline runs once"


def _unfit(variant: Variant, exactly: bool, calls: int) -> str:
    if exactly and variant.in_pieces:
        return "half of a rank's rows have another loss than they have among all"
    if exactly and variant.recipe.bfloat16:
        return "bfloat16's roundings are measured by another cut of the batch"
    if variant.recipe.uneven and calls > 1:  # the others' collectives then do not match, and gloo aborts
        return f"Join stands in for one call of the model a step, and the loss makes {calls}"
    return ""


def by_recipe(names: Mapping[str, list[str]], without: Iterable[str]) -> list[tuple[str, str, str]]:
    """(recipe, strategy, variant), those of one recipe together: they share what is kept of the training alone."""
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
    """Why there is no memory for a model of so many parameters and bytes, by an estimate from these alone; "" where
    there is. `ranks_here`: how many share the node."""
    kept = KEPT * 4 * count
    needed = {"memory": kept} if device.type == "cuda" else {"memory": kept + ON_DEVICE * size}
    free = {"memory": _free_on_host() // ranks_here}
    if device.type == "cuda":
        needed["GPU memory"] = ON_DEVICE * size
        free["GPU memory"] = free_on(device, ranks_here)
    for kind, bytes_ in needed.items():
        if bytes_ > free[kind]:
            return (
                f"the model is too big to be trained alone on each rank: its {count:,} parameters need about "
                f"{_gib(bytes_)} of {kind}, and {_gib(free[kind])} a rank are free"
            )
    return ""


def _gib(bytes_: int) -> str:
    return f"{bytes_ / 2**30:,.2f} GiB"


def free_on(device: torch.device, ranks_here: int) -> int:
    """Bytes for each of so many ranks of the node."""
    if device.type != "cuda":
        return _free_on_host() // ranks_here
    sharing = max(1, ranks_here // max(1, torch.cuda.device_count()))
    free: int = torch.cuda.mem_get_info(device)[0] // sharing
    return free


def _free_on_host() -> int:
    """Bytes, also by the limits of the cgroups around this process."""
    limited = cgroups.memory()
    return min(available(), limited.left) if limited else available()


def available() -> int:
    """Bytes of the machine."""
    return int(psutil.virtual_memory().available)
