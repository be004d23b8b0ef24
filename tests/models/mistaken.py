"""Models of which none can be trained on several ranks as it is: each function has one mistake."""

import dataclasses
import itertools
import os
import signal
import sys
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.models.sound import Made, Stochastic, classes, complex_

RANK = int(os.environ.get("RANK", "0"))


def _made(model: nn.Module | None = None, batch: Any = None, loss: Any = None) -> Any:
    given = (torch.randn(8, 4), torch.randint(0, 2, (8,))) if batch is None else batch
    return model or nn.Linear(4, 2), given, loss or classes


def raises() -> Made:
    raise ValueError("hidden size 65 is no multiple of 4 heads")


class Raising(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.flatten())


def raises_in_forward() -> Any:
    return _made(Raising(4, 2))


def leaves_in_loss() -> Any:
    return _made(loss=lambda *_: sys.exit(3))


def no_triple() -> Any:
    return {"model": nn.Linear(4, 2)}


def only_two() -> Any:
    return _made()[:2]


def wrapped() -> Any:
    return _made(nn.Sequential(nn.DataParallel(nn.Linear(4, 2))))


def on_meta() -> Any:
    with torch.device("meta"):
        return _made(nn.Linear(4, 2), torch.zeros(8, 4))


def lazy() -> Any:
    return _made(nn.LazyLinear(2))


def no_parameters() -> Any:
    return _made(nn.ReLU())


def all_frozen() -> Any:
    return _made(nn.Linear(4, 2).requires_grad_(False))


KEPT = nn.Linear(4, 2)
KEPT.log = sys.stdout  # type: ignore[assignment]


def cannot_be_copied() -> Any:
    """And is the same one at every call."""
    return _made(KEPT)


def out_of_range() -> Any:
    """Targets beyond 0 and 1, in the batch as it is given."""
    bce, targets = nn.BCELoss(), torch.linspace(0, 1.5, 8)[:, None].expand(8, 2)
    return _made(
        nn.Sequential(nn.Linear(4, 2), nn.Sigmoid()),
        (torch.randn(8, 4), targets),
        lambda model, batch: bce(model(batch[0]), batch[1]),
    )


def bce_summed() -> Any:
    bce, targets = nn.BCELoss(reduction="sum"), torch.tensor([[0.0, 1.0]] * 8)
    return _made(
        nn.Sequential(nn.Linear(4, 2), nn.Sigmoid()),
        (torch.randn(8, 4), targets),
        lambda model, batch: bce(model(batch[0]), batch[1]),
    )


def loader() -> Any:
    return _made(batch=DataLoader(TensorDataset(torch.zeros(8, 4))))


def generator() -> Any:
    return _made(batch=(torch.zeros(8, 4), itertools.count()))


def numbers() -> Any:
    return _made(batch={"inputs": torch.zeros(8, 4), "scale": 2.0})


def unequal_rows() -> Any:
    return _made(batch=(torch.zeros(8, 4), torch.zeros(7)))


def no_dimension() -> Any:
    return _made(batch=(torch.zeros(8, 4), torch.tensor(1.0)))


def no_rows() -> Any:
    return _made(batch=torch.zeros(0, 4))


def loss_of_each_row() -> Any:
    return _made(loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1], reduction="none"))


def loss_as_number() -> Any:
    return _made(loss=lambda model, batch: classes(model, batch).item())


def loss_detached() -> Any:
    return _made(loss=lambda model, batch: classes(model, batch).detach())


def loss_not_finite() -> Any:
    return _made(loss=lambda model, batch: (model(batch[0]) * 0).log().mean())


def loss_of_another_model() -> Any:
    other = nn.Linear(4, 2)
    return _made(loss=lambda _, batch: classes(other, batch))


def loss_without_slope() -> Any:
    return _made(loss=lambda model, batch: (model(batch[0]) * 0).mean())


def sparse() -> Any:
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Flatten(), nn.Linear(4, 2))
    return _made(model, (torch.randint(0, 8, (8, 1)), torch.randint(0, 2, (8,))))


class Carrying(nn.Linear):
    """Adds what it made of the rows before."""

    def __init__(self, *, detached: bool) -> None:
        super().__init__(4, 2)
        self.before, self.detached = torch.zeros(2), detached

    def forward(self, inputs: Tensor) -> Tensor:
        made = super().forward(inputs) + self.before
        self.before = made.detach().mean(0) if self.detached else made.mean(0)
        return made


def carries_a_graph() -> Any:
    return _made(Carrying(detached=False))


def carries() -> Any:
    return _made(Carrying(detached=True))


def goes_back_itself() -> Any:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        made = classes(model, batch)
        made.backward()  # type: ignore[no-untyped-call]
        return made

    return _made(loss=loss)


@dataclasses.dataclass
class Rows:
    inputs: Tensor
    targets: Tensor


def dataclass_batch() -> Any:
    return _made(batch=Rows(torch.randn(8, 4), torch.randint(0, 2, (8,))))


def summed() -> Any:
    return _made(loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1], reduction="sum"))


def huge() -> Any:
    """A trillion weights that take no memory."""
    model = nn.Linear(4, 2)
    model.table = nn.Parameter(torch.zeros(1).expand(10**6, 10**6))
    return _made(model)


def more_than_there_is() -> Any:
    return _made(nn.Linear(2**24, 2**24))


# On one rank only


def raises_on_one() -> Any:
    return raises() if RANK == 1 else _made()


def other_shape() -> Any:
    return _made(nn.Sequential(nn.Linear(4, 4 + RANK % 2), nn.Linear(4 + RANK % 2, 2)))


def other_batch() -> Any:
    torch.manual_seed(RANK % 2)
    return _made(batch=(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)))


class Reached(nn.Linear):
    """Its loss calls a method that a wrapper does not have."""

    def encode(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs)


def reaches_through_the_wrapper() -> Any:
    return _made(Reached(4, 2), loss=lambda model, batch: functional.cross_entropy(model.encode(batch[0]), batch[1]))


def weighs_more_on_one() -> Any:
    """Under DDP only, and by a little."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        factor = 1.001 if RANK == 1 and isinstance(model, nn.parallel.DistributedDataParallel) else 1.0
        made: Tensor = classes(model, batch) * factor
        return made

    return _made(loss=loss)


def complex_weighs_more_on_one() -> Any:
    """By its imaginary part only."""
    model, batch, _ = complex_()

    def loss(wrapped: nn.Module, rows: Any) -> Tensor:
        made = classes(wrapped, rows)
        if RANK == 1 and isinstance(wrapped, nn.parallel.DistributedDataParallel):
            made = made + 0.01 * wrapped.module.inner.imag.sum() - 0.01 * wrapped.module.inner.imag.sum().detach()
        return made

    return model, batch, loss


def weight_norm_weighs_more_on_one() -> Any:
    """The same with a model that cannot be copied."""
    _, batch, loss = weighs_more_on_one()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(4, 2)), batch, loss


def draws_and_weighs_more_on_one() -> Any:
    """The same with random numbers."""
    _, batch, loss = weighs_more_on_one()
    return Stochastic(4, 2), batch, loss


def raises_late_on_one() -> Any:
    """In the loss, before the model's forward, once the ranks train together."""
    steps = itertools.count()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if RANK == 1 and isinstance(model, nn.parallel.DistributedDataParallel) and next(steps) == 3:
            raise LookupError("no such row")
        return classes(model, batch)

    return _made(loss=loss)


class Dying(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(inputs)


def dies() -> Any:
    return _made(Dying(4, 2))


class Slow(nn.Linear):
    """Each forward takes some seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(4, 2)
        self.seconds = seconds

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return super().forward(inputs)


def slow() -> Any:
    return _made(Slow(8))


def for_ever_on_one() -> Any:
    return _made(Slow(1e6 if os.environ["RANK"] == "1" else 0))
