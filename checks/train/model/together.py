"""Trains a user's model under the strategies, all ranks together."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from preflight.check import Context, UserCode, UserError
from preflight.checks.train.model import mistakes
from preflight.checks.train.model.facts import Agreement, Facts, Wanted
from preflight.checks.train.shared import refusals, setting
from preflight.checks.train.shared.agreement import all_failed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from preflight.train_smoke.trainer.task import TrainingTask
    from preflight.train_smoke.trainer.wrapped import Variant
    from preflight.train_smoke.user.validation import Given, ModelMistake


def train(
    ctx: Context, code: UserCode, given: "Given", answer: Agreement, wanted: Wanted, facts: Facts, store: "Store"
) -> None:
    try:
        _trained(ctx, code, given, answer, wanted, facts, store)
    except Exception as error:
        if not mistakes.explained(error, code, facts) or not facts["skipped"]:
            raise


def _trained(
    ctx: Context, code: UserCode, given: "Given", answer: Agreement, wanted: Wanted, facts: Facts, store: "Store"
) -> None:
    from preflight.train_smoke.trainer import reference
    from preflight.train_smoke.trainer.task import Rates
    from preflight.train_smoke.user import schedule
    from preflight.train_smoke.user import task as user_task
    from preflight.train_smoke.user.names import OWN
    from preflight.train_smoke.user.tensor_parallel import NotRun
    from preflight.train_smoke.user.validation import ModelMistake

    names, traits = wanted.names, answer["traits"] or {}
    exactly = bool(traits["batch_norms"] or traits["draws"] or traits["apart"])
    facts["unused"] = answer["unused"]
    for name, parameter in given.model.named_parameters():
        if name in facts["unused"]:
            parameter.requires_grad_(False)
    if answer["loaded"]:
        _load_first(ctx, given)
        facts["loaded"] = True
    rates = Rates(traits["rate"], traits["adamw_rate"])
    rank, ranks = ctx.group_rank, len(ctx.members)
    unfit = user_task.left_out(names, exactly=exactly, calls=traits["calls"])
    planned = schedule.schedule(names, unfit, answer["step_s"], answer["left_s"], ranks, exactly=exactly)
    facts["left_out"], facts["steps"], facts["skipped"] = unfit | planned.left_out, planned.steps, planned.skipped
    late = facts["late"] = [*planned.left_out]
    task = user_task.task(given, rank, ranks, ctx.device, rates, wanted.threads, planned.steps, exactly=exactly)
    last: tuple[str, bool] | None = None
    longest_s, end = 0.0, time.monotonic() + answer["left_s"]
    for recipe, strategy, variant in user_task.by_recipe(names, facts["left_out"]):
        name, start = f"{strategy}/{variant}", time.monotonic()
        if not _has_time(ctx, store, name, longest_s < end - start):
            facts["left_out"][name] = "earlier variants left no time for it"
            late.append(name)
            continue
        if (recipe, strategy in OWN) != last:
            reference.forget()
        last = recipe, strategy in OWN
        try:
            _run_one(ctx, code, task, strategy, variant, facts, _own_variants(strategy, given, wanted))
        except (UserError, ModelMistake, NotRun) as error:
            if not all_failed(ctx, store, name):
                raise
            if isinstance(error, NotRun) and not wanted.asked:
                facts["not_run"][name] = str(error)
                continue
            mistake = ModelMistake("not_run", f"{name} was not run: {error}") if isinstance(error, NotRun) else error
            is_plans = isinstance(error, ModelMistake) and error.kind == "wrong_plan"
            facts["refused"][name] = mistakes.as_told(mistake, wanted.tp_plan or code if is_plans else code)
        if strategy == "pp" and not wanted.asked:
            _leave_untied_out(facts, strategy, variant)
        longest_s = max(longest_s, time.monotonic() - start)
    reference.forget()


def _has_time(ctx: Context, store: "Store", name: str, here: bool) -> bool:
    """Whether the first rank has time for this variant; its answer holds for all."""
    if ctx.rank == ctx.members[0]:
        store.set(f"time for {name}", "yes" if here else "no")
    with ctx.collective("agreeing on the time", name):
        return bool(store.get(f"time for {name}") == b"yes")


def _own_variants(strategy: str, given: "Given", wanted: Wanted) -> "Mapping[str, Variant] | None":
    """The strategy's variants for this model; None if the strategy has fixed ones."""
    from preflight.train_smoke.user import pipeline, tensor_parallel
    from preflight.train_smoke.user.names import PIPELINE, PLAN

    if strategy == "tp":
        plan = wanted.tp_plan.named() if wanted.tp_plan else None
        return {PLAN: tensor_parallel.variant(plan, wanted.tp_ranks)}
    if strategy == "pp":
        return {PIPELINE: pipeline.variant(given)}
    return None


def _run_one(
    ctx: Context, code: UserCode, task: "TrainingTask", strategy: str, variant: str, facts: Facts,
    known: "Mapping[str, Variant] | None",
) -> None:  # fmt: skip
    from preflight.train_smoke.strategies import training
    from preflight.train_smoke.trainer.memory import is_out_of_memory

    name = f"{strategy}/{variant}"
    so_far = facts["strategies"].setdefault(strategy, training.Facts(alone={}, variants={}))
    among = setting.of_members(ctx)
    try:
        with code.blamed():
            made = training.run(task, strategy, [variant], among, known)
    except UserError as error:
        ctx.page.leave()  # what a strategy does before the model's forward is marked: the user's line may be there
        if isinstance(error.__cause__, Exception) and refusals.is_strategys(error.__cause__):
            raise _refused(name, error.__cause__) from error.__cause__
        raise UserError(f"{error.text} (under {name})", error.file, error.line) from error
    except Exception as error:
        if is_out_of_memory(error) or not refusals.is_refusal(error):
            raise
        ctx.page.leave()
        raise _refused(name, error) from error
    so_far["alone"] |= made["alone"]
    so_far["variants"] |= made["variants"]


def _leave_untied_out(facts: Facts, strategy: str, variant: str) -> None:
    """Excludes pipelines for a tied model, unless the user asked for one: it cannot be a pipeline as it is."""
    variants = facts["strategies"][strategy]["variants"]
    changed = variants[variant]["changed"] if variant in variants else None
    if changed and changed["untied"]:
        names = " and ".join(changed["untied"][0])
        facts["not_run"][f"{strategy}/{variant}"] = f"{names} are tied, and pipeline() gives each stage its own"
        del facts["strategies"][strategy]


def _refused(name: str, error: Exception) -> "ModelMistake":
    from preflight.train_smoke.user.validation import ModelMistake

    return ModelMistake("refused", f"under {name} torch raises {type(error).__name__}: {mistakes.said(error)}")


def _load_first(ctx: Context, given: "Given") -> None:
    """Loads the first rank's parameters and buffers on all ranks."""
    import torch

    from preflight.train_smoke.user import validation

    group = ctx.process_group()
    with ctx.collective("loading the first rank's weights"), torch.no_grad():
        for tensor in validation.values(given.model):
            raw = tensor.detach().contiguous().flatten().view(torch.uint8).to(ctx.device)
            torch.distributed.broadcast(raw, group=group, group_src=0)
            tensor.copy_(raw.cpu().view(tensor.dtype).view(tensor.shape))
