"""Reads every loader on this rank: the user's, or torch's DistributedSampler over datasets of a few sizes."""

from dataclasses import replace
from typing import Any

from preflight.check import Context, UserCode
from preflight.checks.data.sampler.aggregate import Key, Whole, together
from preflight.checks.data.sampler.loaders import Budget, read
from preflight.checks.data.shared.readings import Facts, Reading, Together
from preflight.checks.data.shared.user_function import Called

BATCH = 4
ROUNDS = 16
"""Samples that each rank has of torch's own loaders."""


def given(ctx: Context, called: Called, budget: Budget, data_parallel: int | None) -> Facts:
    """Of the loaders that the user's function has returned. What was printed and written there is told, too."""
    readings, compared = _read(ctx, called.loaders, called.function, budget, data_parallel)
    return Facts(
        given=True, function=str(called.function), mistake=called.mistake, readings=readings, together=compared,
        printed=called.printed, lines=called.lines, written=called.written,
    )  # fmt: skip


def torchs_own(ctx: Context, budget: Budget) -> Facts:
    """Without the user's: DistributedSampler itself, on this world."""
    if len(ctx.members) > 1:
        ctx.process_group()
    readings, compared = _read(ctx, _distributed(ctx.group_rank, len(ctx.members)), None, budget, None)
    return Facts(
        given=False, function="", mistake=None, readings=readings, together=compared, printed=[], lines=0, written=[]
    )


def _read(
    ctx: Context, loaders: dict[str, Any], code: UserCode | None, budget: Budget, data_parallel: int | None
) -> tuple[list[Reading], list[Together]]:
    """`budget.seconds` are shared by the loaders."""
    readings: list[Reading] = []
    mine: dict[Key, Whole] = {}
    each = replace(budget, seconds=budget.seconds / max(1, len(loaders)), loaders=max(1, len(loaders)))
    for name, loader in loaders.items():
        ctx.doing(f"reading loader {name}" if name else "reading the loader")
        reading, ids = read(loader, name, code, each)
        readings.append(reading)
        length, whole = reading["length"], [at for at, epoch in enumerate(reading["epochs"]) if epoch["whole"]]
        for number, its in zip(whole, ids, strict=False):
            epoch = reading["epochs"][number]
            mine[name, number] = Whole(its, length or 0, epoch["dropped"], epoch["order"])
    slower_s = budget.seconds + budget.patience_s  # than this rank another one may be
    return readings, together(ctx, mine, data_parallel, slower_s, budget.end_s)


def _distributed(rank: int, world: int) -> dict[str, Any]:
    """By name. The samplers are told rank and world: so no process group is needed."""
    from torch.utils.data import DataLoader, DistributedSampler

    odd = ROUNDS * world + world // 2 + 1
    asked = {
        "even": (ROUNDS * world, False, False),
        "uneven": (odd, False, False),
        "drop_last": (odd, False, True),
        "shuffled": (odd, True, False),
    }
    found: dict[str, Any] = {}
    for name, (length, shuffle, drop_last) in asked.items():
        numbers: Any = range(length)  # a dataset in all but its class
        sampler: Any = DistributedSampler(numbers, world, rank, shuffle=shuffle, drop_last=drop_last)
        found[name] = DataLoader(numbers, batch_size=BATCH, sampler=sampler)
    return found
