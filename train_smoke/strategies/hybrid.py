"""Two ways at once: replicas of shards (HSDP), and tensor parallel under FSDP2 or DDP."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from preflight.train_smoke.strategies import tp
from preflight.train_smoke.strategies.ddp import BUCKET_MB
from preflight.train_smoke.trainer import mesh
from preflight.train_smoke.trainer.collectives import Need
from preflight.train_smoke.trainer.dtensors import OfDTensors, OfLocalised
from preflight.train_smoke.trainer.names import FEW_STEPS
from preflight.train_smoke.trainer.sharded import Sharded
from preflight.train_smoke.trainer.task import Recipe
from preflight.train_smoke.trainer.wrapped import StrategySetting, Variant, Wrapped, blocks, shapes_of, shards

MIXED = Recipe("clip, mixed", clip=0.5, mixed=True)
DATA, RANKS = "data-parallel ranks", "ranks"


def _hsdp(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    """Parameters are cut among neighbors, and each such group is a replica. Ranks that cannot be grouped each keep all:
    a mesh dimension of 1 must exchange gradients, too."""
    size = shards(setting.ranks)
    size = size if size < setting.ranks else 1
    ranks = mesh.grid(setting, size, ("replicate", "shard"))
    shapes = shapes_of(plain)
    units = blocks(plain)
    for unit in (*units, plain):
        fully_shard(unit, mesh=ranks)
    wrapped = Sharded(plain, plain, setting, shapes, ranks.get_group("shard"))
    module: Any = plain
    wrapped.before_piece = module.set_requires_all_reduce
    wrapped.units = units
    wrapped.mesh = (("replicate", setting.ranks // size), ("shard", size))
    wrapped.sizes = {"replicas": setting.ranks // size, "shards": size, RANKS: setting.ranks}
    each = f"one for each of the {len(units) + 1} modules that fully_shard was called on"
    if size > 1:
        wrapped.needs = [Need(("reduce-scatter",), ranks.get_group("shard"), "shards", len(units) + 1, each)]
    if size < setting.ranks:
        group = ranks.get_group("replicate")
        wrapped.needs = [*wrapped.needs, Need(("all-reduce",), group, "replicas", len(units) + 1, each)]
    return wrapped


def _fsdp2_tp(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    ranks = mesh.grid(setting, mesh.grid_ranks(setting), ("dp", "tp"))
    parallelize_module(plain, ranks["tp"], tp.plan(sequence=True, cut_loss=False))
    units = (*blocks(plain), plain)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for unit in units:
        fully_shard(unit, mesh=ranks["dp"], mp_policy=policy)
    each = f"one for each of the {len(units)} modules that fully_shard was called on"
    return _of_grid(OfDTensors(plain, plain, setting), ranks, ("reduce-scatter",), len(units), each)


def _ddp_tp(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    ranks, shapes = mesh.grid(setting, mesh.grid_ranks(setting), ("dp", "tp")), shapes_of(plain)
    parallelize_module(plain, ranks["tp"], tp.plan(sequence=True, cut_loss=False))
    layouts = {
        name: parameter.placements for name, parameter in plain.named_parameters() if isinstance(parameter, DTensor)
    }
    module = DistributedDataParallel(plain, device_mesh=ranks["dp"], bucket_cap_mb=BUCKET_MB)
    wrapped = OfLocalised(module, plain, setting, ranks["tp"], layouts, shapes)
    return _of_grid(wrapped, ranks, ("all-reduce",), 1, "one at least, for DDP's buckets")


def _of_grid(wrapped: Wrapped, ranks: DeviceMesh, kinds: tuple[str, ...], least: int, why: str) -> Wrapped:
    """`kinds` of collectives exchange gradients over dp, at least `least` of them."""
    across, near = ranks["dp"], ranks["tp"]
    wrapped.mesh = (("dp", across.size()), ("tp", near.size()))
    wrapped.sizes = {tp.TENSOR: near.size(), DATA: across.size(), RANKS: across.size() * near.size()}
    wrapped.needs = tp.needs(near)
    if across.size() > 1:
        wrapped.needs = [*wrapped.needs, Need(kinds, across.get_group(), DATA, least, why)]
    return wrapped


def _share(setting: StrategySetting) -> tuple[int, int]:
    """(share, number of shares) of the rows: ranks that share a matrix see the same rows."""
    size = mesh.grid_ranks(setting)
    return setting.group.rank() // size, setting.ranks // size


CUT: Any = {"share": _share, "steps": FEW_STEPS, "cuts_layers": True, "waits_within": True}
VARIANTS: Mapping[str, Variant] = {
    "hsdp": Variant(_hsdp, in_pieces=True),
    "fsdp2_tp": Variant(_fsdp2_tp, MIXED, **CUT),
    "ddp_tp": Variant(_ddp_tp, Recipe("adamw", adamw=True), **CUT),
}
"""By the names of trainer/names.py."""
