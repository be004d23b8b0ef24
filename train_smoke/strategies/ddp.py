"""DistributedDataParallel and its variants."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from preflight.train_smoke.trainer.collectives import Need
from preflight.train_smoke.trainer.model import Transformer
from preflight.train_smoke.trainer.names import PLAIN
from preflight.train_smoke.trainer.task import Recipe
from preflight.train_smoke.trainer.wrapped import StrategySetting, Variant, Wrapped

BUCKET_MB = 0.1
"""Small enough for several buckets of gradients, so that several all-reduces overlap as with a large model."""


class UnderDdp(Wrapped):
    """Each rank has the whole model."""

    module: DistributedDataParallel

    def __init__(self, plain: nn.Module, setting: StrategySetting, **options: Any) -> None:
        given = {"process_group": setting.group, "bucket_cap_mb": BUCKET_MB, **options}
        own = {name: value for name, value in given.items() if value is not None}
        super().__init__(DistributedDataParallel(plain, **own), plain)
        self.sizes = {"ranks": setting.ranks}
        if setting.ranks > 1:
            self.needs = [Need(("all-reduce",), setting.group, "ranks", 1, "one at least, for DDP's buckets")]

    def piece(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self.module.no_sync()


class Joined(UnderDdp):
    """Ranks that are out of data wait until the others are, too."""

    def joining(self) -> AbstractContextManager[object]:
        return Join([self.module])


def _plain(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    return UnderDdp(plain, setting)


def _bucket_view(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    if isinstance(plain, Transformer) and setting.group.rank():
        _spoil(plain)
    return UnderDdp(plain, setting, gradient_as_bucket_view=True, static_graph=True)


@torch.no_grad()
def _spoil(plain: nn.Module) -> None:
    """Other weights and buffers than the lowest rank's, whose DDP sends to all: jobs that draw weights without a common
    seed, or load them on one rank, rely on it."""
    for tensor in (*plain.parameters(), *plain.buffers()):
        tensor.add_(1)


VARIANTS: Mapping[str, Variant] = {
    PLAIN: Variant(_plain),
    "no_sync": Variant(_plain, in_pieces=True),
    "join": Variant(Joined, Recipe("uneven", uneven=True)),
    "bucket_view": Variant(_bucket_view),
    "clip": Variant(_plain, Recipe("clip", clip=0.5)),
    "autocast": Variant(_plain, Recipe("autocast", autocast=True)),
}
"""By the names of trainer/names.py."""
