"""What is trained, and with which arithmetic: the same for a training alone and under every strategy."""

import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from preflight.sdk.arithmetic import plain_arithmetic
from preflight.train_smoke.trainer import batch, experts, model
from preflight.train_smoke.trainer.batch import Cut
from preflight.train_smoke.trainer.names import PLAIN, STEPS

LEARNING_RATE, MOMENTUM = 0.2, 0.9
ADAMW_RATE = 0.003
DECAY = 0.05
"""What a weight loses in a step, as a share of itself times the rate."""
ROWS, DISTINCT = 2, 31
"""Sequences per rank, and how many ranks have different ones: 31 is prime, so that nodes of 8 ranks do not soon repeat
each other. So every rank can train on all of them alone, in a world of any size."""


@dataclass(frozen=True)
class Recipe:
    """The arithmetic that the strategy does not change."""

    name: str = PLAIN
    autocast: bool = False
    """Forward under bfloat16 autocast."""
    mixed: bool = False
    """Parameters rounded to bfloat16 for forward and backward; gradients are summed, and steps taken, in float32."""
    adamw: bool = False
    """False: SGD with momentum, since AdamW hides a wrong scale of the gradient."""
    clip: float | None = None
    """The gradient's largest norm, as a share of the first step's."""
    uneven: bool = False
    """At the last step only the first half of the ranks (`Cut.early`) have a batch."""

    @property
    def bfloat16(self) -> bool:
        return self.autocast or self.mixed

    def optimizer(self, groups: "Groups", rates: "Rates") -> torch.optim.Optimizer:
        listed: Any = [{"params": groups.decaying, "weight_decay": DECAY}, {"params": groups.kept, "weight_decay": 0.0}]
        foreach = _foreach([*groups.decaying, *groups.kept])
        if self.adamw:
            return torch.optim.AdamW(listed, lr=rates.adamw, foreach=foreach)
        return torch.optim.SGD(listed, lr=rates.sgd, momentum=MOMENTUM, foreach=foreach)

    def forward(self, device: torch.device) -> AbstractContextManager[object]:
        """The context in which forward and loss run."""
        return torch.autocast(device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext()


IN_BFLOAT16 = Recipe("autocast, adamw", autocast=True, adamw=True)
"""As most models are trained."""


def _foreach(parameters: Sequence[nn.Parameter]) -> bool | None:
    """None is torch's choice: on GPUs, kernels for many tensors at once. These refuse DTensors beside plain tensors, as
    tensor parallelism leaves them."""
    return False if len(set(map(type, parameters))) > 1 else None


class Groups(NamedTuple):
    """The optimizer's groups of parameters: optimizers and wrappers have given all parameters the first one's
    settings."""

    decaying: Sequence[nn.Parameter]
    kept: Sequence[nn.Parameter]
    """Biases and norms, whose weights do not decay."""


class Rates(NamedTuple):
    sgd: float = LEARNING_RATE
    adamw: float = ADAMW_RATE


@dataclass(frozen=True)
class TrainingTask:
    """A model, its batch and its loss on one rank."""

    name: str
    new: Callable[[], nn.Module]
    """The model in float32 on the device, with the same weights at every call and on every rank."""
    loss: Callable[[nn.Module, Any], Tensor]
    """The mean over the batch's rows."""
    cut: Cut
    device: torch.device
    threads: int | None = 1
    """The number of threads for its arithmetic; None leaves it as it is."""
    rates: Rates = field(default_factory=Rates)
    steps: int = STEPS
    recut: Callable[[int, int], Cut] | None = None
    """Returns the global batch cut for share number I of N: for strategies in which several ranks see the same rows.
    None if that is not known."""
    alone: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    """The context of training alone, in which a user's collectives see one rank."""
    solo: "TrainingTask | None" = None
    """The task for training alone, if a user's model is built otherwise in a world of one rank."""
    common: bool = False
    """Whether the loss exchanges values with other ranks. Then it is one loss of all rows: alone the batch is never
    cut, and of the ranks' losses only the mean is known, and no gradient before the exchange."""
    written: frozenset[str] = frozenset()
    """Parameters without a gradient that forward itself changes (a teacher that follows its student)."""
    counts: bool = False
    """Whether collectives are counted: parts of a user's model may not work with a dispatch mode."""
    layers: bool = False
    """Whether the product of each layer is looked at: for ranks that each have a part of it."""
    tied: "TrainingTask | None" = None
    """The same with a model that has tied parameters."""
    sparse: "TrainingTask | None" = None
    """The same with a model that has experts."""

    def of_share(self, share: int, shares: int) -> "TrainingTask":
        """The same task with the batch of this share."""
        if (share, shares) == (self.cut.rank, self.cut.ranks):
            return self
        assert self.recut, f"{self.name}: its batch is cut by ranks only"
        return replace(self, cut=self.recut(share, shares))


def built_in(rank: int, ranks: int, device: torch.device, seed: int = model.SEED) -> TrainingTask:
    """The small transformer, on tokens that each determine the next one. `rank` is the number in the group; `seed`
    changes weights and tokens."""
    row = torch.arange(min(ranks, DISTINCT) * ROWS)
    columns = [(row * 11 + row // 7 + seed - model.SEED) % model.VOCABULARY]
    for _ in range(model.LENGTH):
        columns.append((columns[-1] * 5 + 3 + row % 3) % model.VOCABULARY)
    tokens = torch.stack(columns, dim=1).to(device)
    name = "transformer" if seed == model.SEED else f"transformer {seed}"
    new = functools.partial(model.new, device, seed)
    recut = functools.partial(_cut, tokens)
    untied = TrainingTask(name, new, _loss, recut(rank, ranks), device, recut=recut, counts=True)
    tied = replace(untied, name=f"{name}, tied", new=functools.partial(new, tied=True))
    sparse = replace(untied, name=f"{name}, experts", new=functools.partial(experts.new, device, seed))
    return replace(untied, tied=tied, sparse=sparse)


def _cut(tokens: Tensor, share: int, shares: int) -> Cut:
    if shares > DISTINCT:
        rows = [[sharer % DISTINCT * ROWS + place for place in range(ROWS)] for sharer in range(shares)]
    else:
        rows = [[*batch.rows_of(sharer, shares, len(tokens))] for sharer in range(shares)]
    return batch.cut(tokens, rows, share)


def _loss(trained: nn.Module, tokens: Tensor) -> Tensor:
    logits = trained(tokens[:, :-1])
    return functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])


# The arithmetic


@contextlib.contextmanager
def deterministic_arithmetic(threads: int | None = 1) -> Iterator[None]:
    """Plain arithmetic, with deterministic algorithms where they exist."""
    cudnn = torch.backends.cudnn
    flags = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    tf32, benchmark = cudnn.allow_tf32, cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)
    cudnn.allow_tf32, cudnn.benchmark = False, False
    try:
        with plain_arithmetic(threads), _attention_that_repeats_itself():
            yield
    finally:
        torch.use_deterministic_algorithms(flags[0], warn_only=flags[1])
        cudnn.allow_tf32, cudnn.benchmark = tf32, benchmark


def _attention_that_repeats_itself() -> AbstractContextManager[None]:
    """Avoids the fused kernels of GPUs, which add up the gradients of keys in any order."""
    attention: Any = torch.nn.attention
    return attention.sdpa_kernel(attention.SDPBackend.MATH) if torch.cuda.is_available() else contextlib.nullcontext()


def import_dynamo() -> None:
    """torch's optimizers and DDP import torch._dynamo at their first use: 0.9 s and 300,000 objects that stay. Without
    the garbage collector scanning them again and again it is 0.5 s."""
    if "torch._dynamo" in sys.modules:
        return
    gc.collect()
    gc.disable()
    try:
        import torch._dynamo  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()
