"""Measures a user's model: alone on each rank first, and together only if all ranks got that far."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from preflight.check import Context, Skip, UserCode
from preflight.checks.train.model import agree, prepare
from preflight.checks.train.model.facts import Facts, Wanted
from preflight.checks.train.model.outcomes import (
    JointTraining,
    LateVariant,
    NotRunVariant,
    RefusedVariant,
    TrainedVariant,
    VariantOutcome,
)
from preflight.checks.train.model.prepare import Alone, Mistake, PreparedModel, Skipped
from preflight.checks.train.model.together import together

if TYPE_CHECKING:
    from preflight.train_smoke.strategies import training

Outcome = TypeVar("Outcome", bound=VariantOutcome)


def measure(ctx: Context, code: UserCode, wanted: Wanted) -> Facts:
    """Raises Skip."""
    from preflight.train_smoke.trainer.task import import_dynamo
    from preflight.train_smoke.user.solo import Solo

    end = time.monotonic() + ctx.deadline_s
    ctx.process_group()
    ctx.doing("importing torch._dynamo")
    import_dynamo()
    world = Solo(ctx.part_of_group((ctx.group_rank,)))
    alone, store = prepare.alone(ctx, code, wanted.threads, world), ctx.store()
    agreement = agree.agree(ctx, store, alone, end - time.monotonic())
    joint = JointTraining()
    if agreement["go"] and isinstance(alone, PreparedModel):
        joint = together(ctx, store, code, alone, agreement, wanted, world)
    facts = _facts(alone, agree.first_difference(ctx, alone, agreement), joint)
    if reason := facts["skipped"] or agreement["skipped"]:
        raise Skip(reason, facts)
    return facts


def _facts(alone: Alone, unlike: str, joint: JointTraining) -> Facts:
    late = [str(outcome.name) for outcome in _of(LateVariant, joint)]
    return {
        **alone.model,
        "mistake": alone.facts if isinstance(alone, Mistake) else None,
        "skipped": alone.reason if isinstance(alone, Skipped) else joint.skipped,
        "traits": vars(alone.traits) if isinstance(alone, PreparedModel) else None,
        "unlike": unlike,
        "loaded": joint.loaded,
        "forward": joint.forward,
        "unused": [*joint.unused],
        "left_out": {**joint.unfit, **joint.late, **dict.fromkeys(late, "earlier variants left no time for it")},
        "late": [*joint.late, *late],
        "not_run": {str(outcome.name): outcome.reason for outcome in _of(NotRunVariant, joint)},
        "refused": {str(outcome.name): outcome.mistake for outcome in _of(RefusedVariant, joint)},
        "steps": joint.steps,
        "strategies": _by_strategy(joint.outcomes),
    }


def _of(kind: type[Outcome], joint: JointTraining) -> list[Outcome]:
    return [outcome for outcome in joint.outcomes if isinstance(outcome, kind)]


def _by_strategy(outcomes: Sequence[VariantOutcome]) -> "dict[str, training.Facts]":
    """A strategy that was begun has an entry, also if none of its variants was trained."""
    from preflight.train_smoke.strategies import training

    strategies: dict[str, training.Facts] = {}
    for outcome in outcomes:
        if isinstance(outcome, LateVariant):
            continue
        facts = strategies.setdefault(outcome.name.strategy, training.Facts(alone={}, variants={}))
        if isinstance(outcome, TrainedVariant):
            facts["alone"] |= outcome.facts["alone"]
            facts["variants"] |= outcome.facts["variants"]
    return strategies
