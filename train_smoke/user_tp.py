"""Tensor parallel of a user's model: by the plan that it brings (transformers), or that the user names.

What the plan's author would do is done, and no more: `parallelize_module` unties what is tied, without a word, and that
is to be seen.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from preflight.train_smoke import mesh, user_transformers
from preflight.train_smoke.dtensors import OfDTensors
from preflight.train_smoke.user_given import ModelMistake
from preflight.train_smoke.wrapped import StrategySetting, Variant, Wrapped, all_rows

OWN = ("tp_plan", "_tp_plan")
"""Attributes by which a model brings its plan: as transformers' do."""
HEADS = ("num_attention_heads", "num_key_value_heads")
"""Of a configuration: how many ranks cut them must divide both."""
EXPECTED = "expected a dict of module names to ParallelStyle or to words such as colwise, or a function of the model"


class NotRun(Exception):  # noqa: N818 -- a reason, not an error
    """Why a strategy was not run with this model, though nothing is wrong."""


class ReplicatedSummed(ParallelStyle):
    """A module that every rank has whole, and that sees each rank's own heads: its gradient is the sum of theirs."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def summed(gradient: Tensor) -> Tensor:
            whole = gradient.clone()
            torch.distributed.all_reduce(whole, group=device_mesh.get_group())
            return whole

        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(summed)  # type: ignore[no-untyped-call]
        return module


STYLES: Mapping[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_rep": functools.partial(ColwiseParallel, output_layouts=Replicate()),
    "colwise_gather_output": functools.partial(ColwiseParallel, output_layouts=Replicate()),
    "rowwise_rep": functools.partial(RowwiseParallel, input_layouts=Replicate()),
    "rowwise_split_input": functools.partial(RowwiseParallel, input_layouts=Replicate()),
    "embedding_rowwise": functools.partial(RowwiseParallel, input_layouts=Replicate()),
    "sequence_parallel": SequenceParallel,
    "replicated_with_grad_allreduce": ReplicatedSummed,
}
"""By transformers' words, torch's styles that compute the same."""

Plan = Mapping[str, Any] | Callable[..., Any]


def variant(plan: Plan | None, asked_ranks: int | None) -> Variant:
    """`plan`: what the user has named; None where the model is to bring one. `asked_ranks`: that cut each matrix."""
    wrap = functools.partial(_wrapped, plan=plan, asked_ranks=asked_ranks)
    return Variant(wrap, share=all_rows, waits_within=True)


def _wrapped(plain: nn.Module, setting: StrategySetting, *, plan: Plan | None, asked_ranks: int | None) -> Wrapped:
    """Raises NotRun, ModelMistake, before any rank waits for another."""
    named, ranks = _plan(plain, plan), _ranks(plain, setting, asked_ranks)
    near = mesh.neighbours(setting, ranks)
    if callable(named):
        made = named(plain, near)
        return OfDTensors(made if isinstance(made, nn.Module) else plain, plain, setting)
    parallelize_module(plain, near, dict(named))
    if plan is None and user_transformers.is_one(plain):
        plain.tie_weights()  # type: ignore[operator]  # as from_pretrained does behind its own plan
    return OfDTensors(plain, plain, setting)


def _ranks(plain: nn.Module, setting: StrategySetting, asked: int | None) -> int:
    config = getattr(plain, "config", None)
    heads = [count for name in HEADS if isinstance(count := getattr(config, name, None), int)]
    if asked is not None:
        if setting.ranks % asked:
            raise NotRun(f"{setting.ranks} ranks are no multiple of the {asked} that cut each matrix (tp_ranks)")
        return asked
    ranks = mesh.tensor_ranks(setting)
    if all(count % ranks == 0 for count in heads):
        return ranks
    return next((size for size in (2,) if all(count % size == 0 for count in heads) and setting.ranks >= size), 1)


# The plan


def _plan(plain: nn.Module, given: Plan | None) -> Mapping[str, ParallelStyle] | Callable[..., Any]:
    if given is None:
        own = next((its for name in OWN if isinstance(its := getattr(plain, name, None), Mapping) and its), None)
        if own is None:
            raise NotRun("the model has no tp_plan; --set train.model.tp_plan=MODULE:NAME gives one")
        return _styles({path: style for path, style in own.items() if _matches(plain, path)}, is_own=True)
    if callable(given) and not isinstance(given, Mapping):
        wants = [own for own in inspect.signature(given).parameters.values() if own.default is own.empty]
        if len(wants) == 2:
            return given
        given = given(plain)
    if not isinstance(given, Mapping):
        raise ModelMistake("wrong_plan", f"the tp_plan is an object of type {type(given).__name__}, {EXPECTED}")
    _all_match(plain, given)
    return _styles(given, is_own=False)


def _styles(plan: Mapping[str, Any], *, is_own: bool) -> dict[str, ParallelStyle]:
    """Raises NotRun for a model's own plan that has words which torch has no style for."""
    made: dict[str, ParallelStyle] = {}
    for path, style in plan.items():
        if isinstance(style, ParallelStyle):
            made[path] = style
        elif style in STYLES:
            made[path] = STYLES[style]()
        elif is_own:
            raise NotRun(f"the model's plan has {style!r} for {path}, of which torch has no counterpart")
        else:
            raise ModelMistake("wrong_plan", f"the tp_plan has {style!r} for {path!r}, {EXPECTED}")
    return made


def _all_match(plain: nn.Module, plan: Mapping[str, Any]) -> None:
    """torch only warns of what it does not find, and the module stays whole."""
    for path in plan:
        if not _matches(plain, path):
            names = [name for name, module in plain.named_modules() if module._parameters][:3]
            text = f"the tp_plan names {path!r}, and no module of the model has that name"
            raise ModelMistake("wrong_plan", f"{text} (it has {', '.join(names)}, ...)")


def _matches(plain: nn.Module, path: str) -> bool:
    """As parallelize_module reads it: part for part."""
    wanted = path.split(".")
    for name, _ in plain.named_modules():
        parts = name.split(".")
        if len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)):
            return True
    return False
