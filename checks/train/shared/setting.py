"""The ranks that train together, as a strategy is told of them."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from preflight.check import Context, Job

if TYPE_CHECKING:
    from preflight.train_smoke.trainer.wrapped import StrategySetting


def of_members(ctx: Context) -> "StrategySetting":
    """All members of the check."""
    from preflight.train_smoke.trainer.wrapped import StrategySetting

    near = per_node(ctx.job, ctx.members)
    ranks = len(ctx.members)
    return StrategySetting(ctx.process_group(), ctx.device, ranks, ctx.part_of_group, near, ctx.collective, ctx.doing)


def per_node(job: Job, members: Sequence[int]) -> int:
    """How many neighbors are on one node, if it is the same number on every node; else 1."""
    runs = [len([*ranks]) for _, ranks in itertools.groupby(members, lambda rank: job.node_of(rank).node)]
    return runs[0] if len(set(runs)) == 1 else 1
