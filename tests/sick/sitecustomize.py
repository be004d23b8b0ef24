"""Makes torch sick in this process, as SICK says: in its first moment, when what works with it is imported.

Python imports this module by itself where its folder is on PYTHONPATH.
"""

import math
import os
import signal
import sys
from collections.abc import Callable
from typing import Any


class _AtWork:
    """Stands before all finders, and finds nothing."""

    def find_spec(self, name: str, *_more: Any) -> None:
        if name in ("preflight.train_smoke.train", "preflight.checks.gpu.exercise"):
            deed, _, step = os.environ["SICK"].partition("@")
            _DEEDS[deed](int(step or 0))


sys.meta_path.insert(0, _AtWork())


# Where a deed takes hold


def _with_linear(change: Callable[[Any], Any]) -> None:
    """Every matrix product goes through it."""
    from torch.nn import functional

    right = functional.linear
    functional.linear = lambda *arguments: change(right(*arguments))


def _in_ddp(change: Callable[[Any], None]) -> None:
    """When a model has been put into DDP."""
    from torch.nn.parallel import DistributedDataParallel as Ddp

    right = Ddp.__init__

    def wrong(self: Any, *arguments: Any, **options: Any) -> None:
        right(self, *arguments, **options)
        change(self)

    Ddp.__init__ = wrong  # type: ignore[method-assign]


def _in_forward(step: int, change: Callable[[Any], Any]) -> None:
    """On the logits under DDP, at one step."""
    steps: list[None] = []

    def hook(_model: Any, _tokens: Any, logits: Any) -> Any:
        steps.append(None)
        return change(logits) if len(steps) == step + 1 else None

    _in_ddp(lambda ddp: ddp.register_forward_hook(hook))


def _in_backward(step: int, change: Callable[[Any], Any]) -> None:
    """On the gradient of the logits under DDP, at one step."""

    def hooked(logits: Any) -> None:
        logits.register_hook(change)

    _in_forward(step, hooked)


def _in_all_reduce(change: Callable[[Any, Callable[[Any], Any]], Any]) -> None:
    """Instead of the all-reduce of a bucket of gradients: given the values and what averages them."""
    from torch import distributed as dist
    from torch.futures import Future

    def mean(values: Any) -> Any:
        dist.all_reduce(values)
        return values.div_(dist.get_world_size())

    def hook(_state, bucket):  # type: ignore[no-untyped-def]  # DDP would hold annotations against its own
        future: Any = Future()
        future.set_result(change(bucket.buffer(), mean))
        return future

    _in_ddp(lambda ddp: ddp.register_comm_hook(None, hook))


def _in_mm(change: Callable[[Any], None]) -> None:
    """On the result of each bare matrix product."""
    import torch

    right = torch.mm

    def wrong(*factors: Any, **options: Any) -> Any:
        result = right(*factors, **options)
        change(result)
        return result

    torch.mm = wrong


def _in_copy(change: Callable[[Any], None]) -> None:
    """On what arrives of each copy into a tensor."""
    import torch

    right = torch.Tensor.copy_

    def wrong(target: Any, *arguments: Any, **options: Any) -> Any:
        right(target, *arguments, **options)
        change(target)
        return target

    torch.Tensor.copy_ = wrong  # type: ignore[method-assign, assignment]


# What can be done there


def _first_element(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(values: Any) -> Any:
        out = values.contiguous().clone()
        out.view(-1)[0] = change(out.view(-1)[0])
        return out

    return changed


def _flip(step: int) -> None:
    """A high bit of one weight flips after a step under DDP."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def flip(ddp: Any) -> None:
        steps: list[None] = []

        def hook(*_: Any) -> None:
            steps.append(None)
            if len(steps) == step + 1:
                ddp.module.blocks[1].up.weight.data.view(torch.int32)[3, 5] ^= 1 << 28

        register_optimizer_step_post_hook(hook)

    _in_ddp(flip)


def _world() -> int:
    from torch import distributed as dist

    return dist.get_world_size()


def _seed(_step: int) -> None:
    from preflight.train_smoke import model

    model.SEED += 1


def _once(step: int) -> None:
    """One product of the many alone is wrong."""
    calls: list[None] = []

    def change(values: Any) -> Any:
        calls.append(None)
        return _first_element(lambda x: x + 5)(values) if len(calls) == 30 else values

    _with_linear(change)


def _flip_lowest(values: Any) -> None:
    """The lowest bit of one element flips."""
    import torch

    bits = values.view({2: torch.int16, 4: torch.int32}[values.element_size()])
    bits.view(-1)[100] ^= 1


def _flip_lowest_at(number: int) -> Callable[[Any], None]:
    """The same, once."""
    calls: list[None] = []

    def change(values: Any) -> None:
        calls.append(None)
        if len(calls) == number:
            _flip_lowest(values)

    return change


def _mm_in_other_order() -> None:
    """Right, with other roundings."""
    import torch

    mm: Any = torch.mm

    def other(left: Any, right: Any, **options: Any) -> Any:
        return mm(left.flip(1), right.flip(0), **options)

    torch.mm = other  # type: ignore[assignment]


def _raise(text: str) -> None:
    raise RuntimeError(text)


def _forget(parameter: str) -> None:
    """DDP leaves one parameter out."""
    from torch.nn import Module

    setattr(Module, "_ddp_params_and_buffers_to_ignore", [parameter])  # noqa: B010 -- DDP looks for it


_DEEDS: dict[str, Callable[[int], None]] = {
    "matmul_off": lambda _: _with_linear(_first_element(lambda x: x * 1.25)),
    "matmul_off_once": _once,
    "matmul_nan": lambda _: _with_linear(_first_element(lambda x: x * math.nan)),
    "matmul_bfloat16": lambda _: _with_linear(lambda values: values.bfloat16().float()),
    "other_seed": _seed,
    "forward_off": lambda step: _in_forward(step, lambda logits: logits.roll(1, dims=0)),
    "gradient_off": lambda step: _in_backward(step, lambda gradient: gradient * 1.001),
    "gradient_nan": lambda step: _in_backward(step, _first_element(lambda x: x * math.nan)),
    "flip": _flip,
    "summed": lambda _: _in_all_reduce(lambda values, mean: mean(values) * _world()),
    "averaged_twice": lambda _: _in_all_reduce(lambda values, mean: mean(values) / _world()),
    "not_exchanged": lambda _: _in_all_reduce(lambda values, _mean: values),
    "averages": lambda _: _in_all_reduce(lambda values, mean: mean(values)),
    "sends_wrong": lambda _: _in_all_reduce(lambda values, mean: mean(values * 1.5)),
    "receives_wrong": lambda _: _in_all_reduce(lambda values, mean: _first_element(lambda x: x + 1)(mean(values))),
    "receives_nan": lambda _: _in_all_reduce(lambda values, mean: mean(values) * math.nan),
    "forgets_head": lambda _: _forget("head.weight"),
    "mm_off": lambda _: _in_mm(_flip_lowest),
    "mm_off_once": lambda number: _in_mm(_flip_lowest_at(number)),
    "mm_nan": lambda _: _in_mm(lambda values: values.view(-1)[100].fill_(math.nan)),
    "mm_in_other_order": lambda _: _mm_in_other_order(),
    "mm_error": lambda _: _in_mm(lambda _: _raise("CUDA error: uncorrectable ECC error encountered\nSee more.")),
    "copy_off": lambda _: _in_copy(_flip_lowest),
    "raise": lambda step: _in_backward(step, lambda _: 1 / 0),
    "kill": lambda step: _in_backward(step, lambda _: os.kill(os.getpid(), signal.SIGKILL)),
    "stop": lambda step: _in_backward(step, lambda _: os.kill(os.getpid(), signal.SIGSTOP)),
}
