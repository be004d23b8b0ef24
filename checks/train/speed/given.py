"""The user's model, and where there is one the user's loader, as what is timed."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from preflight.check import Context, Skip, UserCode
from preflight.checks.train.shared import model_source

if TYPE_CHECKING:
    from preflight.train_smoke.speed.timed_task import TimedTask


def task(ctx: Context, code: UserCode, loader: UserCode | None) -> "TimedTask":
    """This rank's rows of the batch that the model comes with; with a `loader`, the batches that it gives. Raises
    UserError, and Skip where train.model says what is wrong."""
    from preflight.train_smoke.speed.timed_task import TimedTask
    from preflight.train_smoke.trainer.batch import each
    from preflight.train_smoke.user import task as user_task
    from preflight.train_smoke.user import validation

    ctx.doing(f"calling {code}")
    try:
        given = model_source.given(ctx, code).given
    except (validation.ModelMistake, validation.TooBig) as error:
        raise Skip(f"{code} cannot be trained: {error} (train.model says more)") from None
    rows = user_task.rows_of(given.rows, ctx.group_rank, len(ctx.members))

    def own() -> Iterator[Any]:
        import torch

        index = torch.tensor(rows)
        while True:
            yield each(lambda tensor: tensor[index].to(ctx.device), given.batch)

    batches, samples = own, len(rows)
    if loader is not None:
        batches, samples = _loaded(ctx, loader)
    return TimedTask(lambda: given.copy(ctx.device), given.loss, batches, samples, 0, ctx.device)


def _loaded(ctx: Context, loader: UserCode) -> tuple[Callable[[], Iterator[Any]], int]:
    """With how many rows its first batch has. Raises Skip where there is none."""
    from preflight.train_smoke.trainer.batch import each, tensors

    ctx.doing(f"calling {loader}")
    made = loader.call()

    def batches() -> Iterator[Any]:
        return (each(lambda tensor: tensor.to(ctx.device), batch) for batch in made)

    with loader.blamed():
        batch = next(batches(), None)
        if batch is None:
            raise Skip(f"{loader} gives no batch")
        return batches, len(tensors(batch)[0])
