"""Makes torch sick in this process, as SICK says: in its first moment, when what works with it is imported.

Python imports this module by itself where its folder is on PYTHONPATH.
"""

import functools
import importlib
import math
import operator
import os
import signal
import sys
from collections.abc import Callable
from typing import Any


class _AtWork:
    """Stands before all finders, and finds nothing."""

    def find_spec(self, name: str, *_more: Any) -> None:
        if name in ("preflight.train_smoke.trainer.train", "preflight.checks.gpu.compute.workload"):  # warm.NOT_YET
            for each in os.environ["SICK"].split(","):
                deed, _, number = each.partition("@")
                (_DEEDS.get(deed) or _beside(deed))(int(number or 0))


def _beside(deed: str) -> Callable[[int], None]:
    """From the modules beside this one."""
    modules: list[Any] = [
        importlib.import_module(f"{name}_deeds") for name in ("parallel", "variant", "checkpoint", "speed")
    ]
    found: Callable[[int], None] = next(module.DEEDS[deed] for module in modules if deed in module.DEEDS)
    return found


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


def _in_fsdp(change: Callable[[Any], None]) -> None:
    """When a whole model has been put into FSDP1, with its blocks."""
    from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp

    right = Fsdp.__init__

    def wrong(self: Any, module: Any, *arguments: Any, **options: Any) -> None:
        right(self, module, *arguments, **options)
        if hasattr(module, "head"):
            change(self)

    Fsdp.__init__ = wrong  # type: ignore[method-assign]


def _in_fsdp2(change: Callable[[Any], None]) -> None:
    """When fully_shard has taken a whole model."""

    def changed(module: Any, options: dict[str, Any], right: Callable[..., Any]) -> Any:
        sharded = right(module, **options)
        if hasattr(module, "head"):
            change(sharded)
        return sharded

    _in_fully_shard(changed)


def _in_wrapper(change: Callable[[Any], None]) -> None:
    """When a model has been put under any strategy."""
    for each in (_in_ddp, _in_fsdp, _in_fsdp2):
        each(change)


def _weight(wrapped: Any, name: str) -> Any:
    """By its name in the plain model; a piece of it where the strategy cuts it."""
    named = {own.replace("_fsdp_wrapped_module.", ""): weight for own, weight in wrapped.named_parameters()}
    return named.get(name, named.get(f"module.{name}"))


def _in_forward(step: int, change: Callable[[Any], Any]) -> None:
    """On the logits under a strategy, at one step."""

    def hooked(wrapped: Any) -> None:
        steps: list[None] = []

        def hook(_model: Any, _tokens: Any, logits: Any) -> Any:
            steps.append(None)
            return change(logits) if len(steps) == step + 1 else None

        wrapped.register_forward_hook(hook)

    _in_wrapper(hooked)


def _in_backward(step: int, change: Callable[[Any], Any]) -> None:
    """On the gradient of the logits under a strategy, at one step."""

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


def _works_as_gpu(milliseconds: int) -> None:
    """A CPU that calls itself a GPU, whose products take so long and whose copies take 20 ms: far longer than what
    else the machine does meanwhile can add."""
    import time

    from preflight.sdk import arithmetic

    right = arithmetic.kind_of
    arithmetic.kind_of = lambda device, environ: {**right(device, environ), "type": "cuda"}
    _in_mm(lambda _: time.sleep(milliseconds / 1000))
    _in_copy(lambda _: time.sleep(0.02))


# What can be done there


def _first_element(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(values: Any) -> Any:
        out = values.contiguous().clone()
        out.view(-1)[0] = change(out.view(-1)[0])
        return out

    return changed


def _flip(step: int) -> None:
    """A high bit of one weight, of those that this rank keeps, flips after a step under a strategy."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def flip(wrapped: Any) -> None:
        steps: list[None] = []
        weight = _weight(wrapped, "blocks.1.up.weight")
        weight = _weight(wrapped, "positions.weight") if weight is None else weight  # of the model with experts

        def hook(optimizer: Any, *_: Any) -> None:
            steps.append(None)
            if len(steps) == step + 1:
                piece = weight.to_local() if hasattr(weight, "to_local") else weight
                piece.data.view(torch.int32).view(-1)[197] ^= 1 << 28

        register_optimizer_step_post_hook(hook)

    _in_wrapper(flip)


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
    """FSDP2 leaves one parameter out of the exchange: the last matrix of the root's."""
    from torch import distributed as dist

    from preflight.train_smoke.trainer import model

    def change(output: Any, input_: Any, do: Callable[[], Any]) -> Any:
        done = do()
        rows, *others = (-(-size // _world()) for size in (model.VOCABULARY, model.LENGTH, model.WIDTH))
        head = slice(-rows * (model.WIDTH + 1), -rows)  # the bias comes last
        if output.numel() == rows * (2 * model.WIDTH + 1) + others[0] * model.WIDTH + 2 * others[1]:
            output[head] = input_.view(_world(), -1)[dist.get_rank()][head]
        return done

    _in_reduce_scatter(change)


def _starts_off(rank: int) -> None:
    """One rank has other weights, once they have been put under a strategy."""
    import torch

    def spoil(wrapped: Any) -> None:
        weight = _weight(wrapped, "head.weight")
        if _is(rank):
            with torch.no_grad():
                (weight.to_local() if hasattr(weight, "to_local") else weight).mul_(1.01)

    _in_wrapper(spoil)


def _reduces_in_bfloat16() -> None:
    """Gradients are rounded to bfloat16 for the exchange."""
    import torch
    from torch.distributed import fsdp

    _in_all_reduce(lambda values, mean: mean(values.bfloat16()).to(values))
    policy = fsdp.MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    _in_fully_shard(lambda module, options, right: right(module, **{"mp_policy": policy, **options}))
    right: Any = fsdp.FullyShardedDataParallel
    mixed = fsdp.MixedPrecision(reduce_dtype=torch.bfloat16)
    fsdp.FullyShardedDataParallel.__init__ = functools.partialmethod(right.__init__, mixed_precision=mixed)  # type: ignore[method-assign, assignment]


def _data_of(rank: int, *, on: int | None) -> None:
    """This rank (None: all) trains on the part of another one."""
    from dataclasses import replace

    from preflight.train_smoke.trainer import task

    right = task.built_in

    def wrong(own: int, *more: Any) -> Any:
        made = right(own, *more)
        if on not in (None, own):
            return made
        other = right(rank, *more).cut
        cut = replace(made.cut, own=other.own, pieces=other.pieces)
        assert made.sparse
        return replace(made, cut=cut, sparse=replace(made.sparse, cut=cut))

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
    from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp

    def of_piece(fsdp: Any, norm: float) -> Any:
        return right([own for own in fsdp.parameters() if own.grad is not None], norm)

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
    Fsdp.clip_grad_norm_ = of_piece  # type: ignore[method-assign, assignment]


def _seed(_step: int) -> None:
    from preflight.train_smoke.trainer import model

    right: Any = model.new
    model.new = lambda device, seed=model.SEED, **more: right(device, seed + 1, **more)


def _leaves_untied() -> None:
    """What parallelize_module has made two parameters stays two."""
    from preflight.train_smoke.strategies import tp

    vars(tp)["tie"] = lambda _module, _names: None


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


def _linear_in_other_order() -> None:
    """The same of every matrix product of the model."""
    from torch.nn import functional

    right: Any = functional.linear
    functional.linear = lambda inputs, weight, *more: right(inputs.flip(-1), weight.flip(-1), *more)


def _in_8_bits(values: Any, of: tuple[int, ...] = (2,)) -> Any:
    """A product of so many bytes, and its gradient, as in float8_e4m3fn: what is small beside 1 is 0."""
    import torch

    return values.to(torch.float8_e4m3fn).to(values.dtype) if values.element_size() in of else values


def _raise(text: str) -> None:
    raise RuntimeError(text)


def _experts_summed() -> None:
    """An expert's gradient stays the sum over the ranks."""
    from preflight.train_smoke.strategies import expert

    expert.UnderExpertParallel.finish = lambda _: None  # type: ignore[method-assign, assignment]


def _in_all_to_all(change: Callable[[Any], Any]) -> None:
    """On what goes into each all-to-all of tokens and results."""
    from torch.distributed import _functional_collectives as functional_collectives

    right = functional_collectives.all_to_all_single_autograd
    functional_collectives.all_to_all_single_autograd = lambda rows, *more: right(change(rows), *more)


def _router_detached() -> None:
    """The weights that go with the tokens are sent as numbers: no gradient comes back."""
    import torch

    from preflight.train_smoke.trainer import model

    def change(rows: Any) -> Any:
        is_sent = rows.shape[1] == model.WIDTH + 1
        return torch.cat([rows[:, :-1], rows[:, -1:].detach()], dim=1) if is_sent else rows

    _in_all_to_all(change)


def _compiles_inside() -> None:
    """torch.compile takes the model out of DDP, whose hooks then wait for a forward that never comes."""
    import torch

    right: Any = torch.compile
    torch.compile = lambda model=None, **options: right(getattr(model, "module", model), **options)


def _compiles(change: Callable[[Any], None]) -> None:
    """torch's aot_eager backend, which takes another graph than the one that it is given: of the logits."""
    from torch._dynamo.backends import registry

    registry.lookup_backend("aot_eager")
    right = registry._COMPILER_FNS["aot_eager"]

    def wrong(graph: Any, inputs: Any, **options: Any) -> Any:
        change(graph.graph)
        graph.recompile()
        return right(graph, inputs, **options)

    registry._COMPILER_FNS["aot_eager"] = wrong


def _scales_gelu(graph: Any) -> None:
    """Of each GELU in it the result is 0.1% too large."""
    for node in [node for node in graph.nodes if getattr(node.target, "__name__", "") == "gelu"]:
        with graph.inserting_after(node):
            wrong = graph.call_function(operator.mul, (node, 1.001))
        node.replace_all_uses_with(wrong, delete_user_cb=lambda user, own=wrong: user is not own)


def _cannot_compile(rank: int) -> None:
    """As of a Python that is too new, on one rank."""
    import torch

    right: Any = torch.compile

    def wrong(*arguments: Any, **options: Any) -> Any:
        if _is(rank):
            raise RuntimeError("Python 3.15+ not yet supported for torch.compile")
        return right(*arguments, **options)

    torch.compile = wrong


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
    "bfloat16_in_8_bits": lambda _: _with_linear(_in_8_bits),
    "in_8_bits": lambda _: _with_linear(lambda values: _in_8_bits(values, (2, 4))),
    "linear_in_other_order": lambda _: _linear_in_other_order(),
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
    "reduces_in_bfloat16": lambda _: _reduces_in_bfloat16(),
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
    "experts_summed": lambda _: _experts_summed(),
    "router_detached": lambda _: _router_detached(),
    "tokens_swapped": lambda rank: _in_all_to_all(lambda rows: rows.flip(0) if _is(rank) else rows),
    "compiles_inside": lambda _: _compiles_inside(),
    "compiles_wrong": lambda _: _compiles(_scales_gelu),
    "compiles_never": lambda _: _compiles(lambda _: signal.pause()),
    "cannot_compile": _cannot_compile,
    "leaves_untied": lambda _: _leaves_untied(),
    "mm_off": lambda _: _in_mm(_flip_lowest),
    "mm_off_once": lambda number: _in_mm(_flip_lowest_at(number)),
    "mm_nan": lambda _: _in_mm(lambda values: values.view(-1)[100].fill_(math.nan)),
    "mm_in_other_order": lambda _: _mm_in_other_order(),
    "mm_error": lambda _: _in_mm(lambda _: _raise("CUDA error: uncorrectable ECC error encountered\nSee more.")),
    "works_as_gpu": _works_as_gpu,
    "copy_off": lambda _: _in_copy(_flip_lowest),
    "raise": lambda step: _in_backward(step, lambda _: 1 / 0),
    "kill": lambda step: _in_backward(step, lambda _: os.kill(os.getpid(), signal.SIGKILL)),
    "stop": lambda step: _in_backward(step, lambda _: os.kill(os.getpid(), signal.SIGSTOP)),
}
