"""What ranks agree on through the store before they train together: whether they do, and on what."""

import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from preflight.check import Context
from preflight.checks.train.model.prepare import Alone, PreparedModel, Skipped

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class RankStanding(TypedDict):
    """How far a rank got alone."""

    rank: int
    skipped: str
    layout: str
    weights: str
    batch: str
    traits: dict[str, Any] | None
    """None if it is not prepared."""


class Agreement(TypedDict):
    """The first rank's decision for all."""

    go: bool
    skipped: str
    loaded: bool
    """Whether the first rank's weights are loaded on all, since ranks differ."""
    layout: list[str]
    """The first rank's model, if others differ."""
    traits: dict[str, Any] | None
    """The first rank's traits: rates must be the same on all."""
    unused: list[str]
    """Parameters that are unused on any rank."""
    step_s: float
    """Forward and backward over all rows, on the slowest rank."""
    left_s: float
    """What is left of the deadline."""


def agree(ctx: Context, store: "Store", alone: Alone, left_s: float) -> Agreement:
    """Called on all ranks together. `left_s`: what is left of the deadline; the first rank's counts."""
    standing = _standing(ctx.rank, alone)
    first, *others = ctx.members
    with ctx.collective("agreeing on the model", f"{len(ctx.members)} ranks"):
        if ctx.rank != first:
            store.set(f"standing/{ctx.rank}", json.dumps(standing))
            agreement: Agreement = json.loads(store.get("agreement"))
            return agreement
        texts = store.multi_get([f"standing/{rank}" for rank in others]) if others else []
        agreement = agreement_of([standing, *map(json.loads, texts)], _layout(alone), left_s)
        store.set("agreement", json.dumps(agreement))
        return agreement


def _standing(rank: int, alone: Alone) -> RankStanding:
    return RankStanding(
        rank=rank,
        skipped=alone.reason if isinstance(alone, Skipped) else "",
        layout=alone.model["layout"],
        weights=alone.model["weights"],
        batch=alone.model["batch"],
        traits=vars(alone.traits) if isinstance(alone, PreparedModel) else None,
    )


def agreement_of(standings: Sequence[RankStanding], layout: list[str], left_s: float) -> Agreement:
    """`layout`: of the first rank's model. Training stops at differences other than weights, which `judge` reports."""
    layouts, batches, weights = ({standing[kind] for standing in standings} for kind in ("layout", "batch", "weights"))
    prepared = [standing["traits"] for standing in standings if standing["traits"]]
    unused = {name for traits in prepared for kind in ("unused", "unused_here") for name in traits[kind]}
    skipped = [f"rank {standing['rank']}: {standing['skipped']}" for standing in standings if standing["skipped"]]
    return Agreement(
        go=len(prepared) == len(standings) and len(layouts) == 1 and len(batches) == 1,
        skipped=skipped[0] if skipped else "",
        loaded=len(weights) > 1,
        layout=layout if len(layouts) > 1 else [],
        traits=standings[0]["traits"],
        unused=sorted(unused),
        step_s=max((traits["step_s"] for traits in prepared), default=0.0),
        left_s=left_s,
    )


def first_difference(ctx: Context, alone: Alone, agreement: Agreement) -> str:
    """The first line in which this rank's model differs from the first rank's, or ""."""
    if not agreement["layout"] or not isinstance(alone, PreparedModel):
        return ""
    pairs = itertools.zip_longest(_layout(alone), agreement["layout"], fillvalue="nothing more")
    rank, first = ctx.rank, ctx.members[0]
    return next((f"{own} on rank {rank}, {other} on rank {first}" for own, other in pairs if own != other), "")


def _layout(alone: Alone) -> list[str]:
    from preflight.train_smoke.user import validation

    return validation.layout(alone.given.model) if isinstance(alone, PreparedModel) else []
