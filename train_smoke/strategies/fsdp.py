"""FSDP1, torch's FullyShardedDataParallel, and its variants."""

import functools
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import CustomPolicy, size_based_auto_wrap_policy, transformer_auto_wrap_policy

from preflight.train_smoke.trainer.collectives import REDUCTION, Need
from preflight.train_smoke.trainer.sharded import Sharded
from preflight.train_smoke.trainer.task import Recipe
from preflight.train_smoke.trainer.wrapped import StrategySetting, Variant, Wrapped, blocks, is_apart, shapes_of, shards

Policy = Callable[..., Any] | CustomPolicy
"""Which modules become separate units, in the form that torch takes."""


class UnderFsdp(Sharded):
    """FSDP1 keeps each unit's parameters in one flat tensor, of which each rank has an equal part; the parameters are
    pieces of that, and may be empty."""

    module: FullyShardedDataParallel

    reduces_each = False
    """Whether each micro-batch is reduced, and only added to the rank's own piece."""

    def clip(self, norm: float) -> torch.Tensor:
        return self.module.clip_grad_norm_(norm)

    def piece(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last or self.reduces_each else self.module.no_sync()


def _wrapped(
    plain: nn.Module,
    setting: StrategySetting,
    *,
    policy: Callable[[nn.Module], Policy] | None = None,
    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD,
    reduces_each: bool = False,
    **options: Any,
) -> Wrapped:
    """`policy` makes a wrapping policy for this model; by default each block is a unit, and the whole model."""
    shapes = shapes_of(plain)
    groups = _hybrid_groups(setting) if strategy is ShardingStrategy.HYBRID_SHARD else None
    group = groups[0] if groups else setting.group
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about one rank having nothing to cut, and no_shard being deprecated
        module = FullyShardedDataParallel(
            plain,
            process_group=groups or setting.group,
            sharding_strategy=strategy,
            auto_wrap_policy=policy(plain) if policy else _blocks(plain),
            device_id=setting.device,
            use_orig_params=True,
            **options,
        )
    cut = strategy is not ShardingStrategy.NO_SHARD and group.size() > 1
    wrapped = UnderFsdp(module, plain, setting, shapes, group if cut else None)
    wrapped.units = [unit for unit in FullyShardedDataParallel.fsdp_modules(module) if unit is not module]
    wrapped.reduces_each, wrapped.sizes = reduces_each, {"ranks": setting.ranks}
    each = "one at least, for the units"
    wrapped.needs = [Need(REDUCTION, group, "shards" if groups else "ranks", 1, each)] if group.size() > 1 else []
    if groups and groups[1].size() > 1:
        wrapped.needs = [*wrapped.needs, Need(("all-reduce",), groups[1], "replicas", 1, each)]
    if groups:
        wrapped.mesh = (("replicate", groups[1].size()), ("shard", groups[0].size()))
        wrapped.sizes = {**wrapped.sizes, "shards": groups[0].size(), "replicas": groups[1].size()}
    return wrapped


def _hybrid_groups(setting: StrategySetting) -> tuple[torch.distributed.ProcessGroup, torch.distributed.ProcessGroup]:
    """This rank's two groups: the neighbors that share the parameters, and the ranks that keep the same pieces."""
    rank, size = setting.group.rank(), shards(setting.ranks)
    first = rank // size * size
    neighbours, alike = range(first, first + size), range(rank % size, setting.ranks, size)
    assert setting.part is not None, "hybrid sharding needs groups of some ranks"
    return setting.part(tuple(neighbours)), setting.part(tuple(alike))


# Which modules become units


def _blocks(plain: nn.Module) -> Policy:
    chosen = {id(block) for block in blocks(plain)}
    return CustomPolicy(lambda module: id(module) in chosen)


def _by_size(plain: nn.Module) -> Policy:
    """Modules with at least a tenth of the model's elements."""
    least = sum(parameter.numel() for parameter in plain.parameters()) // 10
    return _where_apart(plain, functools.partial(size_based_auto_wrap_policy, min_num_params=max(1, least)))


def _by_class(plain: nn.Module) -> Policy:
    classes = {type(block) for block in blocks(plain)}
    return _where_apart(plain, functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=classes))


def _where_apart(plain: nn.Module, policy: Callable[..., bool]) -> Policy:
    """Leaves out modules that share a weight with another one, which torch's policies do not check: an output layer of
    the blocks' class that is tied to the embedding."""
    apart = {id(module) for module in plain.modules() if is_apart(module, plain)}

    def chosen(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return policy(module, recurse, nonwrapped_numel) and (recurse or id(module) in apart)

    return chosen


def _by_function(plain: nn.Module) -> Policy:
    """The parts of each block except small ones such as norms: units of different sizes."""
    parts = [part for block in blocks(plain) for part in block.children()]
    chosen = {
        id(module) for module in parts if is_apart(module, plain) and any(p.dim() > 1 for p in module.parameters())
    }
    return CustomPolicy(lambda module: id(module) in chosen)


def _needs_pinned_memory(setting: StrategySetting) -> str:
    """FSDP1 pins the pages of what it offloads, which needs an accelerator's driver (torch 2.13 raises without one)."""
    return "" if setting.device.type != "cpu" else "FSDP1 offloads from a GPU only"


def _variant(
    recipe: Recipe | None = None,
    unfit: Callable[[StrategySetting], str] | None = None,
    *,
    in_pieces: bool = False,
    **options: Any,
) -> Variant:
    return Variant(functools.partial(_wrapped, **options), recipe or Recipe(), unfit=unfit, in_pieces=in_pieces)


VARIANTS: Mapping[str, Variant] = {
    "full_shard": _variant(),
    "shard_grad_op": _variant(strategy=ShardingStrategy.SHARD_GRAD_OP),
    "no_shard": _variant(strategy=ShardingStrategy.NO_SHARD),
    "hybrid_shard": _variant(strategy=ShardingStrategy.HYBRID_SHARD),
    "no_sync": _variant(in_pieces=True),
    "accumulate": _variant(in_pieces=True, reduces_each=True),
    "backward_post": _variant(backward_prefetch=BackwardPrefetch.BACKWARD_POST),
    "forward_prefetch": _variant(forward_prefetch=True),
    "offload": _variant(unfit=_needs_pinned_memory, cpu_offload=CPUOffload(offload_params=True)),
    "clip": _variant(Recipe("clip", clip=0.5)),
    "mixed": _variant(
        Recipe("mixed", mixed=True),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    ),
    "wrap_size": _variant(policy=_by_size),
    "wrap_transformer": _variant(policy=_by_class),
    "wrap_custom": _variant(policy=_by_function),
}
"""By the names of trainer/names.py."""
