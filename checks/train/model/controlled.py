"""One forward pass of all ranks together, before they train: what it exchanges, and what of the model it changes."""

from typing import TYPE_CHECKING

from preflight.check import Context, UserCode, UserError
from preflight.checks.train.model import mistakes
from preflight.checks.train.model.prepare import PreparedModel, own_rows
from preflight.checks.train.shared.agreement import all_failed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from preflight.train_smoke.user.control import Forward
    from preflight.train_smoke.user.solo import Solo
    from preflight.train_smoke.user.traits import Traits
    from preflight.train_smoke.user.validation import Given

UNKNOWN = "the loss exchanges values with other ranks and draws random numbers, which differ if the batch is cut"


def controlled(
    ctx: Context,
    store: "Store",
    code: UserCode,
    prepared: PreparedModel,
    traits: "Traits",
    world: "Solo",
    threads: int | None,
) -> "tuple[Forward | None, str]":
    """(what forward does, why strategies cannot be compared). Called on all ranks together. Where forward raises on all
    of them, the trainings tell."""
    from preflight.train_smoke.trainer.task import deterministic_arithmetic
    from preflight.train_smoke.user.control import Control

    given, solo = prepared.given, prepared.solo
    control = Control(given, own_rows(ctx, given), ctx.device, world.world, solo)
    try:
        with code.blamed(), deterministic_arithmetic(threads):
            forward = control.forward(ctx.collective("one forward of all ranks"), draws=traits.draws)
    except UserError:
        if not all_failed(ctx, store, "one forward"):
            raise
        return None, ""
    except Exception as error:
        if reason := mistakes.skip_reason(error):
            return None, reason
        raise
    forward["exchanged"] = _on_any_rank(ctx, forward["exchanged"])
    if not forward["exchanged"]:
        return forward, ""
    for each in (given, solo):
        _without_batch_norm(each, traits)
    return forward, UNKNOWN if traits.draws else ""


def _on_any_rank(ctx: Context, found: bool) -> bool:
    import torch

    flag = torch.tensor(int(found), device=ctx.device)
    with ctx.collective("agreeing on what forward exchanges"):
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX, group=ctx.process_group())
    return bool(flag.item())


def _without_batch_norm(given: "Given", traits: "Traits") -> None:
    """One process would normalize by all rows: a different function. With running statistics it is the same."""
    for name, module in given.model.named_modules():
        if (name or type(module).__name__) in traits.batch_norms:
            module.eval()
