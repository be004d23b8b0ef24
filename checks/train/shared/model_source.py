"""What `--model` names: a function, a class or a model of the user's code, or a configuration file of transformers."""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from preflight.check import Context, UserCode, UserError

if TYPE_CHECKING:
    from torch import nn

    from preflight.train_smoke.user.validation import Given

FIRST_SHARE = 0.1
"""Share of the deadline that ranks wait for the first one, which builds the same model from a configuration."""


@dataclass(frozen=True)
class ConfigFile(UserCode):
    """A config.json: `module` is its path, and there is no function."""

    def __str__(self) -> str:
        return self.module

    @property
    def path(self) -> str:
        return os.path.join(self.start, self.module)

    def place(self) -> tuple[str, int] | None:
        return None

    def homes(self) -> Iterator[str]:
        """Includes transformers, whose lines are the only ones that can be named."""
        yield from super().homes()
        yield from getattr(sys.modules.get("transformers"), "__path__", ())


def parse(text: str) -> UserCode:
    """Raises ValueError if the text looks like none of these."""
    if text.strip().endswith(".json"):
        return ConfigFile(text.strip(), "")
    return UserCode.parse(text)


@dataclass(frozen=True)
class UserModel:
    given: "Given"
    made_up: tuple[str, ...]
    """What preflight added to what was given, in words."""
    smaller: str
    """How a configuration's model was made smaller, and why."""
    dropped: int = 0
    """Rows of the batch that were left out, so that all ranks have equally many."""


def given(ctx: Context, code: UserCode, ready: "Callable[[nn.Module], object] | None" = None) -> UserModel:
    """The user's model with its batch and loss, completed and fitting into memory. `ready`: done to a model that the
    function makes once more. Raises UserError, ModelMistake and TooBig, and what the user's code raises."""
    from preflight.train_smoke.user import completion, validation
    from preflight.train_smoke.user import task as user_task

    def again() -> "nn.Module":
        model: nn.Module = completion.model_of(_built(ctx, code)[0]).cpu()
        if ready:
            ready(model)
        return model

    built, smaller = _built(ctx, code)
    with code.blamed():
        form = completion.completed(built, len(ctx.members))
        complete = validation.given(form.made, again)
    user_task.fits(complete, ctx.device, ranks_here(ctx))
    equal = complete.with_equal_shares(len(ctx.members))
    return UserModel(equal, form.made_up, smaller, complete.rows - equal.rows)


def ranks_here(ctx: Context) -> int:
    """How many members are on this node."""
    return len(set(ctx.job.node_of(ctx.rank).ranks) & set(ctx.members))


def _built(ctx: Context, code: UserCode) -> tuple[Any, str]:
    """(what the user's function returns, or the named model itself; how a model was made smaller). Uses the same random
    seed on all ranks. Raises UserError, and TooBig if there is no memory for a configuration's model."""
    from torch import nn

    from preflight.train_smoke.user import task as user_task
    from preflight.train_smoke.user import transformers, validation

    validation.seed()
    if not isinstance(code, ConfigFile):
        return code.call(as_they_are=(nn.Module,)), ""
    too_big = functools.partial(user_task.too_big, ctx.device, ranks_here(ctx))
    try:
        return transformers.build(code.path, too_big, functools.partial(_as_first, ctx))
    except transformers.ConfigMistake as error:
        raise UserError(f"{code}: {error}", code.module) from error.__cause__


def _as_first(ctx: Context, is_so: bool) -> bool:
    """The first rank's value; this rank's own if the first does not get there in time."""
    store = ctx.store()
    if ctx.rank == ctx.members[0]:
        store.set("the first says", "yes" if is_so else "no")
        return is_so
    try:
        store.wait(["the first says"], timedelta(seconds=FIRST_SHARE * ctx.deadline_s))
    except RuntimeError:  # torch's DistStoreError
        return is_so
    return bool(store.get("the first says") == b"yes")
