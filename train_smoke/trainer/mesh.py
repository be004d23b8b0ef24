"""Which ranks share a model, and which replicate it: the meshes of strategies beyond data parallel."""

import math
from collections.abc import Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh

from preflight.train_smoke.trainer import model
from preflight.train_smoke.trainer.wrapped import StrategySetting


def tensor_ranks(setting: StrategySetting) -> int:
    """How many neighbors share each matrix: 4 or 2 ranks of a node, whose links are the fastest; of all ranks if each
    node has one. A rank that is left over is its own group."""
    near = setting.per_node if setting.per_node > 1 else setting.ranks
    return next((size for size in (model.HEADS, 2) if near % size == 0), min(2, near))


def grid_ranks(setting: StrategySetting) -> int:
    """The same if other ranks replicate or share the work: fewer ranks share a matrix, to leave some for that."""
    near = setting.per_node if setting.per_node > 1 else setting.ranks
    fitting = [size for size in (model.HEADS, 2) if near % size == 0 and setting.ranks % size == 0]
    return next((size for size in fitting if size < setting.ranks), min(fitting, default=1))


def neighbours(setting: StrategySetting, size: int) -> DeviceMesh:
    """A one-dimensional mesh of this rank and its neighbors, at most `size`. Called on all ranks together."""
    first = setting.group.rank() // size * size
    ranks = tuple(range(first, min(first + size, setting.ranks)))
    group = setting.group if len(ranks) == setting.ranks else part(setting, ranks)
    return DeviceMesh.from_group(group, setting.device.type, mesh_dim_names=("tp",))


def across(setting: StrategySetting, size: int) -> tuple[int, ...]:
    """The ranks of this rank's pipeline: `size` ranks as far apart as possible, since its stages need the network
    least. A rank that is left over is alone."""
    apart = setting.ranks // size
    rank = setting.group.rank()
    return tuple(range(rank % apart, apart * size, apart)) if rank < apart * size else (rank,)


def grid(setting: StrategySetting, size: int, names: tuple[str, str]) -> DeviceMesh:
    """All ranks in rows of `size` neighbors, which must divide their number. Called on all ranks together."""
    ranks = torch.arange(setting.ranks).view(-1, size)
    row, column = divmod(setting.group.rank(), size)
    groups = [part(setting, tuple(own.tolist())) for own in (ranks[:, column], ranks[row])]
    return DeviceMesh.from_group(groups, setting.device.type, mesh=ranks, mesh_dim_names=names)


def part(setting: StrategySetting, ranks: tuple[int, ...]) -> torch.distributed.ProcessGroup:
    assert setting.part is not None, "some ranks need their own group"
    return setting.part(ranks)


def words(dimensions: Sequence[tuple[str, int]], setting: StrategySetting) -> str:
    """ "2 x 2 (dp x tp), tp inside a node". The last dimension is that of neighbors, except for a pipeline's stages."""
    if not dimensions:
        return ""
    name, size = dimensions[-1]
    names, sizes = (" x ".join(str(dimension[place]) for dimension in dimensions) for place in (0, 1))
    inside = name != "pp" and size > 1 and setting.per_node % size == 0
    left = setting.ranks - math.prod(size for _, size in dimensions)
    over = f", {left} of {setting.ranks} ranks left over" if left else ""
    return f"{sizes} ({names}){f', {name} inside a node' if inside else ''}{over}"
