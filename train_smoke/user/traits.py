"""Runs a user's model once alone, forward and backward, to find what would make it train differently on many ranks."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from preflight.sdk.tensor_bits import raw
from preflight.train_smoke.trainer.batch import each, rows_in
from preflight.train_smoke.trainer.buffers import Buffers
from preflight.train_smoke.trainer.wrapped import as_real
from preflight.train_smoke.user import token_weights
from preflight.train_smoke.user.solo import Solo
from preflight.train_smoke.user.token_weights import Weighing
from preflight.train_smoke.user.validation import Given, ModelMistake, seed, some

SHARE_A_STEP = 0.002
"""The length of SGD's first step as a share of the weights' norm. With momentum, eight steps come to at most 6% of it:
far above the roundings of float32, and small enough to keep the loss similar."""
ROUNDED = {torch.float64: 1e-4, torch.float32: 1e-3}
"""How far (relatively) the loss of all rows may be from the mean of two halves; this is thousands of roundings."""
ROUNDED_ELSE = 0.05
"""The same in bfloat16 and float16."""
DRAWN = 0.2
"""The same if the loss depends on random numbers: a sum is twice the mean of its halves, whatever was drawn."""


class Incomparable(Exception):  # noqa: N818 -- a reason to skip, not an error
    """Two trainings of this model cannot be compared, though it may be sound."""


@dataclass(frozen=True)
class Traits:
    unused: list[str]
    """Parameters that get no gradient from the loss of the whole batch."""
    unused_here: list[str]
    """Other parameters that get none from this rank's own rows."""
    batch_norms: list[str]
    """Modules that normalize by the batch that they see."""
    dropouts: list[str]
    """Modules whose dropout was set to 0."""
    asks: bool
    """Whether forward or loss ask for a rank, the number of ranks, or a collective: perhaps they exchange values."""
    draws: bool
    """Whether forward or loss draw random numbers even so."""
    apart: float
    """How far the loss over all rows, or else its gradient, is from the mean of its halves', relative to the largest of
    these; 0 if they agree except for rounding."""
    weighs_by: str
    """The tensor of the batch by which the loss weighs rows, as a mean over valid tokens does; "" if there is none."""
    own_tokens: int
    """How many of them this rank has."""
    calls: int
    """How many times the loss calls the model."""
    rate: float
    """A learning rate of SGD that changes the weights by SHARE_A_STEP."""
    adamw_rate: float
    """The same for AdamW."""
    step_s: float
    """Seconds that forward and backward take over all rows."""

    @property
    def exactly(self) -> bool:
        """Whether alone the batch must be cut as on the ranks, since a different cut is a different function."""
        return bool(self.batch_norms or self.draws or self.apart)


def without_dropout(model: nn.Module) -> list[str]:
    """Sets the dropout of all torch modules to 0, and returns those that had one."""
    found = []
    for name, module in model.named_modules():
        attribute = "p" if isinstance(module, _DropoutNd) else "dropout"
        kinds = (_DropoutNd, nn.MultiheadAttention, nn.RNNBase)
        if isinstance(module, kinds) and module.training and getattr(module, attribute):
            setattr(module, attribute, 0.0)
            found.append(name or type(module).__name__)
    return found


def batch_norms(model: nn.Module) -> list[str]:
    return [name or type(module).__name__ for name, module in model.named_modules() if _by_batch(module)]


def _by_batch(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm) and module.training


def traits(
    given: Given, own: list[int], device: torch.device, dropouts: list[str], doing: Callable[[str], None], world: Solo
) -> Traits:
    """Called in `world`. `own`: this rank's rows. Raises ModelMistake, Incomparable, and what user code raises."""
    plain = given.copy(device)
    data = each(lambda tensor: tensor.to(device), given.batch)
    for parameter in plain.parameters():
        if parameter.requires_grad:  # a hook lets Python hear a signal within backward
            parameter.register_hook(lambda _: None)  # type: ignore[no-untyped-call]
    calls: list[None] = []
    hook = plain.register_forward_pre_hook(lambda *_: calls.append(None))
    start = time.monotonic()
    world.asked = False
    loss, draws = _draws(lambda: given.loss(plain, data))
    asks = world.asked
    hook.remove()
    if early := [name for name, parameter in plain.named_parameters() if parameter.grad is not None]:
        text = f"loss_fn calls backward() itself: {some(early)} parameters have a gradient as it returns, expected none"
        raise ModelMistake("wrong_loss", text)
    _checked(loss, plain, f"{given.rows} rows")
    step_s = time.monotonic() - start
    doing(f"forward and backward over all {given.rows} rows took {step_s:.2g} s")
    unused = _without_gradient(plain)
    used = [(name, parameter) for name, parameter in plain.named_parameters() if parameter.grad is not None]
    rate, adamw_rate = _rates(used)
    for _, parameter in used:
        parameter.grad = None
    start = time.monotonic()
    _checked(given.loss(plain, rows_in(data, own)), plain, f"its own {len(own)} of {given.rows} rows", is_part=True)
    step_s = min(step_s, (time.monotonic() - start) * given.rows / len(own))  # the first call included warm-up
    here = [name for name in _without_gradient(plain) if name not in unused]
    apart, weighing = _apart(given, data, device, draws=draws, asks=asks)
    own_tokens = int(weighing.counts[own].sum()) if weighing else 0
    return Traits(
        unused, here, batch_norms(given.model), dropouts, asks, draws, apart, weighing.name if weighing else "",
        own_tokens, len(calls), rate, adamw_rate, step_s,
    )  # fmt: skip


def _checked(loss: Any, plain: nn.Module, of: str, *, is_part: bool = False) -> None:
    """Checks a loss and runs its backward pass. `is_part`: that of all rows is right. Raises ModelMistake."""
    if not isinstance(loss, Tensor):
        raise ModelMistake("wrong_loss", f"loss_fn returns a value of type {type(loss).__name__}, expected a tensor")
    if loss.numel() != 1:
        text = f"loss_fn returns a tensor of shape {tuple(loss.shape)}, expected one number: the mean over the rows"
        raise ModelMistake("wrong_loss", text)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise ModelMistake("wrong_loss", f"the loss over {of} is {value} before the first step, expected a number")
    if not loss.requires_grad and is_part:
        text = (
            f"the loss over {of} is a constant ({value:.6g}), though that of all rows depends on the parameters: this"
        )
        more = (
            "rank has no backward pass, and the others wait for it. Return 0 times a sum of the model's outputs there"
        )
        raise ModelMistake("wrong_loss", f"{text} {more}")
    if not loss.requires_grad:
        text = (
            "the loss does not depend on the parameters, expected one to call backward() on: is it detached, or made "
        )
        raise ModelMistake("wrong_loss", f"{text}under no_grad()?")
    loss.backward()  # type: ignore[no-untyped-call]
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    if all(parameter.grad is None for parameter in trained):
        text = f"none of the model's {len(trained)} parameters gets a gradient: does loss_fn use the model it is given?"
        raise ModelMistake("wrong_loss", text)
    for name, parameter in plain.named_parameters():
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise Incomparable(
                f"{name} has a sparse gradient, which FSDP does not support (sparse=False makes it dense)"
            )
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            raise ModelMistake("wrong_loss", f"the gradient of {name} over {of} is not finite before the first step")


def _without_gradient(plain: nn.Module) -> list[str]:
    return [name for name, parameter in plain.named_parameters() if parameter.requires_grad and parameter.grad is None]


def _rates(used: list[tuple[str, nn.Parameter]]) -> tuple[float, float]:
    """Learning rates of SGD and AdamW with which a step changes the weights by SHARE_A_STEP."""
    count = sum(parameter.numel() for _, parameter in used)
    size = math.sqrt(sum(_norm(parameter) ** 2 for _, parameter in used)) or math.sqrt(count) * 0.01
    slope = math.sqrt(sum(_norm(parameter.grad) ** 2 for _, parameter in used if parameter.grad is not None))
    if not slope:
        raise ModelMistake("wrong_loss", f"the gradient of all {some([name for name, _ in used])} parameters is 0")
    return SHARE_A_STEP * size / slope, SHARE_A_STEP * size / math.sqrt(count)


def _norm(tensor: Tensor) -> float:
    return float(as_real(tensor.detach()).double().norm())


# Is it a mean over the rows?


def _apart(given: Given, data: Any, device: torch.device, *, draws: bool, asks: bool) -> tuple[float, Weighing | None]:
    """(`Traits.apart`, the weighing of rows). Raises ModelMistake for a sum, unless the loss may divide by what it
    exchanges. If each half draws different numbers, nothing finer than that is known."""
    if given.rows < 2:
        return 0.0, None
    plain, middle = given.copy(device), given.rows // 2
    for module in plain.modules():
        if _by_batch(module):
            module.eval()
    sizes = (given.rows, middle, given.rows - middle)
    buffers = Buffers(plain)

    def loss(rows: range) -> float:
        buffers.put_back()
        return float(given.loss(plain, rows_in(data, rows)).detach())  # with gradients: a loss may need them

    total, first, second = map(loss, (range(given.rows), range(middle), range(middle, given.rows)))
    mean = (first * sizes[1] + second * sizes[2]) / sizes[0]
    least = max(map(abs, (total, mean, first, second)))
    if not math.isfinite(least):
        return 0.0, None  # the trainings will tell
    dtype = next(parameter.dtype for parameter in plain.parameters() if parameter.requires_grad)
    allowed = (DRAWN if draws else ROUNDED.get(dtype, ROUNDED_ELSE)) * least
    if abs(total - mean) <= allowed:
        return (0.0, None) if draws else token_weights.by_gradient(given, plain, data, ROUNDED.get(dtype, ROUNDED_ELSE))
    again = loss(range(middle))
    if abs(again - first) > allowed:
        text = f"{middle} rows have a loss of {first:.6g}, and of {again:.6g} at the next call: the model or loss_fn "
        raise Incomparable(f"{text}keeps something between calls that is not a buffer of the model")
    is_sum = bool(first and second) and abs(total - first - second) <= allowed
    if is_sum and not asks and _halves_add_up(loss, sizes, allowed):
        text = f"the loss over {sizes[0]} rows is {total / mean:.3g} x the mean of its halves' losses ({total:.6g} and "
        raise ModelMistake(
            "sum_for_mean", f"{text}{mean:.6g}), expected 1 x: it is a sum over the rows", ratio=total / mean
        )
    if draws:
        return 0.0, None
    return (total - mean) / least, token_weights.by_loss(data, total, (first, second), allowed)


def _halves_add_up(loss: Callable[[range], float], sizes: tuple[int, int, int], allowed: float) -> bool:
    """A control before a mean is called a sum: the quarters of each half add up to it, too. Rows without a valid label
    have no loss, and prove nothing."""
    for start, end in ((0, sizes[1]), (sizes[1], sizes[0])):
        middle = (start + end) // 2
        if middle > start:
            whole, *parts = map(loss, (range(start, end), range(start, middle), range(middle, end)))
            if abs(whole - sum(parts)) > allowed:
                return False
    return True


# Does it draw random numbers?


def _draws(of: Callable[[], Any]) -> tuple[Any, bool]:
    """(the result of `of`, whether it drew random numbers)."""
    seed()
    before = _random_states()
    return of(), _random_states() != before


def _random_states() -> list[bytes]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    return [*map(raw, states), repr(random.getstate()).encode()]
