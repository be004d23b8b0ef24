"""Trains a task under the variants of a strategy, and compares each with the training alone of its recipe."""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypedDict

import torch
from torch import distributed as dist
from torch import nn

from preflight.train_smoke.trainer import compare, mesh, reference, replicas
from preflight.train_smoke.trainer.collectives import Made
from preflight.train_smoke.trainer.compare import Apart, Curve, Number, Spread
from preflight.train_smoke.trainer.gradient_watch import GradientWatch, Signs, Unwatched
from preflight.train_smoke.trainer.layer_products import LayersCut, OwnProduct
from preflight.train_smoke.trainer.memory import Memory, PeakWatch
from preflight.train_smoke.trainer.names import FURTHER_STEPS, MICRO_BATCHES, PLAIN
from preflight.train_smoke.trainer.replicas import Replicas
from preflight.train_smoke.trainer.structure import Changed, Structure
from preflight.train_smoke.trainer.task import TrainingTask, deterministic_arithmetic
from preflight.train_smoke.trainer.train import Training
from preflight.train_smoke.trainer.wrapped import StrategySetting, Variant, Wrapped


class TrainedAlone(TypedDict):
    """The training alone of one recipe."""

    curve: Curve
    spread: Spread


class Compared(TypedDict):
    recipe: str
    """The name of its entry in `Facts.alone`."""
    unfit: str
    """Why it was not run, or ""."""
    curve: Curve | None
    apart: Apart | None
    memory: Memory | None
    changed: Changed | None
    """What wrapping has changed but must not."""
    clipped: list[Number]
    """The gradient's norm before clipping, by step; empty if nothing is clipped."""
    mesh: str
    """In words: "2 x 2 (dp x tp), tp inside a node"; "" if the mesh has one dimension."""
    sizes: dict[str, int]
    """Factors by which a gradient may be wrong by mistake, by name: {"microbatches": 4}."""
    made: list[Made]
    """The collectives that the strategy needs in a step, and how many of them this rank made."""
    replicas: Replicas | None
    """Replicas whose bits differ after the last step."""
    product: OwnProduct | None
    """The first of this rank's own parts of layers' products that is wrong; None too where ranks have no parts."""


class Facts(TypedDict):
    alone: dict[str, TrainedAlone]
    """By the recipe's name."""
    variants: dict[str, Compared]
    """By the variant's name, in the order in which they ran."""


def variants_of(strategy: str) -> Mapping[str, Variant]:
    """The variants of "ddp", "fsdp", "fsdp2" or "tp"."""
    found: Mapping[str, Variant] = importlib.import_module(f"preflight.train_smoke.strategies.{strategy}").VARIANTS
    return found


def run(
    task: TrainingTask, strategy: str, names: Iterable[str], setting: StrategySetting,
    known: Mapping[str, Variant] | None = None,
) -> Facts:  # fmt: skip
    """Called on all ranks together, with the same names; the variants after the first one take FURTHER_STEPS. `known`:
    a model's variants instead of the strategy's own."""
    facts, most = Facts(alone={}, variants={}), task.steps
    with deterministic_arithmetic(task.threads):
        for name in names:
            variant = (known or variants_of(strategy))[name]
            variant = replace(variant, steps=min(variant.steps, most))
            recipe = _named(variant, task)
            if unfit := variant.unfit(setting) if variant.unfit else "":
                facts["variants"][name] = _untrained(recipe, unfit=unfit)
                continue
            varied = _task_of(variant, task, setting)
            setting.doing(f"{strategy}/{name}: training alone")
            expected = reference.of(varied, variant.recipe)
            facts["alone"][recipe] = TrainedAlone(curve=expected.curve, spread=expected.spread)
            named = setting.under(f"{strategy}/{name}")
            facts["variants"][name] = _compared(varied, recipe, variant, named, expected)
            most = min(most, FURTHER_STEPS)
    return facts


def _untrained(recipe: str, *, unfit: str = "", changed: Changed | None = None, mesh: str = "") -> Compared:
    return Compared(
        recipe=recipe, unfit=unfit, curve=None, apart=None, memory=None, changed=changed, clipped=[], mesh=mesh,
        sizes={}, made=[], replicas=None, product=None,
    )  # fmt: skip


def _named(variant: Variant, task: TrainingTask) -> str:
    """The name of the training alone with which the variant is compared."""
    some = f"{variant.steps} steps" if variant.steps < task.steps else ""
    words = (variant.recipe.name, "tied" if variant.tied else "", "experts" if variant.sparse else "", some)
    return ", ".join(word for word in words if word and not (word == PLAIN and some))


def _task_of(variant: Variant, task: TrainingTask, setting: StrategySetting) -> TrainingTask:
    """The task with the model and the share of the batch that this variant needs."""
    if variant.tied:
        assert task.tied, f"{task.name} has no tied parameters"
        task = task.tied
    if variant.steps < task.steps:
        task = replace(task, name=f"{task.name}, {variant.steps} steps", steps=variant.steps)
    if variant.sparse:
        assert task.sparse, f"{task.name} has no experts"
        task = task.sparse
    if variant.compiled:  # torch.compile compiles nothing under a dispatch mode
        task = replace(task, counts=False)
    task = replace(task, layers=variant.cuts_layers)
    return task.of_share(*variant.share(setting)) if variant.share else task


def _compared(
    task: TrainingTask, recipe: str, variant: Variant, setting: StrategySetting, expected: reference.Reference
) -> Compared:
    probe = PeakWatch(task.device)
    plain = task.new()
    limit = compare.limits([expected.spread]).curves
    layers = LayersCut(plain, expected.kept.layers, limit) if task.layers else None
    watch = _watch(plain, variant, setting)
    wrapped, changed, is_other_model = _wrapped(plain, variant, setting)
    untrained = _untrained(recipe, changed=changed, mesh=mesh.words(wrapped.mesh, setting))
    if is_other_model:  # its numbers say nothing
        return untrained
    if isinstance(watch, GradientWatch):
        for unit in wrapped.units:
            watch.waits_at(unit)
    wrapped.times = task.cut.ranks
    training = Training(
        task, variant.recipe, wrapped, watch, against=expected.kept, probe=probe, setting=setting, layers=layers
    )
    parts = task.cut.pieces if variant.in_pieces else (task.cut.own,)
    joins_early = variant.recipe.uneven and not task.cut.is_early
    trained = training.run([parts] * (task.steps - joins_early), len(parts))
    setting.doing("comparing replicas")
    with setting.mark("comparing replicas", ""):
        differing = replicas.compared(wrapped, setting)
    if variant.in_pieces and not variant.waits_within:  # a pipeline counts its own
        wrapped.sizes = {**wrapped.sizes, MICRO_BATCHES: len(parts)}
    return {
        **untrained, "curve": trained.curve, "apart": trained.apart, "clipped": [*trained.clipped],
        "sizes": {**wrapped.sizes}, "made": [*trained.made], "replicas": differing,
        "product": layers.first if layers else None,
        "memory": probe.memory(wrapped.held(training.optimizer)),
    }  # fmt: skip


def _watch(plain: nn.Module, variant: Variant, setting: StrategySetting) -> GradientWatch | Unwatched:
    if variant.waits_within:
        return Unwatched(Signs(plain), setting.mark)
    return GradientWatch(plain, Signs(plain), setting.mark, variant.compiled(plain) if variant.compiled else None)


def _wrapped(plain: nn.Module, variant: Variant, setting: StrategySetting) -> tuple[Wrapped, Changed, bool]:
    """(the model under the strategy, what wrapping has changed here, whether it has changed anything on any rank)."""
    structure = Structure.of(plain)
    setting.doing("wrapping the model")
    with setting.mark("wrapping the model", ""):
        wrapped = variant.wrap(plain, setting)
        changed = structure.changed_in(plain)
        changed["kept"] = [(name, *counts) for name, counts in wrapped.kept().items() if counts[0] != counts[1]]
        return wrapped, changed, _on_any_rank(any(changed.values()), setting)


def _on_any_rank(found: bool, setting: StrategySetting) -> bool:
    """Whether it was found on any rank: a rank that continues by itself would wait for the others."""
    flag = torch.tensor(int(found), device=setting.device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=setting.group)
    return bool(flag.item())
