"""What a rank does alone: makes the model, looks for mistakes, and trains a step on all rows.

No rank waits for another here, so each can report its own mistake.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from preflight.check import Context, UserCode, UserError
from preflight.checks.train.model import mistakes
from preflight.checks.train.model.facts import UNKNOWN, ModelFacts
from preflight.checks.train.model.time_guard import TooSlow, time_guard
from preflight.checks.train.shared import model_source

if TYPE_CHECKING:
    from preflight.checks.train.shared.model_source import UserModel
    from preflight.train_smoke.user.solo import Solo
    from preflight.train_smoke.user.traits import Traits
    from preflight.train_smoke.user.validation import Given, MistakeFacts


@dataclass(frozen=True)
class PreparedModel:
    given: "Given"
    solo: "Given"
    """The same as built in a world of one rank; `given` itself where that makes no difference."""
    traits: "Traits"
    model: ModelFacts


@dataclass(frozen=True)
class Mistake:
    """What the user has to mend before anything can be trained."""

    facts: "MistakeFacts"
    model: ModelFacts


@dataclass(frozen=True)
class Skipped:
    """Why it cannot be trained, though nothing is wrong: too slow, too big, or no two trainings are the same."""

    reason: str
    model: ModelFacts


Alone = PreparedModel | Mistake | Skipped


def alone(ctx: Context, code: UserCode, threads: int | None, world: "Solo") -> Alone:
    from preflight.train_smoke.trainer.task import deterministic_arithmetic
    from preflight.train_smoke.user.traits import without_dropout
    from preflight.train_smoke.user.validation import ModelMistake

    steps, model = [""], UNKNOWN

    def doing(what: str) -> None:
        steps.append(what)
        ctx.doing(what)

    try:
        with deterministic_arithmetic(threads), time_guard(ctx.deadline_s, code, lambda: steps[-1]):
            doing(f"calling {code}")
            with world.watched():
                user_model = model_source.given(ctx, code, without_dropout)
            with code.blamed():
                model = _described(ctx, user_model)
            solo = _built_alone(ctx, code, user_model.given, world) if world.asked else user_model.given
            with code.blamed():
                return PreparedModel(user_model.given, solo, _traits(ctx, solo, user_model.given, doing, world), model)
    except TooSlow as slow:
        return Skipped(str(slow), model)
    except Exception as error:
        attributed = mistakes.of_backward(error)
        if reason := mistakes.skip_reason(attributed):
            return Skipped(reason, model)
        if isinstance(attributed, UserError | ModelMistake):
            return Mistake(mistakes.facts_of(attributed, code), model)
        raise


def _built_alone(ctx: Context, code: UserCode, given: "Given", world: "Solo") -> "Given":
    """Model and loss as the function makes them in a world of one rank: they may keep the number of ranks. The ones
    given, if it does not work there."""
    from preflight.train_smoke.user.traits import without_dropout
    from preflight.train_smoke.user.validation import layout

    try:
        with world.world():
            solo = model_source.given(ctx, code, without_dropout).given
    except Exception:
        return given
    if layout(solo.model) != layout(given.model):
        return given
    solo.load(given)
    return replace(solo, batch=given.batch, rows=given.rows)


def _described(ctx: Context, user_model: "UserModel") -> ModelFacts:
    from preflight.sdk.tensor_bits import digest
    from preflight.train_smoke.trainer.batch import tensors
    from preflight.train_smoke.user import validation

    given = user_model.given
    return ModelFacts(
        layout=digest(validation.layout(given.model)),
        weights=digest(validation.values(given.model)),
        batch=digest(tensors(given.batch)),
        batch_words=validation.words(given.batch),
        made_up=[*user_model.made_up],
        smaller=user_model.smaller,
        rows=given.rows,
        own=len(own_rows(ctx, given)) if given.rows > ctx.group_rank else 0,
        seeded=validation.seed_of_user(),
        dropped=user_model.dropped,
    )


def _traits(ctx: Context, solo: "Given", given: "Given", doing: Callable[[str], None], world: "Solo") -> "Traits":
    from preflight.train_smoke.user import traits

    dropouts = traits.without_dropout(given.model)
    if solo is not given:
        traits.without_dropout(solo.model)
    doing("training it alone for one step")
    with world.world():
        return traits.traits(solo, own_rows(ctx, given), ctx.device, dropouts, doing, world)


def own_rows(ctx: Context, given: "Given") -> list[int]:
    from preflight.train_smoke.user import task as user_task

    return user_task.rows_of(given.rows, ctx.group_rank, len(ctx.members))
