"""Trains a task under the variants of a strategy, each held against the training alone of its recipe."""

import importlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TypedDict

from preflight.train_smoke import reference
from preflight.train_smoke.compare import Apart, Curve, Spread
from preflight.train_smoke.gradient_watch import GradientWatch, Signs
from preflight.train_smoke.memory import Memory, PeakWatch
from preflight.train_smoke.task import TrainingTask, deterministic_arithmetic
from preflight.train_smoke.train import Training
from preflight.train_smoke.wrapped import Doing, Mark, StrategySetting, Variant, silent


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


class Facts(TypedDict):
    alone: dict[str, TrainedAlone]
    """By the recipe's name."""
    variants: dict[str, Compared]
    """By the variant's name, in the order in which they ran."""


def variants_of(strategy: str) -> Mapping[str, Variant]:
    """Of "ddp", "fsdp" or "fsdp2"."""
    found: Mapping[str, Variant] = importlib.import_module(f"preflight.train_smoke.{strategy}").VARIANTS
    return found


def run(
    task: TrainingTask, strategy: str, names: Iterable[str], setting: StrategySetting, mark: Mark, doing: Doing = silent
) -> Facts:
    """All ranks together, with the same names."""
    facts = Facts(alone={}, variants={})
    with deterministic_arithmetic(task.threads):
        for name in names:
            variant = variants_of(strategy)[name]
            unfit = variant.unfit(setting) if variant.unfit else ""
            made = Compared(recipe=variant.recipe.name, unfit=unfit, curve=None, apart=None, memory=None)
            facts["variants"][name] = made
            if not unfit:
                doing(f"{strategy}/{name}: training alone")
                expected = reference.of(task, variant.recipe)
                facts["alone"][variant.recipe.name] = TrainedAlone(curve=expected.curve, spread=expected.spread)
                _run(task, f"{strategy}/{name}", variant, setting, mark, doing, expected, made)
    return facts


def _run(
    task: TrainingTask, name: str, variant: Variant, setting: StrategySetting, mark: Mark, doing: Doing,
    expected: reference.Reference, made: Compared,
) -> None:  # fmt: skip
    def marked(operation: str, step: str) -> AbstractContextManager[None]:
        return mark(f"{name}: {operation}", step)

    def do(what: str) -> None:
        doing(f"{name}, {what}")

    probe = PeakWatch(task.device)
    plain = task.new()
    watch = GradientWatch(plain, Signs(plain), marked)
    do("wrapping the model")
    with marked("wrapping the model", ""):
        wrapped = variant.wrap(plain, setting)
    for unit in wrapped.units:
        watch.waits_at(unit)
    own = task.cut.pieces if variant.in_pieces else (task.cut.own,)
    joins_early = variant.recipe.uneven and not task.cut.is_early
    training = Training(
        task, variant.recipe, wrapped, watch, times=setting.ranks, against=expected.kept, probe=probe, mark=marked,
        doing=do,
    )  # fmt: skip
    trained = training.run([own] * (task.steps - joins_early), len(own))
    made["curve"], made["apart"] = trained.curve, trained.apart
    made["memory"] = probe.memory(wrapped.held(training.optimizer))
