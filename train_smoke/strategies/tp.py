"""Tensor parallel: `parallelize_module` on the small transformer, and its variants.

Neighbors share each matrix (mesh.py) and all see the whole batch: the gradient is that of one process, and nothing is
averaged.
"""

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from preflight.train_smoke.trainer import mesh, model
from preflight.train_smoke.trainer.collectives import REDUCTION, Need
from preflight.train_smoke.trainer.dtensors import OfDTensors
from preflight.train_smoke.trainer.names import FEW_STEPS
from preflight.train_smoke.trainer.structure import tie, tied
from preflight.train_smoke.trainer.task import IN_BFLOAT16, Recipe
from preflight.train_smoke.trainer.wrapped import StrategySetting, Variant, Wrapped, all_rows

Plan = dict[str, ParallelStyle]
TENSOR = "tensor-parallel ranks"


class UnderTp(OfDTensors):
    def __init__(self, plain: nn.Module, setting: StrategySetting, *, cut_loss: bool) -> None:
        super().__init__(plain, plain, setting)
        self._cut_loss = cut_loss

    def piece(self, *, last: bool) -> AbstractContextManager[object]:
        return loss_parallel() if self._cut_loss else super().piece(last=last)


def plan(*, sequence: bool, cut_loss: bool) -> Plan:
    """The plan for the small transformer. `sequence`: activations between the matrices are cut along the sequence, and
    the norms see a part of it. `cut_loss`: logits stay cut along the vocabulary."""
    between = Shard(1) if sequence else Replicate()
    found: Plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0) if sequence else Replicate()),
        "head": ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1) if cut_loss else Replicate(), use_local_output=not cut_loss
        ),
    }
    for block in (f"blocks.{number}" for number in range(model.BLOCKS)):
        found |= {
            f"{block}.attention": PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate()),
            **{f"{block}.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
            f"{block}.attention.out": RowwiseParallel(output_layouts=between),
            f"{block}.up": ColwiseParallel(input_layouts=between),
            f"{block}.down": RowwiseParallel(output_layouts=between),
        }
        if sequence:
            found |= {f"{block}.{name}_norm": SequenceParallel() for name in ("attention", "mlp")}
    return found | ({"norm": SequenceParallel()} if sequence else {})


def _wrapped(plain: nn.Module, setting: StrategySetting, *, sequence: bool = True, cut_loss: bool = False) -> Wrapped:
    near = mesh.neighbours(setting, mesh.tensor_ranks(setting))
    cut(plain, near, plan(sequence=sequence, cut_loss=cut_loss))
    wrapped = UnderTp(plain, setting, cut_loss=cut_loss)
    size = near.size()
    wrapped.mesh = (("replicas", setting.ranks // size), ("tp", size))
    wrapped.sizes = {TENSOR: size}
    wrapped.needs = needs(near)
    return wrapped


def cut(plain: nn.Module, near: DeviceMesh, plan: Plan) -> None:
    """Calls `parallelize_module`, which unties tied parameters, and ties them again."""
    ties = tied(plain)
    parallelize_module(plain, near, plan)
    for names in ties:
        tie(plain, names)


def needs(near: DeviceMesh) -> list[Need]:
    """The all-reduces of a step: in forward one per row-parallel layer (two embeddings, and two layers of each block);
    in backward one per input of column-parallel layers (attention and MLP of each block, and the output layer)."""
    if near.size() == 1:
        return []
    forward, backward = 2 + 2 * model.BLOCKS, 1 + 2 * model.BLOCKS
    why = f"{forward} after row-parallel layers in forward, {backward} before column-parallel ones in backward"
    return [Need(REDUCTION, near.get_group(), TENSOR, forward + backward, why)]


def _variant(wrap: Callable[..., Wrapped], recipe: Recipe | None = None, *, tied: bool = False) -> Variant:
    return Variant(
        wrap, recipe or Recipe(), share=all_rows, tied=tied, steps=FEW_STEPS, cuts_layers=True, waits_within=True
    )


VARIANTS: Mapping[str, Variant] = {
    "matrices": _variant(functools.partial(_wrapped, sequence=False)),
    "sequence": _variant(functools.partial(_wrapped, cut_loss=True), IN_BFLOAT16),
    "tied": _variant(_wrapped, Recipe("clip", clip=0.5), tied=True),
}
"""By the names of trainer/names.py."""
