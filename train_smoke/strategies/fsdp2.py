"""FSDP2, torch's `fully_shard`, and its variants."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from preflight.train_smoke.trainer.collectives import Need
from preflight.train_smoke.trainer.names import PLAIN
from preflight.train_smoke.trainer.sharded import Sharded
from preflight.train_smoke.trainer.task import Recipe
from preflight.train_smoke.trainer.wrapped import StrategySetting, Variant, Wrapped, blocks, shapes_of, shards


def _sharded(plain: nn.Module, setting: StrategySetting, *, checkpoint: bool = False, **options: Any) -> Sharded:
    """Shards each block, then the whole model: what is in no block belongs to the root."""
    shapes = shapes_of(plain)
    units = blocks(plain)
    if checkpoint:
        units = _checkpointed(plain, units)
    given = {"mesh": DeviceMesh.from_group(setting.group, setting.device.type), **options}
    for unit in (*units, plain):
        fully_shard(unit, **given)
    wrapped = Sharded(plain, plain, setting, shapes, setting.group)
    wrapped.units = units
    wrapped.sizes = {"ranks": setting.ranks}
    if setting.ranks > 1:
        each = f"one for each of the {len(units) + 1} modules that fully_shard was called on"
        wrapped.needs = [Need(("reduce-scatter",), setting.group, "ranks", len(units) + 1, each)]
    return wrapped


def _checkpointed(plain: nn.Module, units: list[nn.Module]) -> list[nn.Module]:
    """Wraps each unit in place so that backward recomputes its activations; returns the wrapped units. A model without
    blocks stays as it is."""
    wrappers: dict[int, nn.Module] = {}
    for parent in list(plain.modules()):
        for name, child in parent.named_children():
            if any(child is unit for unit in units):
                new = checkpoint_wrapper(child, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
                setattr(parent, name, wrappers.setdefault(id(child), new))
    return [wrappers[id(unit)] for unit in units]


def _plain(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    return _sharded(plain, setting)


def _keep(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    return _sharded(plain, setting, reshard_after_forward=False)


def _reshard_to(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    return _sharded(plain, setting, reshard_after_forward=shards(setting.ranks))


def _mixed(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return _sharded(plain, setting, mp_policy=policy)


def _no_sync(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    wrapped = _sharded(plain, setting)
    module: Any = plain
    wrapped.before_piece = module.set_requires_gradient_sync
    return wrapped


def _accumulate(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    wrapped = _offload(plain, setting)
    module: Any = plain
    wrapped.before_piece = module.set_is_last_backward
    return wrapped


def _offload(plain: nn.Module, setting: StrategySetting) -> Sharded:
    return _sharded(plain, setting, offload_policy=CPUOffloadPolicy(pin_memory=setting.device.type != "cpu"))


def _checkpoint(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    return _sharded(plain, setting, checkpoint=True)


VARIANTS: Mapping[str, Variant] = {
    PLAIN: Variant(_plain),
    "keep": Variant(_keep),
    "reshard_to": Variant(_reshard_to),
    "mixed": Variant(_mixed, Recipe("mixed", mixed=True)),
    "offload": Variant(_offload),
    "clip": Variant(_plain, Recipe("clip", clip=0.5)),
    "checkpoint": Variant(_checkpoint),
    "adamw": Variant(_plain, Recipe("adamw", adamw=True)),
    "no_sync": Variant(_no_sync, in_pieces=True),
    "accumulate": Variant(_accumulate, in_pieces=True),
}
"""By the names of trainer/names.py."""
