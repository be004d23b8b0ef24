"""Which ranks cut a model among them, beside which others: the meshes of strategies beyond data parallel."""

import math
from collections.abc import Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh

from preflight.train_smoke import model
from preflight.train_smoke.wrapped import StrategySetting


def tensor_ranks(setting: StrategySetting) -> int:
    """How many neighbours cut each matrix among them: 4 or 2 of a node, whose links are the fastest; of all ranks where
    each node has one. A rank that is left over is a group of its own."""
    near = setting.per_node if setting.per_node > 1 else setting.ranks
    return next((size for size in (model.HEADS, 2) if near % size == 0), min(2, near))


def grid_ranks(setting: StrategySetting) -> int:
    """The same where other ranks repeat or share the work of these: fewer cut a matrix, so that there are such."""
    near = setting.per_node if setting.per_node > 1 else setting.ranks
    fitting = [size for size in (model.HEADS, 2) if near % size == 0 and setting.ranks % size == 0]
    return next((size for size in fitting if size < setting.ranks), min(fitting, default=1))


def neighbours(setting: StrategySetting, size: int) -> DeviceMesh:
    """This rank's and those beside it, `size` of them at most: a mesh of one dimension. All ranks together."""
    first = setting.group.rank() // size * size
    ranks = tuple(range(first, min(first + size, setting.ranks)))
    group = setting.group if len(ranks) == setting.ranks else part(setting, ranks)
    return DeviceMesh.from_group(group, setting.device.type, mesh_dim_names=("tp",))


def across(setting: StrategySetting, size: int) -> tuple[int, ...]:
    """Ranks as far apart as the world allows, `size` of them: this one's pipeline, whose stages need the least of the
    network. A rank that is left over is one by itself."""
    apart = setting.ranks // size
    rank = setting.group.rank()
    return tuple(range(rank % apart, apart * size, apart)) if rank < apart * size else (rank,)


def grid(setting: StrategySetting, size: int, names: tuple[str, str]) -> DeviceMesh:
    """All ranks, in rows of `size` neighbours, which must divide them. All ranks together."""
    ranks = torch.arange(setting.ranks).view(-1, size)
    row, column = divmod(setting.group.rank(), size)
    groups = [part(setting, tuple(own.tolist())) for own in (ranks[:, column], ranks[row])]
    return DeviceMesh.from_group(groups, setting.device.type, mesh=ranks, mesh_dim_names=names)


def part(setting: StrategySetting, ranks: tuple[int, ...]) -> torch.distributed.ProcessGroup:
    assert setting.part is not None, "some ranks need a group of their own"
    return setting.part(ranks)


def words(dimensions: Sequence[tuple[str, int]], setting: StrategySetting) -> str:
    """ "2 x 2 (dp x tp), tp inside a node". The last dimension is that of neighbours, but for a pipeline's stages."""
    if not dimensions:
        return ""
    name, size = dimensions[-1]
    names, sizes = (" x ".join(str(dimension[place]) for dimension in dimensions) for place in (0, 1))
    inside = name != "pp" and size > 1 and setting.per_node % size == 0
    left = setting.ranks - math.prod(size for _, size in dimensions)
    over = f", {left} of {setting.ranks} ranks left over" if left else ""
    return f"{sizes} ({names}){f', {name} inside a node' if inside else ''}{over}"
