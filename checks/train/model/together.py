"""Trains a user's model under the strategies, all ranks together: one variant after the other."""

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.check import Context, UserCode, UserError
from preflight.checks.train.model import exchanged, mistakes
from preflight.checks.train.model.agree import Agreement
from preflight.checks.train.model.controlled import controlled
from preflight.checks.train.model.facts import Wanted
from preflight.checks.train.model.outcomes import (
    JointTraining,
    LateVariant,
    NotRunVariant,
    RefusedVariant,
    TrainedVariant,
    VariantName,
    VariantOutcome,
)
from preflight.checks.train.model.prepare import PreparedModel
from preflight.checks.train.shared import refusals, setting
from preflight.checks.train.shared.agreement import all_failed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from preflight.train_smoke.strategies import training
    from preflight.train_smoke.trainer.task import TrainingTask
    from preflight.train_smoke.trainer.wrapped import Variant
    from preflight.train_smoke.user import task as user_task
    from preflight.train_smoke.user.control import Forward
    from preflight.train_smoke.user.solo import Solo
    from preflight.train_smoke.user.tensor_parallel import NotRun
    from preflight.train_smoke.user.traits import Traits
    from preflight.train_smoke.user.validation import Given, ModelMistake


def together(
    ctx: Context,
    store: "Store",
    code: UserCode,
    prepared: PreparedModel,
    agreement: Agreement,
    wanted: Wanted,
    world: "Solo",
) -> JointTraining:
    """Called on all ranks together. Raises what this rank alone raises."""
    from preflight.train_smoke.trainer import reference
    from preflight.train_smoke.user import schedule
    from preflight.train_smoke.user import task as user_task
    from preflight.train_smoke.user.traits import Traits

    assert agreement["traits"], "ranks train together only if all have them"
    traits, ranks = Traits(**agreement["traits"]), len(ctx.members)
    given = prepared.given
    _agree_on_weights(ctx, given, agreement)
    if prepared.solo is not given:
        prepared.solo.load(given)
    forward, skipped = controlled(ctx, store, code, prepared, traits, world, wanted.threads)
    cutting = _cutting(traits, forward)
    unfit = user_task.left_out(wanted.names, cutting=cutting, calls=traits.calls, draws=traits.draws)
    exactly = cutting is not user_task.Cutting.FREELY
    plan = schedule.schedule(wanted.names, unfit, agreement["step_s"], agreement["left_s"], ranks, exactly=exactly)
    outcomes, skipped = list[VariantOutcome](), skipped or plan.skipped
    if skipped:
        return JointTraining(agreement["loaded"], agreement["unused"], skipped=skipped, forward=forward)
    try:
        task = _task(ctx, prepared, traits, wanted, plan.steps, forward, world)
        trainings = _Trainings(ctx, store, code, given, wanted, task)
        chosen = user_task.by_recipe(wanted.names, {*unfit, *plan.left_out})
        for outcome in trainings.outcomes(chosen, agreement["left_s"]):
            outcomes.append(outcome)  # those before an exception are kept
    except Exception as error:
        skipped = mistakes.skip_reason(error)
        if not skipped:
            raise
    finally:
        reference.forget()
    return JointTraining(
        agreement["loaded"], agreement["unused"], plan.steps, unfit, plan.left_out, outcomes, skipped, forward
    )


def _cutting(traits: "Traits", forward: "Forward | None") -> "user_task.Cutting":
    from preflight.train_smoke.user.task import Cutting

    if forward and forward["exchanged"]:
        return Cutting.NEVER
    return Cutting.BY_RANK if traits.exactly else Cutting.FREELY


def _agree_on_weights(ctx: Context, given: "Given", agreement: Agreement) -> None:
    """Freezes parameters that are unused on any rank, and loads the first rank's parameters and buffers on all if they
    differ."""
    import torch

    from preflight.train_smoke.user import validation

    for name, parameter in given.model.named_parameters():
        if name in agreement["unused"]:
            parameter.requires_grad_(False)
    if not agreement["loaded"]:
        return
    group = ctx.process_group()
    with ctx.collective("loading the first rank's weights"), torch.no_grad():
        for tensor in validation.values(given.model):
            raw = tensor.detach().contiguous().flatten().view(torch.uint8).to(ctx.device)
            torch.distributed.broadcast(raw, group=group, group_src=0)
            tensor.copy_(raw.cpu().view(tensor.dtype).view(tensor.shape))


def _task(
    ctx: Context,
    prepared: PreparedModel,
    traits: "Traits",
    wanted: Wanted,
    steps: int,
    forward: "Forward | None",
    world: "Solo",
) -> "TrainingTask":
    from preflight.train_smoke.trainer.task import Rates
    from preflight.train_smoke.user import task as user_task

    rank, ranks, rates = ctx.group_rank, len(ctx.members), Rates(traits.rate, traits.adamw_rate)
    written = [found["name"] for found in forward["changed"] if found["is_parameter"]] if forward else []
    given = prepared.given
    solo = None if prepared.solo is given else prepared.solo
    how = user_task.SoloSetting(_cutting(traits, forward), world.world, frozenset(written), solo)
    return user_task.task(given, rank, ranks, ctx.device, rates, wanted.threads, steps, how)


@dataclass(frozen=True)
class _Trainings:
    ctx: Context
    store: "Store"
    code: UserCode
    given: "Given"
    wanted: Wanted
    task: "TrainingTask"

    def outcomes(self, chosen: Sequence[tuple[str, str, str]], left_s: float) -> Iterator[VariantOutcome]:
        """`chosen`: (recipe, strategy, variant), those of one recipe together: they share a training alone."""
        from preflight.train_smoke.trainer import reference
        from preflight.train_smoke.user.names import OWN

        kept: tuple[str, bool] | None = None
        longest_s, end = 0.0, time.monotonic() + left_s
        for recipe, strategy, variant in chosen:
            name, start = VariantName(strategy, variant), time.monotonic()
            if not self._has_time(name, longest_s < end - start):
                yield LateVariant(name)
                continue
            if (recipe, strategy in OWN) != kept:
                reference.forget()
            kept = recipe, strategy in OWN
            yield self._outcome(name)
            longest_s = max(longest_s, time.monotonic() - start)

    def _has_time(self, name: VariantName, local: bool) -> bool:
        """Whether the first rank has time for this variant; its answer holds for all."""
        if self.ctx.rank == self.ctx.members[0]:
            self.store.set(f"time for {name}", "yes" if local else "no")
        with self.ctx.collective("agreeing on the time", str(name)):
            return bool(self.store.get(f"time for {name}") == b"yes")

    def _outcome(self, name: VariantName) -> VariantOutcome:
        from preflight.train_smoke.user.tensor_parallel import NotRun
        from preflight.train_smoke.user.validation import ModelMistake

        try:
            facts = self._trained(name)
        except (UserError, ModelMistake, NotRun) as error:
            if not all_failed(self.ctx, self.store, str(name)):
                raise
            return self._failed(name, error)
        if name.strategy == "pp" and not self.wanted.asked and (tied := _untied(facts)):
            # A tied model cannot be a pipeline as it is: that is no fault of a model which nobody asked to cut.
            return NotRunVariant(name, f"{tied} are tied, and pipeline() gives each stage its own")
        return TrainedVariant(name, facts)

    def _failed(self, name: VariantName, error: "UserError | ModelMistake | NotRun") -> VariantOutcome:
        from preflight.train_smoke.user.tensor_parallel import NotRun
        from preflight.train_smoke.user.validation import ModelMistake

        if isinstance(error, NotRun):
            if not self.wanted.asked:
                return NotRunVariant(name, str(error))
            error = ModelMistake("not_run", f"{name} was not run: {error}")
        is_of_plan = isinstance(error, ModelMistake) and error.kind == "wrong_plan"
        code = (self.wanted.tp_plan or self.code) if is_of_plan else self.code
        return RefusedVariant(name, mistakes.facts_of(error, code))

    def _trained(self, name: VariantName) -> "training.Facts":
        """Raises UserError, ModelMistake and NotRun, and what the machine or another rank is to blame for."""
        from preflight.train_smoke.strategies import training
        from preflight.train_smoke.trainer.memory import is_out_of_memory

        variants, among = self._variants(name.strategy), setting.of_members(self.ctx)
        try:
            with self.code.blamed():
                facts = training.run(self.task, name.strategy, [name.variant], among, variants)
                return exchanged.by_gradient(facts) if self.task.common else facts
        except UserError as error:
            self.ctx.page.leave()  # what a strategy does before the model's forward is marked: the line may be there
            if isinstance(error.__cause__, Exception) and refusals.is_strategys(error.__cause__):
                raise _refused(name, error.__cause__) from error.__cause__
            raise UserError(f"{error.text} (under {name})", error.file, error.line) from error
        except Exception as error:
            if is_out_of_memory(error) or not refusals.is_refusal(error):
                raise
            self.ctx.page.leave()
            raise _refused(name, error) from error

    def _variants(self, strategy: str) -> "Mapping[str, Variant] | None":
        """The strategy's variants for this model; None if the strategy has fixed ones. Raises UserError."""
        from preflight.train_smoke.user import pipeline, tensor_parallel
        from preflight.train_smoke.user.names import PIPELINE, PLAN

        if strategy == "tp":
            plan = self.wanted.tp_plan.named() if self.wanted.tp_plan else None
            return {PLAN: tensor_parallel.variant(plan, self.wanted.tp_ranks)}
        return {PIPELINE: pipeline.variant(self.given)} if strategy == "pp" else None


def _refused(name: VariantName, error: Exception) -> "ModelMistake":
    from preflight.train_smoke.user.validation import ModelMistake

    text = f"under {name} torch raises {type(error).__name__}: {mistakes.first_line(error)}"
    return ModelMistake("refused", text, stack="".join(traceback.format_exception(error)))


def _untied(facts: "training.Facts") -> str:
    """Names that are no longer one parameter, or ""."""
    changes = [compared["changed"] for compared in facts["variants"].values() if compared["changed"]]
    return next((" and ".join(changed["untied"][0]) for changed in changes if changed["untied"]), "")
