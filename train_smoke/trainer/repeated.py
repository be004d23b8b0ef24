"""Trains alone twice: does a device give the same bits again?

Two trainings are repeated: on the whole batch at once, which every rank has and cuts in the same way, so that ranks
can be compared with each other; and with the batch in parts, with which the strategies are compared later.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterable
from typing import TypedDict

from preflight.sdk.arithmetic import DeviceKind, kind_of
from preflight.sdk.tensor_bits import digest
from preflight.train_smoke.trainer import compare, reference
from preflight.train_smoke.trainer.bit_equality import Bits, TrainedTwice
from preflight.train_smoke.trainer.compare import MOMENTS, Curve, Spread
from preflight.train_smoke.trainer.task import Recipe, TrainingTask, deterministic_arithmetic
from preflight.train_smoke.trainer.train import KeptTensors, TensorComparison

MOST_NOTES = 8
"""The most operations without a fixed order that are named."""


class Facts(TypedDict):
    kind: DeviceKind
    whole: Bits
    """The training on the whole batch at once."""
    unlike: dict[str, TrainedTwice]
    """Trainings that gave different bits when repeated: "whole" and "parts". Empty if all is well."""
    spread: Spread
    """How far apart sound trainings on this hardware are, by its own roundings (reference.py)."""
    unordered: list[str]
    """Operations that have no deterministic form here, as torch says: different bits then prove nothing."""


def run(task: TrainingTask, doing: Callable[[str], None], recipe: Recipe = Recipe()) -> Facts:  # noqa: B008 -- it is frozen
    with warnings.catch_warnings(record=True) as told, deterministic_arithmetic(task.threads):
        warnings.simplefilter("always")
        doing("training alone")
        expected = reference.of(task, recipe)
        parts = expected.curve, expected.kept
        doing("training alone again")
        unlike = {"parts": _differing(parts, _trained(task, recipe, whole=False))}
        doing("training alone on the whole batch, twice")
        whole = _trained(task, recipe, whole=True)
        unlike["whole"] = _differing(whole, _trained(task, recipe, whole=True))
        kind = kind_of(task.device, os.environ)
    return {
        "kind": kind,
        "whole": bits(*whole),
        "unlike": {name: found for name, found in unlike.items() if found},
        "spread": expected.spread,
        "unordered": _unordered(str(warning.message) for warning in told),
    }


def _trained(task: TrainingTask, recipe: Recipe, *, whole: bool) -> tuple[Curve, KeptTensors]:
    trained = reference.alone(task, recipe, whole=whole)
    return trained.curve, trained.kept


def _differing(once: tuple[Curve, KeptTensors], again: tuple[Curve, KeptTensors]) -> TrainedTwice | None:
    bits_once, bits_again = bits(*once), bits(*again)
    if bits_once == bits_again:
        return None
    comparison = TensorComparison(once[1], {})
    for moment in MOMENTS:
        comparison.see(moment, iter(again[1].at(moment).items()))
    return TrainedTwice(once=bits_once, again=bits_again, apart=compare.spread(again[0], once[0], comparison.apart()))


def bits(curve: Curve, kept: KeptTensors) -> Bits:
    """The bits of a training whose tensors were kept."""
    every = ((moment, name, tensor) for moment in MOMENTS for name, tensor in kept.at(moment).items())
    return Bits(curve=curve, tensors=[(f"{moment} {name}", digest([tensor])[:8]) for moment, name, tensor in every])


def _unordered(warned: Iterable[str]) -> list[str]:
    """The operations named in torch's warnings (ATen/Context.cpp, alertNotDeterministic and the like for cuBLAS)."""
    names = []
    for text in warned:
        if found := re.match(r"(.+?) does not have a deterministic implementation", text):
            names.append(found[1])
        elif "CUBLAS_WORKSPACE_CONFIG" in text:
            names.append("cuBLAS without CUBLAS_WORKSPACE_CONFIG")
        elif "is not deterministic" in text or "nondeterministic" in text:
            names.append(text.partition(".")[0][:80])
    return list(dict.fromkeys(names))[:MOST_NOTES]
