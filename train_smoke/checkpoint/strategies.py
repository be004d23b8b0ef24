"""The strategies under which checkpoints are written and read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn
from torch.distributed.fsdp import fully_shard

from preflight.train_smoke.checkpoint.names import ALONE, HALF
from preflight.train_smoke.strategies import ddp, fsdp, fsdp2, hybrid, tp
from preflight.train_smoke.trainer import mesh
from preflight.train_smoke.trainer.dtensors import OfDTensors
from preflight.train_smoke.trainer.names import PLAIN
from preflight.train_smoke.trainer.wrapped import StrategySetting, Wrapped, blocks


@dataclass(frozen=True)
class Strategy:
    wrap: Callable[[nn.Module, StrategySetting], Wrapped]
    share: Callable[[StrategySetting], tuple[int, int]] | None = None
    """(this rank's share of the batch, the number of shares); None if each rank has its own."""


def _fsdp2_tp(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    """Like the variant of hybrid.py, for a model with tied parameters."""
    ranks = mesh.grid(setting, _tensor_ranks(setting), ("dp", "tp"))
    tp.cut(plain, ranks["tp"], tp.plan(sequence=True, cut_loss=False))
    for unit in (*blocks(plain), plain):
        fully_shard(unit, mesh=ranks["dp"])
    return OfDTensors(plain, plain, setting)


def _tensor_ranks(setting: StrategySetting) -> int:
    """Two if possible, so that each matrix is cut both ways as soon as there are four ranks."""
    return 2 if setting.ranks % 2 == 0 else 1


def _share(setting: StrategySetting) -> tuple[int, int]:
    size = _tensor_ranks(setting)
    return setting.group.rank() // size, setting.ranks // size


def ranks_of(target: str, ranks: int) -> int:
    """How many of `ranks` ranks take part (the first ones)."""
    return {HALF: max(1, ranks // 2), ALONE: 1}.get(target, ranks)


_FSDP2 = Strategy(fsdp2.VARIANTS[PLAIN].wrap)
STRATEGIES: Mapping[str, Strategy] = {
    "ddp": Strategy(ddp.VARIANTS[PLAIN].wrap),
    "fsdp": Strategy(fsdp.VARIANTS["full_shard"].wrap),
    "fsdp2": _FSDP2,
    "hsdp": Strategy(hybrid.VARIANTS["hsdp"].wrap),
    "fsdp2_tp": Strategy(_fsdp2_tp, _share),
    HALF: _FSDP2,
    ALONE: Strategy(lambda plain, _setting: Wrapped(plain, plain)),
}
"""By the names of names.py."""
