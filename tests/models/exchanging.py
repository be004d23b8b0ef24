"""Models whose loss or forward exchanges values between ranks, rightly (RIGHT) and not (WRONG), as users write them."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional_collectives
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from tests.models.sound import Made

ROWS = 12
WORLD: Any = dist.group.WORLD
"""Taken where the module is imported: the group of all ranks, not that of one."""


class _AllGather(torch.autograd.Function):
    """Gathers rows; backward adds up what all ranks have for each rank's rows."""

    @staticmethod
    def forward(context: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        context.rows = len(rows)
        return torch.cat(parts)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        whole = gradients[0].clone()
        dist.all_reduce(whole)
        return whole[dist.get_rank() * context.rows :][: context.rows]


class _OnlyItsShare(_AllGather):
    """Backward returns this rank's slice of its own gradient: 1 / ranks of what the mean over ranks needs."""

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0][dist.get_rank() * context.rows :][: context.rows]


def _twins(gather: Any) -> Made:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        left, right = (functional.normalize(model(views), dim=-1) for views in batch)
        logits = 5 * gather(left) @ gather(right).T
        return functional.cross_entropy(logits, torch.arange(len(logits)))

    return _mlp(), (torch.randn(ROWS, 8), torch.randn(ROWS, 8)), loss


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))


def contrastive() -> Made:
    return _twins(_AllGather.apply)


def contrastive_with_batch_norm() -> Made:
    _, batch, loss = contrastive()
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8)), batch, loss


class _KeepsTheNumber:
    """A loss that keeps rank and number of ranks from when it was made."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        left, right = (functional.normalize(model(views), dim=-1) for views in batch)
        parts = [torch.empty_like(right) for _ in range(self.ranks)]
        dist.all_gather(parts, right.detach())
        own = torch.arange(len(left)) + len(left) * self.rank
        return functional.cross_entropy(5 * left @ torch.cat(parts).T, own)


def keeps_the_number_of_ranks() -> Made:
    """Each rank's loss is of its own rows, against those of all ranks, which are targets without a gradient."""
    _, batch, _ = contrastive()
    return _mlp(), batch, _KeepsTheNumber()


def counted_over_a_kept_group() -> Made:
    """The group was taken when the module was imported."""
    return _tokens(lambda total, count: total * dist.get_world_size(WORLD) / _summed(count, WORLD))


def gathered_by_functional() -> Made:
    """Without a gradient of what is gathered: a mean of squares to the center of all rows, which is a constant."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        outputs = model(batch)
        center = functional_collectives.all_reduce(outputs.detach().mean(0), "avg", WORLD)
        return functional.mse_loss(outputs, center.expand_as(outputs))

    return _mlp(), torch.randn(ROWS, 8), loss


def tokens_counted_over_ranks() -> Made:
    return _tokens(lambda total, count: total * dist.get_world_size() / _summed(count))


def tokens_counted_but_not_multiplied() -> Made:
    return _tokens(lambda total, count: total / _summed(count))


def _summed(value: Tensor, group: Any = None) -> Tensor:
    dist.all_reduce(value, group=group)
    return value


def _tokens(mean: Any) -> Made:
    labels = torch.randint(0, 16, (ROWS, 6))
    for row, length in enumerate((6, 5, 6, 4, 6, 5, 1, 2, 1, 3, 2, 1)):
        labels[row, length:] = -100

    def loss(model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        total = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
        return mean(total, (targets != -100).sum().float())  # type: ignore[no-any-return]

    return nn.Sequential(nn.Embedding(16, 12), nn.Linear(12, 16)), (torch.randint(0, 16, (ROWS, 6)), labels), loss


def asks_for_its_rank() -> Made:
    """To print on one rank only: nothing is exchanged."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        if dist.get_rank() == 0 and dist.get_world_size() > 99:
            print("a large job")
        return functional.mse_loss(model(batch), batch)

    return _mlp(), torch.randn(ROWS, 8), loss


class _Codebook(nn.Module):
    def __init__(self, exchange: Any) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(6, 8))
        self.register_buffer("uses", torch.zeros(6))
        self.exchange = exchange

    def forward(self, rows: Tensor) -> Tensor:
        codes, uses = self.get_buffer("codes"), self.get_buffer("uses")
        hot = functional.one_hot(torch.cdist(rows.detach(), codes).argmin(-1), len(codes)).float()
        counts, sums = self.exchange(hot.sum(0)), self.exchange(hot.T @ rows.detach())
        nearest = hot @ codes
        with torch.no_grad():
            uses.add_(counts)
            codes.lerp_(sums / counts.clamp(min=1)[:, None], 0.1)
        return rows + (nearest - rows).detach()


class _Quantized(nn.Module):
    def __init__(self, exchange: Any) -> None:
        super().__init__()
        self.encoder, self.codebook, self.decoder = nn.Linear(8, 8), _Codebook(exchange), nn.Linear(8, 8)

    def forward(self, rows: Tensor) -> Any:
        return self.decoder(self.codebook(self.encoder(rows)))


def _quantized(exchange: Any) -> Made:
    return _Quantized(exchange), torch.randn(ROWS, 8), lambda model, batch: functional.mse_loss(model(batch), batch)


def codebook_of_all_rows() -> Made:
    return _quantized(_summed)


def codebook_by_rank() -> Made:
    return _quantized(lambda value: value)


class _Teacher(nn.Module):
    """A student, and a teacher that follows it within forward; the center of the teacher's outputs is a buffer."""

    def __init__(self, divide: Any) -> None:
        super().__init__()
        self.student, self.divide = nn.Linear(8, 6), divide
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("center", torch.zeros(6))

    def forward(self, rows: Tensor) -> Tensor:
        center = self.get_buffer("center")
        with torch.no_grad():
            for kept, own in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                if not hasattr(own, "to_local"):  # FSDP2 gathers the teacher's later
                    kept.lerp_(own + 0.01, 0.1)
            taught = self.teacher(rows)
            targets = functional.softmax((taught - center) / 0.1, dim=-1)
            center.lerp_(self.divide(taught), 0.1)
        losses: Tensor = -(targets * functional.log_softmax(self.student(rows), dim=-1)).sum(-1)
        return losses.mean()


def _taught(divide: Any) -> Made:
    return _Teacher(divide), torch.randn(ROWS, 8), lambda model, batch: model(batch)


def centered_over_ranks() -> Made:
    return _taught(lambda rows: _summed(rows.sum(0)) / (len(rows) * dist.get_world_size()))


def center_divided_by_own_rows() -> Made:
    return _taught(lambda rows: _summed(rows.sum(0)) / len(rows))


class _Queue(nn.Module):
    """Keys of all ranks take the place of the oldest in the queue."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 4)
        self.key: nn.Module = nn.Linear(8, 4).requires_grad_(False)
        self.register_buffer("queue", functional.normalize(torch.randn(2 * ROWS, 4), dim=-1))

    def forward(self, rows: Tensor) -> Tensor:
        queue = self.get_buffer("queue")
        keys = functional.normalize(self.key(rows), dim=-1)
        logits = functional.normalize(self.query(rows), dim=-1) @ torch.cat([keys[:1], queue]).T
        everyones = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, keys)
        with torch.no_grad():
            queue.copy_(torch.cat([*everyones, queue])[: len(queue)])
        losses: Tensor = logits[:, 1:].logsumexp(-1)
        return losses.mean()


def queue_of_all_keys() -> Made:
    return _Queue(), torch.randn(ROWS, 8), lambda model, batch: model(batch)


def gathers_only_its_share() -> Made:
    return _twins(_OnlyItsShare.apply)


def gathers_without_gradient() -> Made:
    """The own rows take their place, as in a contrastive loss without `gather_with_grad`."""

    def gather(rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.detach())
        parts[dist.get_rank()] = rows
        return torch.cat(parts)

    return _twins(gather)


def gathers_without_gradient_and_multiplies() -> Made:
    """Right: each rank has 1 / ranks of the gradient, and its loss is multiplied by their number."""
    made: Any = gathers_without_gradient()
    model, batch, loss = made
    return model, batch, lambda wrapped, rows: loss(wrapped, rows) * dist.get_world_size()


def multiplies_once_too_often() -> Made:
    made: Any = contrastive()
    model, batch, loss = made
    return model, batch, lambda wrapped, rows: loss(wrapped, rows) * dist.get_world_size()


def few_valid_rows() -> Made:
    """A mean over the valid rows, of which the second half has none."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows, valid = batch
        outputs = model(rows)
        losses: Tensor = outputs.square().mean(-1) * valid
        share: Tensor = 0 * outputs.sum() + losses.sum() / valid.sum().clamp(min=1)
        return share

    return _mlp(), (torch.randn(ROWS, 8), (torch.arange(ROWS) < ROWS // 3).float()), loss


class _Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.down(functional.dropout(self.up(rows), 0.1))
        return outputs


def _masked(seed: int) -> Made:
    torch.manual_seed(7)
    model = _Masked()
    batch = torch.randn(ROWS, 8)
    torch.manual_seed(seed)
    return model, batch, lambda wrapped, rows: functional.mse_loss(wrapped(rows), rows)


def seeded_by_rank() -> Made:
    """Right for other rows; wrong where ranks share a layer."""
    return _masked(100 + dist.get_rank())


def seeded_alike() -> Made:
    return _masked(100)


def shared_by_ranks(model: Any, mesh: Any) -> None:
    """A tensor-parallel plan."""
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
