"""Tensor parallel of a user's model: by the plan that it brings (transformers), or that the user names.

Does only what the plan's author would do: `parallelize_module` silently unties tied parameters, and that must be seen.
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

from preflight.train_smoke.strategies.tp import TENSOR
from preflight.train_smoke.trainer import mesh
from preflight.train_smoke.trainer.dtensors import OfDTensors
from preflight.train_smoke.trainer.wrapped import StrategySetting, Variant, Wrapped, all_rows
from preflight.train_smoke.user import transformers
from preflight.train_smoke.user.validation import ModelMistake

OWN = ("tp_plan", "_tp_plan")
"""Attributes that hold a model's plan, as in transformers."""
HEADS = ("num_attention_heads", "num_key_value_heads")
"""Numbers in a configuration: the number of ranks that share heads must divide both."""
EXPECTED = "expected a dict of module names to ParallelStyle or to words such as colwise, or a function of the model"


class NotRun(Exception):  # noqa: N818 -- a reason, not an error
    """Why a strategy was not run with this model, though nothing is wrong."""


class ReplicatedSummed(ParallelStyle):
    """A module that every rank has whole and that sees only the rank's heads: its gradient is the sum over ranks."""

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
"""torch's styles that compute the same, by transformers' names."""

Plan = Mapping[str, Any] | Callable[..., Any]


def variant(plan: Plan | None, asked_ranks: int | None) -> Variant:
    """`plan`: the user's; None if the model brings one. `asked_ranks`: how many ranks share each matrix."""
    wrap = functools.partial(_wrapped, plan=plan, asked_ranks=asked_ranks)
    return Variant(wrap, share=all_rows, waits_within=True)


def _wrapped(plain: nn.Module, setting: StrategySetting, *, plan: Plan | None, asked_ranks: int | None) -> Wrapped:
    """Raises NotRun or ModelMistake before any rank waits for another."""
    named, ranks = _plan(plain, plan), _ranks(plain, setting, asked_ranks)
    near = mesh.neighbours(setting, ranks)
    if callable(named):
        made = named(plain, near)
        return _of(made if isinstance(made, nn.Module) else plain, plain, setting, near)
    parallelize_module(plain, near, dict(named))
    if plan is None and transformers.is_one(plain):
        plain.tie_weights()  # type: ignore[operator]  # as from_pretrained does after its own plan
    return _of(plain, plain, setting, near)


def _of(module: nn.Module, plain: nn.Module, setting: StrategySetting, near: DeviceMesh) -> Wrapped:
    wrapped = OfDTensors(module, plain, setting)
    wrapped.sizes = {TENSOR: near.size()}
    return wrapped


def _ranks(plain: nn.Module, setting: StrategySetting, asked: int | None) -> int:
    config = getattr(plain, "config", None)
    heads = [count for name in HEADS if isinstance(count := getattr(config, name, None), int)]
    if asked is not None:
        if setting.ranks % asked:
            raise NotRun(f"{setting.ranks} ranks are not a multiple of the {asked} that share each matrix (tp_ranks)")
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
    """Raises NotRun if a model's own plan has names for which torch has no style."""
    made: dict[str, ParallelStyle] = {}
    for path, style in plan.items():
        if isinstance(style, ParallelStyle):
            made[path] = style
        elif style in STYLES:
            made[path] = STYLES[style]()
        elif is_own:
            raise NotRun(f"the model's plan has {style!r} for {path}, for which torch has no counterpart")
        else:
            raise ModelMistake("wrong_plan", f"the tp_plan has {style!r} for {path!r}, {EXPECTED}")
    return made


def _all_match(plain: nn.Module, plan: Mapping[str, Any]) -> None:
    """Raises ModelMistake for a name that matches nothing: torch only warns, and leaves the module whole."""
    for path in plan:
        if not _matches(plain, path):
            names = [name for name, module in plain.named_modules() if module._parameters][:3]
            text = f"the tp_plan names {path!r}, but no module of the model has that name"
            raise ModelMistake("wrong_plan", f"{text} (it has {', '.join(names)}, ...)")


def _matches(plain: nn.Module, path: str) -> bool:
    """Whether a module matches the path, part by part, as in parallelize_module."""
    wanted = path.split(".")
    for name, _ in plain.named_modules():
        parts = name.split(".")
        if len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)):
            return True
    return False
