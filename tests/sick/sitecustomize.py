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
        if name in ("preflight.train_smoke.train", "preflight.checks.gpu.compute.workload"):
            for each in os.environ["SICK"].split(","):
                deed, _, number = each.partition("@")
                _DEEDS[deed](int(number or 0))


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


def _in_reduce_scatter(change: Callable[[Any, Any, Callable[[], Any]], Any]) -> None:
    """Instead of a reduce-scatter: given what comes out, what goes in, and what does it rightly."""
    from torch import distributed as dist

    name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    right = getattr(dist, name)

    def wrong(output: Any, input: Any, *more: Any, **options: Any) -> Any:  # noqa: A002 -- torch's word
        return change(output, input, lambda: right(output, input, *more, **options))

    setattr(dist, name, wrong)


def _in_fully_shard(change: Callable[[Any, dict[str, Any], Callable[..., Any]], Any]) -> None:
    """Instead of fully_shard on a module: given its options, and what does it rightly."""
    from torch.distributed import fsdp

    right = fsdp.fully_shard
    fsdp.fully_shard = lambda module, **options: change(module, options, right)


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


def _is(rank: int) -> bool:
    from torch import distributed as dist

    return dist.get_rank() == rank


def _averages_all_but(rank: int, by: float) -> None:
    """DDP's mean, with one rank's gradients times this."""
    _in_all_reduce(lambda values, mean: mean(values * by if _is(rank) else values))


def _scattered_off(rank: int, by: float) -> None:
    """What one rank gets out of a reduce-scatter is times this."""

    def change(output: Any, _input: Any, do: Callable[[], Any]) -> Any:
        done = do()
        output.mul_(by if _is(rank) else 1)
        return done

    _in_reduce_scatter(change)


def _scatters_off(rank: int, by: float) -> None:
    """What one rank puts into a reduce-scatter is times this."""

    def change(_output: Any, input_: Any, do: Callable[[], Any]) -> Any:
        input_.mul_(by if _is(rank) else 1)
        return do()

    _in_reduce_scatter(change)


def _scattered_sum() -> None:
    def change(output: Any, _input: Any, do: Callable[[], Any]) -> None:
        do()
        output.mul_(_world())

    _in_reduce_scatter(change)


def _not_scattered() -> None:
    """Each rank keeps its piece of its own gradient."""
    from torch import distributed as dist

    def change(output: Any, input_: Any, _do: Callable[[], Any]) -> None:
        output.copy_(input_.view(_world(), -1)[dist.get_rank()].view_as(output))

    _in_reduce_scatter(change)


def _head_not_scattered() -> None:
    """FSDP2 leaves one parameter out of the exchange: the last one of the root's."""
    from torch import distributed as dist

    from preflight.train_smoke import model

    def change(output: Any, input_: Any, do: Callable[[], Any]) -> Any:
        done = do()
        head = model.VOCABULARY * model.WIDTH // _world()
        if output.numel() == 2 * head + (model.LENGTH + 1) * model.WIDTH // _world():
            output[-head:] = input_.view(_world(), -1)[dist.get_rank()][-head:]
        return done

    _in_reduce_scatter(change)


def _starts_off(rank: int) -> None:
    """One rank has other weights, once they have been put under a strategy."""
    import torch

    def spoil(head: Any) -> None:
        with torch.no_grad():
            (head.weight.to_local() if hasattr(head.weight, "to_local") else head.weight).mul_(1.01)

    def change(module: Any, options: dict[str, Any], right: Callable[..., Any]) -> Any:
        sharded = right(module, **options)
        if hasattr(module, "head") and _is(rank):
            spoil(module.head)
        return sharded

    _in_fully_shard(change)
    _in_ddp(lambda ddp: spoil(ddp.module.head) if _is(rank) else None)


def _data_of(rank: int, *, on: int | None) -> None:
    """This rank (None: all) trains on the part of another one."""
    from dataclasses import replace

    from preflight.train_smoke import task

    right = task.built_in

    def wrong(own: int, *more: Any) -> Any:
        made = right(own, *more)
        if on not in (None, own):
            return made
        other = right(rank, *more).cut
        return replace(made, cut=replace(made.cut, own=other.own, pieces=other.pieces))

    task.built_in = wrong  # type: ignore[assignment]


def _clips_first(to: float) -> None:
    """Each rank's own gradient is clipped to this norm before DDP averages it, bucket by bucket once all are made."""
    import torch
    from torch import distributed as dist
    from torch.futures import Future

    made: list[tuple[Any, Any]] = []

    def hook(_state, bucket):  # type: ignore[no-untyped-def]  # DDP would hold annotations against its own
        future: Any = Future()
        made.append((future, bucket.buffer()))
        if bucket.is_last():
            norm = torch.stack([values.norm() for _, values in made]).norm()
            for each, values in made:
                values.mul_((to / norm).clamp(max=1) / _world())
                dist.all_reduce(values)
                each.set_result(values)
            made.clear()
        return future

    _in_ddp(lambda ddp: ddp.register_comm_hook(None, hook))


def _clips_pieces() -> None:
    """Each rank clips by the norm of its own piece of the gradient."""
    import torch

    right = torch.nn.utils.clip_grad_norm_

    def wrong(parameters: Any, norm: float) -> Any:
        if not hasattr(parameters[0], "to_local"):
            return right(parameters, norm)
        local = [each.grad.to_local() for each in parameters]
        own = torch.stack([each.norm() for each in local]).norm()
        for each in local:
            each.mul_((norm / own).clamp(max=1))
        return own

    torch.nn.utils.clip_grad_norm_ = wrong  # type: ignore[assignment]


def _seed(_step: int) -> None:
    from preflight.train_smoke import model

    right = model.new
    model.new = lambda device, seed=model.SEED: right(device, seed + 1)


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


A_PASS = 13
"""Matrix products of the model's forward."""


def _in_linear_bit(bit: int, number: int) -> None:
    """A bit of one element flips in every product, or in those of a forward pass from this one on."""
    import torch

    calls: list[None] = []

    def change(values: Any) -> Any:
        calls.append(None)
        if number and not number <= len(calls) < number + A_PASS:
            return values
        out = values.contiguous().clone()
        out.detach().view(torch.int32).view(-1)[100] ^= 1 << bit
        return out

    _with_linear(change)


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
    "matmul_low_bit": lambda number: _in_linear_bit(0, number),
    "matmul_high_bit": lambda number: _in_linear_bit(28, number),
    "matmul_nan": lambda _: _with_linear(_first_element(lambda x: x * math.nan)),
    "bfloat16_off": lambda _: _with_linear(lambda values: values * 1.25 if values.element_size() == 2 else values),
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
    "scaled": lambda rank: _averages_all_but(rank, 1.001),
    "scatters_scaled": lambda rank: _scatters_off(rank, 1.001),
    "scattered_off": lambda rank: _scattered_off(rank, 1.02),
    "scattered_sum": lambda _: _scattered_sum(),
    "not_scattered": lambda _: _not_scattered(),
    "head_not_scattered": lambda _: _head_not_scattered(),
    "starts_off": _starts_off,
    "data_of_rank": lambda rank: _data_of(rank, on=None),
    "rank_1_has_data_of": lambda rank: _data_of(rank, on=1),
    "clips_first": _clips_first,
    "clips_pieces": lambda _: _clips_pieces(),
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
