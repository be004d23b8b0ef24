"""Trains the model for ten steps of SGD with momentum: alone on the global batch, or under DDP on a rank's part of it.

SGD and not Adam, which hides a wrong scale of the gradient. Nothing is downloaded: tokens are made of whole numbers.

The global batch is `ROWS` sequences a rank. Every rank can train on all of it, since only 31 ranks have sequences of
their own and the others have the same again: each sequence weighs in the mean as often as it occurs. (31 is a prime,
so that nodes of 8 ranks do not repeat each other soon.)
"""

import contextlib
import functools
import gc
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from preflight.train_smoke import model
from preflight.train_smoke.compare import QUANTITIES, Curve, Furthest, Number

STEPS, LEARNING_RATE, MOMENTUM = 10, 0.2, 0.9
ROWS, DISTINCT = 2, 31
BUCKET_MB = 0.1
"""Some buckets of gradients, so that several all-reduces are under way as with a large model."""

Mark = Callable[[str, str], AbstractContextManager[None]]
"""Marks the time in which a rank may wait for others: (operation, step)."""


# The batch


@dataclass(frozen=True)
class Part:
    """Sequences of the global batch, each with its weight in the mean over it."""

    tokens: Tensor
    weights: Tensor

    def rows(self, chosen: Tensor) -> "Part":
        return Part(self.tokens[chosen], self.weights[chosen])


@dataclass(frozen=True)
class Batch:
    """The global batch as one rank has it."""

    whole: Part
    parts: tuple[Part, ...]
    """The same in two parts, this rank's own last. (A single rank's own is all.)"""
    own: Part
    """This rank's own, for DDP, which makes the mean over the ranks: it weighs 1 by itself."""


def batch_for(group_rank: int, ranks: int, device: torch.device) -> Batch:
    """Each token tells the next one; the model learns it within ten steps."""
    distinct = min(ranks, DISTINCT)
    row = torch.arange(distinct * ROWS)
    columns = [(row * 11 + row // 7) % model.VOCABULARY]
    for _ in range(model.LENGTH):
        columns.append((columns[-1] * 5 + 3 + row % 3) % model.VOCABULARY)
    holders = torch.bincount(torch.arange(ranks) % distinct).repeat_interleave(ROWS)
    whole = Part(torch.stack(columns, dim=1).to(device), (holders / (ranks * ROWS)).to(device))
    mine = (row // ROWS == group_rank % distinct).to(device)
    own = whole.rows(mine)
    parts = (whole.rows(~mine), own) if distinct > 1 else (own,)
    return Batch(whole, parts, Part(own.tokens, torch.full_like(own.weights, 1 / ROWS)))


# The training


@dataclass(frozen=True)
class Trained:
    """A training's curve, its parameters before and after it, and their gradients at the first step."""

    curve: Curve
    start: dict[str, Tensor]
    gradient: dict[str, Tensor]
    end: dict[str, Tensor]


def alone(plain: nn.Module, _mark: Mark) -> nn.Module:
    """No strategy."""
    return plain


def ddp(group: torch.distributed.ProcessGroup) -> Callable[[nn.Module, Mark], nn.Module]:
    """DistributedDataParallel over a process group."""

    def wrap(plain: nn.Module, mark: Mark) -> nn.Module:
        with mark("DDP start", ""):
            return DistributedDataParallel(plain, process_group=group, bucket_cap_mb=BUCKET_MB)

    return wrap


def unmarked(_operation: str, _step: str) -> AbstractContextManager[None]:
    """Where nobody waits for anybody."""
    return contextlib.nullcontext()


class Watch:
    """Sees a model's gradients as backward makes them, before DDP averages them, and marks where this rank waits for
    others: in DDP's forward until the model's own begins, and from the last gradient of its own on."""

    def __init__(self, plain: nn.Module, mark: Mark) -> None:
        self.waiting = contextlib.ExitStack()
        self._mark, self._step = mark, ""
        self._own: list[Tensor] = []
        random = torch.Generator().manual_seed(model.SEED)
        self._signs = [_signs(parameter, random) for parameter in plain.parameters()]
        plain.register_forward_pre_hook(lambda *_: self.waiting.close())
        for parameter, signs in zip(plain.parameters(), self._signs, strict=True):
            parameter.register_hook(functools.partial(self._made, signs))  # type: ignore[no-untyped-call]

    def begin(self, step: int) -> None:
        """Before a part of the batch."""
        self._own.clear()
        self._step = f"step {step}"
        self.waiting.enter_context(self._mark("DDP forward", self._step))

    def _made(self, signs: Tensor, gradient: Tensor) -> None:
        self._own.append(_norm_and_print(gradient, signs))
        if len(self._own) == len(self._signs):
            self.waiting.enter_context(self._mark("DDP all-reduce", self._step))

    def own(self) -> tuple[float, float]:
        """Norm and print of this rank's gradient of the last part."""
        return _of_all(self._own)

    def taken(self, parameters: Sequence[Tensor]) -> tuple[float, float]:
        """Those of the gradient that the step takes."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return _of_all(map(_norm_and_print, gradients, self._signs))


def _signs(like: Tensor, random: torch.Generator) -> Tensor:
    """1 and -1, the same on all ranks."""
    return torch.randint(0, 2, like.shape, generator=random).mul_(2).sub_(1).to(like)


def _norm_and_print(gradient: Tensor, signs: Tensor) -> Tensor:
    return torch.stack([gradient.norm(), (gradient * signs).sum()])


def _of_all(each: Iterable[Tensor]) -> tuple[float, float]:
    norms, prints = torch.stack(list(each)).unbind(dim=1)
    return float(norms.norm()), float(prints.sum())


def train(
    parts: Sequence[Part],
    device: torch.device,
    strategy: Callable[[nn.Module, Mark], nn.Module] = alone,
    mark: Mark = unmarked,
) -> Trained:
    """Ten steps from the same weights. The gradients of the parts add up to that of their weighted mean; losses and own
    gradients of the curve are those of the last part."""
    plain = model.new(device)
    start = _copy(plain)
    gradient: dict[str, Tensor] = {}
    wrapped = strategy(plain, mark)
    parameters = list(plain.parameters())
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)
    watch = Watch(plain, mark)
    share = float(parts[-1].weights.sum())
    curve = Curve(losses=[], own_norms=[], own_prints=[], norms=[], prints=[])
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in parts:
            watch.begin(step)
            with watch.waiting:
                loss = _loss(wrapped, part)
                loss.backward()  # type: ignore[no-untyped-call]
                norm, print_ = watch.taken(parameters)
        own_norm, own_print = watch.own()
        made = (loss.item() / share, own_norm / share, own_print / share, norm, print_)
        for quantity, value in zip(QUANTITIES, made, strict=True):
            curve[quantity].append(_number(value))
        gradient = gradient or {
            name: one.grad.clone() for name, one in plain.named_parameters() if one.grad is not None
        }
        optimizer.step()
    return Trained(curve, start, gradient, _copy(plain))


def _loss(wrapped: nn.Module, part: Part) -> Tensor:
    """The weighted sum of the sequences' mean losses."""
    logits = wrapped(part.tokens[:, :-1])
    losses = functional.cross_entropy(logits.transpose(1, 2), part.tokens[:, 1:], reduction="none")
    return (losses.mean(dim=1) * part.weights).sum()


def _copy(plain: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in plain.named_parameters()}


def _number(value: float) -> Number:
    return value if math.isfinite(value) else str(value)


# What came out


def furthest_end(measured: Trained, expected: Trained) -> Furthest:
    """The parameter that ended furthest from where it should, by the way that it should have gone."""
    ways = {name: end - expected.start[name] for name, end in expected.end.items()}
    return _furthest(measured.end, expected.end, ways)


def furthest_gradient(measured: Trained, expected: Trained) -> Furthest:
    """The parameter whose gradient at the first step is furthest off, by its largest element."""
    return _furthest(measured.gradient, expected.gradient, expected.gradient)


def _furthest(measured: dict[str, Tensor], expected: dict[str, Tensor], scales: dict[str, Tensor]) -> Furthest:
    off = {
        name: float((measured[name] - tensor).abs().max() / scales[name].abs().max())
        for name, tensor in expected.items()
    }
    worst = max(off, key=lambda name: math.inf if math.isnan(off[name]) else off[name])
    return Furthest(parameter=worst, off=_number(off[worst]))


# What it runs in


@contextlib.contextmanager
def plain_arithmetic() -> Iterator[None]:
    """No TF32 on GPUs, no bfloat16 on CPUs, and one thread: so small a model gains nothing by more, and where ranks
    share cores, OpenMP's threads wait for each other by spinning (5 ranks with 2 threads each on 2 cores: 15 s)."""
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)


def import_dynamo() -> None:
    """torch's optimizers and DDP import torch._dynamo at their first use: 0.9 s and 300,000 objects that stay. Without
    the garbage collector looking through them again and again it is 0.5 s."""
    if "torch._dynamo" in sys.modules:
        return
    gc.collect()
    gc.disable()
    try:
        import torch._dynamo  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()
