"""Models that bring a tensor-parallel plan, plans that are named beside a model, and mistakes in either."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional


class Planned(nn.Module):
    """An embedding, two blocks and an output layer; its plan is in transformers' words."""

    _tp_plan: dict[str, str] | None = {  # noqa: RUF012 -- as transformers have it
        "embedding": "embedding_rowwise",
        "blocks.*.up": "colwise",
        "blocks.*.down": "rowwise",
        "head": "colwise_rep",
    }

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(24, 16)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(16), "up": nn.Linear(16, 32), "down": nn.Linear(32, 16)})
            for _ in range(2)
        )
        self.head = nn.Linear(16, 24, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict)
            x = x + block["down"](functional.gelu(block["up"](block["norm"](x))))
        made: Tensor = self.head(x)
        return made


def _loss(model: nn.Module, ids: Tensor) -> Tensor:
    return functional.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:])


def _made(*, tied: bool = False) -> Any:
    return Planned(tied=tied), torch.randint(0, 24, (4, 7)), _loss


def planned() -> Any:
    return _made()


def tied() -> Any:
    """parallelize_module makes two parameters of its one."""
    return _made(tied=True)


def unplanned() -> Any:
    model, batch, loss = _made()
    model._tp_plan = None
    return model, batch, loss


def odd_words() -> Any:
    model, batch, loss = _made()
    model._tp_plan = {"head": "moe_tp_experts"}
    return model, batch, loss


STYLES = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
MISSPELT = {"block.*.up": ColwiseParallel()}
ODD = {"head": "columnwise"}
NO_DICT = [ColwiseParallel()]


def by_model(model: nn.Module) -> Any:
    """One block alone."""
    assert isinstance(model, Planned)
    return {"blocks.1.up": ColwiseParallel(), "blocks.1.down": "rowwise"}


def applied(model: nn.Module, mesh: DeviceMesh) -> None:
    """As one does who knows: ties are made again."""
    embedding = RowwiseParallel(input_layouts=Replicate())
    head = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, mesh, {"embedding": embedding, "head": head})
    assert isinstance(model, Planned)
    model.head.weight = model.embedding.weight


def forgets_to_gather(model: nn.Module) -> Any:
    """The logits stay cut, and the loss takes them for whole."""
    return {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)} if model else {}


def cut_twice(model: nn.Module) -> Any:
    """The second matrix of a block gets each rank's part of its inputs, and adds nothing up."""
    return {f"blocks.{number}.up": ColwiseParallel() for number in range(2)} if model else {}


def never_adds_up(model: nn.Module) -> Any:
    """Each rank goes on with its own part of the sum."""
    plan: dict[str, Any] = {}
    for number in range(2 if model else 0):
        plan |= {f"blocks.{number}.up": ColwiseParallel(), f"blocks.{number}.down": NeverAddsUp()}
    return plan


class NeverAddsUp(RowwiseParallel):
    """As a module of one's own does that forgets its all-reduce."""

    @staticmethod
    def _prepare_output_fn(output_layouts: Any, use_local_output: Any, mod: Any, outputs: Any, mesh: Any) -> Any:  # noqa: ARG004
        return outputs.to_local()


def raises(model: nn.Module) -> Any:
    return {"head": ColwiseParallel()} if model.layers else {}
