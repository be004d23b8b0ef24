"""A model whose parameters are DTensors, and how their full values are read."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from preflight.train_smoke.trainer.task import TrainingTask
from preflight.train_smoke.trainer.wrapped import Piece, ShardBox, StrategySetting, Values, Wrapped, named


class OfDTensors(Wrapped):
    """Each rank has a box of every parameter, or all of it."""

    def __init__(self, module: nn.Module, plain: nn.Module, setting: StrategySetting) -> None:
        super().__init__(module, plain)
        self._setting = setting

    def loss(self, task: TrainingTask, data: Any) -> Tensor:
        return whole(super().loss(task, data))

    def clip(self, norm: float) -> Tensor:
        return whole(super().clip(norm))

    def gradients(self) -> Values:
        return self._whole(super().gradients())

    def weights(self) -> Values:
        return self._whole(super().weights())

    def states(self, optimizer: torch.optim.Optimizer) -> Values:
        return self._whole(super().states(optimizer))

    def places(self) -> Mapping[str, Piece]:
        return {name: box_of(parameter) for name, parameter in self._as_dtensors(self.named())}

    def pieces(self) -> Values:
        return ((name, _local(value)) for name, value in super().pieces())

    def kept(self) -> dict[str, tuple[int, int]]:
        own = [*self._as_dtensors(self.named())]
        here = torch.tensor([_local(value).numel() for _, value in own], device=self._setting.device)
        rows = here.new_empty(self._setting.ranks, len(own))
        dist.all_gather(list(rows.unbind()), here, group=self._setting.group)
        listed: Any = rows.tolist()
        return {
            name: (sum(listed[rank][place] for rank in _ranks_of(value)) // _times(value), value.numel())
            for place, (name, value) in enumerate(own)
            if isinstance(value, DTensor)
        }

    def _whole(self, values: Values) -> Values:
        return ((name, whole(value)) for name, value in self._as_dtensors(values))

    def _as_dtensors(self, values: Values) -> Values:
        return values


def whole(value: Tensor) -> Tensor:
    """The full value of a DTensor. Called on all ranks of its mesh together."""
    made: Tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return made


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _ranks_of(value: DTensor) -> list[int]:
    ranks: list[int] = value.device_mesh.mesh.flatten().tolist()
    return ranks


def _times(value: DTensor) -> int:
    """How many ranks keep each element."""
    sizes = zip(value.device_mesh.mesh.shape, value.placements, strict=True)
    return math.prod(size for size, placement in sizes if isinstance(placement, Replicate))


def box_of(parameter: Tensor) -> ShardBox:
    shape, offset = parameter.shape, (0,) * parameter.dim()
    if isinstance(parameter, DTensor):
        local, offset = compute_local_shape_and_global_offset(shape, parameter.device_mesh, parameter.placements)
        shape = torch.Size(local)
    return ShardBox(tuple((start, start + length) for start, length in zip(offset, shape, strict=True)))


class OfLocalised(OfDTensors):
    """DDP keeps the local part of each DTensor as a plain tensor. After each forward the module has objects that
    neither DDP nor the optimizer knows."""

    def __init__(
        self, module: nn.Module, plain: nn.Module, setting: StrategySetting, mesh: DeviceMesh,
        layouts: Mapping[str, Sequence[Placement]], shapes: Mapping[str, torch.Size],
    ) -> None:  # fmt: skip
        """`shapes`: of the whole parameters."""
        super().__init__(module, plain, setting)
        self._mesh, self._layouts, self._shapes = mesh, layouts, shapes
        self._boxes = dict(named(plain))

    def parameters(self) -> list[nn.Parameter]:
        return [box for box in self._boxes.values() if box.requires_grad]

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self._boxes.items())

    def _as_dtensors(self, values: Values) -> Values:
        for name, value in values:
            parameter = name.partition(" ")[0]
            layout = self._layouts.get(parameter)
            yield name, value if layout is None else self._whole_of(value, layout, self._shapes[parameter])

    def _whole_of(self, value: Tensor, layout: Sequence[Placement], shape: torch.Size) -> Tensor:
        """With the whole shape, since parts may be uneven."""
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(value, self._mesh, layout, run_check=False, shape=shape, stride=stride)
