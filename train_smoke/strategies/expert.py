"""Expert parallel: each rank keeps some of the experts, and tokens go to their experts and back by all-to-all.

torch has no class for it: this is what frameworks write, with torch's all_to_all_single_autograd, and DDP for
everything but the experts. An expert's gradient comes from the tokens of all ranks, as a sum; DDP's is a mean.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, distributed, nn
from torch.distributed import _functional_collectives as functional_collectives
from torch.nn.parallel import DistributedDataParallel

from preflight.train_smoke.strategies.ddp import BUCKET_MB
from preflight.train_smoke.trainer import mesh
from preflight.train_smoke.trainer.experts import EXPERTS, Experts
from preflight.train_smoke.trainer.names import FEW_STEPS
from preflight.train_smoke.trainer.task import IN_BFLOAT16
from preflight.train_smoke.trainer.wrapped import Piece, ShardRange, StrategySetting, Values, Variant, Wrapped


def group_size(ranks: int) -> int:
    """How many neighbors share the experts: the largest divisor of the world size that is at most EXPERTS. From 4 ranks
    on all of them only if there is no smaller one: else each expert has a replica."""
    sizes = [size for size in range(1, EXPERTS + 1) if ranks % size == 0]
    return sizes[-2] if sizes[-1] == ranks >= 4 and len(sizes) > 2 else sizes[-1]


class TokenExchange:
    """Sends rows to the ranks of their experts, and the results back."""

    def __init__(self, group: distributed.ProcessGroup) -> None:
        self._group = group
        self.kept = [own.tolist() for own in torch.arange(EXPERTS).tensor_split(group.size())]
        """The experts of each rank, which are consecutive."""

    def __call__(self, rows: Tensor, counts: Tensor, apply: Callable[[Tensor, Sequence[int]], Tensor]) -> Tensor:
        of_all = [torch.empty_like(counts) for _ in self.kept]
        distributed.all_gather(of_all, counts, group=self._group)
        mine = torch.stack(of_all)[:, self.kept[self._group.rank()]]  # (source, expert that is here)
        sent = [int(counts[own].sum()) for own in self.kept]
        here = self._all_to_all(rows, mine.sum(dim=1).tolist(), sent)
        experts = torch.arange(mine.shape[1], device=rows.device).repeat(mine.shape[0])
        order = experts.repeat_interleave(mine.flatten()).argsort(stable=True)  # they came in the order of sources
        made = apply(here[order], mine.sum(dim=0).tolist())[order.argsort()]
        return self._all_to_all(made, sent, mine.sum(dim=1).tolist())

    def _all_to_all(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        made: Tensor = functional_collectives.all_to_all_single_autograd(rows, received, sent, self._group)
        return made


class UnderExpertParallel(Wrapped):
    module: DistributedDataParallel

    def __init__(self, plain: nn.Module, setting: StrategySetting) -> None:
        size, rank = group_size(setting.ranks), setting.group.rank()
        first = rank // size * size
        self._ranks, self._group = setting.ranks, setting.group
        self._replicas = setting.group if size == 1 else None
        if 1 < size < setting.ranks:
            self._group = mesh.part(setting, tuple(range(first, first + size)))
            self._replicas = mesh.part(setting, tuple(range(rank % size, setting.ranks, size)))
        elif size == 1:
            self._group = mesh.part(setting, (rank,))
        self._exchange = TokenExchange(self._group)
        self._cut = _spread(plain, self._exchange, self._group.rank())
        ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(plain, list(self._cut))  # type: ignore[no-untyped-call]
        # A router without a gradient is reported; else DDP would raise at its next step without naming a parameter.
        module = DistributedDataParallel(
            plain, process_group=setting.group, bucket_cap_mb=BUCKET_MB, find_unused_parameters=True
        )
        super().__init__(module, plain)

    def finish(self) -> None:
        """Turns an expert's gradient, the sum over the tokens of its group's ranks, into the mean over all ranks."""
        for parameter in self._cut.values():
            if parameter.grad is not None:
                if self._replicas is not None:
                    distributed.all_reduce(parameter.grad, group=self._replicas)
                parameter.grad /= self._ranks

    def places(self) -> Mapping[str, Piece]:
        first = self._exchange.kept[self._group.rank()][0]
        starts = {name: first * parameter[0].numel() for name, parameter in self._cut.items()}
        return {name: ShardRange(starts.get(name, 0), parameter.numel()) for name, parameter in self.named()}

    def gradients(self) -> Values:
        return self._whole(super().gradients())

    def weights(self) -> Values:
        return self._whole(super().weights())

    def states(self, optimizer: torch.optim.Optimizer) -> Values:
        return self._whole(super().states(optimizer))

    def _whole(self, values: Values) -> Values:
        for name, value in values:
            yield name, self._gathered(value) if name.partition(" ")[0] in self._cut else value

    def _gathered(self, here: Tensor) -> Tensor:
        """The values of all experts, of which each rank has its own."""
        most = max(map(len, self._exchange.kept))
        padded = here.new_zeros(most, *here.shape[1:])
        padded[: len(here)] = here
        every = [torch.empty_like(padded) for _ in self._exchange.kept]
        distributed.all_gather(every, padded, group=self._group)
        return torch.cat([rows[: len(own)] for rows, own in zip(every, self._exchange.kept, strict=True)])


def _spread(plain: nn.Module, exchange: TokenExchange, rank: int) -> dict[str, nn.Parameter]:
    """Keeps only this rank's experts in the model. Returns their parameters by name."""
    cut: dict[str, nn.Parameter] = {}
    for path, module in plain.named_modules():
        if isinstance(module, Experts):
            module.dispatch = exchange
            for name in ("up", "down"):
                own = nn.Parameter(getattr(module, name).detach()[exchange.kept[rank]].clone())
                setattr(module, name, own)
                cut[f"{path}.{name}"] = own
    return cut


def _unfit(_setting: StrategySetting) -> str:
    has = hasattr(functional_collectives, "all_to_all_single_autograd")
    return "" if has else f"torch {torch.__version__} has no all_to_all_single_autograd"


VARIANTS: Mapping[str, Variant] = {
    "all_to_all": Variant(UnderExpertParallel, unfit=_unfit, sparse=True, waits_within=True),
    "autocast": Variant(
        UnderExpertParallel, IN_BFLOAT16, unfit=_unfit, sparse=True, waits_within=True, steps=FEW_STEPS
    ),
}
"""By the names of trainer/names.py."""
