"""Deeds of sitecustomize.py for strategies that cut a model among ranks: tensor parallel, pipelines, and hybrids."""

import sys
from collections.abc import Callable
from typing import Any

# Where a deed takes hold


def _where_put(change: Callable[[Any], None]) -> None:
    """On a module as a strategy takes it: the whole model, or the layers of a stage."""
    from torch.distributed import fsdp, pipelining
    from torch.distributed.tensor import parallel

    seen: list[Any] = []

    def once(module: Any) -> None:
        if not any(module is known for known in seen):
            seen.append(module)
            change(module)

    cut, stage, shard = parallel.parallelize_module, pipelining.PipelineStage.__init__, fsdp.fully_shard

    def parallelize(module: Any, *arguments: Any, **options: Any) -> Any:
        made = cut(module, *arguments, **options)
        once(module)
        return made

    def staged(self: Any, submodule: Any, *arguments: Any, **options: Any) -> None:
        stage(self, submodule, *arguments, **options)
        once(submodule)

    def sharded(module: Any, **options: Any) -> Any:
        made = shard(module, **options)
        if hasattr(module, "head"):
            once(module)
        return made

    parallel.parallelize_module = parallelize
    pipelining.PipelineStage.__init__ = staged  # type: ignore[method-assign]
    vars(fsdp)["fully_shard"] = sharded


def _is(rank: int) -> bool:
    from torch import distributed as dist

    return dist.get_rank() == rank


def _local(weight: Any) -> Any:
    return weight.to_local() if hasattr(weight, "to_local") else weight


def _named(module: Any, ending: str) -> Any:
    """A parameter of it by how its name ends; None where it is in another stage."""
    named = module.named_parameters()
    return next((weight for name, weight in named if f".{name}".endswith(f".{ending}")), None)


# Numbers


def _gradient_nan(_: int) -> None:
    """The gradient of a block's output, under a strategy."""

    def hooked(module: Any) -> None:
        def spoil(_module: Any, _inputs: Any, output: Any) -> None:
            if output.requires_grad:  # else a pipeline asks for its shape
                output.register_hook(lambda gradient: gradient * float("nan"))

        for each in module.modules():
            if type(each).__name__.endswith("Block"):
                each.register_forward_hook(spoil)
                return

    _where_put(hooked)


def _starts_off(rank: int) -> None:
    import torch

    def spoil(module: Any) -> None:
        if _is(rank) and (weight := _named(module, "head.weight")) is not None:
            with torch.no_grad():
                _local(weight).mul_(1.01)

    _where_put(spoil)


def _logits_reversed(_: int) -> None:
    """Along the sequence, as by a wrong load balancing."""

    def hooked(module: Any) -> None:
        for each in module.modules():
            if hasattr(each, "head"):
                each.register_forward_hook(lambda _module, _inputs, logits: logits.flip(1))

    _where_put(hooked)


def _flip(rank: int, bit: int, step: int) -> None:
    """A bit of the last norm flips on one rank, once a strategy has taken this step."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def spoil(module: Any) -> None:
        steps: list[None] = []
        weight = _named(module, "norm.weight")

        def hook(*_: Any) -> None:
            steps.append(None)
            if len(steps) == step + 1 and _is(rank) and weight is not None:
                _local(weight).data.view(torch.int32).view(-1)[3] ^= 1 << bit

        register_optimizer_step_post_hook(hook)

    _where_put(spoil)


# Tensor parallel


def _reduced_once_more(_: int) -> None:
    """The gradients of what all tensor-parallel ranks keep are added up, though each has all of it."""
    from torch import distributed as dist

    def hooked(module: Any) -> None:
        for weight in module.parameters():
            if hasattr(module, "head") and not hasattr(weight, "to_local"):
                weight.register_post_accumulate_grad_hook(lambda its: dist.all_reduce(its.grad))

    _where_put(hooked)


def _norms_left_out(_: int) -> None:
    """A norm sees a part of the sequence, and its gradient is not added up over the ranks that see the others."""
    from torch.distributed.tensor.parallel import SequenceParallel

    cut: Any = SequenceParallel
    cut._apply = lambda _self, module, _mesh: module


def _rowwise_not_reduced(_: int) -> None:
    """What the ranks have of a product stays apart."""
    from torch import nn
    from torch.distributed.tensor.parallel import RowwiseParallel

    right: Any = RowwiseParallel._prepare_output_fn

    def wrong(layouts: Any, use_local: bool, module: Any, outputs: Any, mesh: Any) -> Any:
        return outputs.to_local() if isinstance(module, nn.Linear) else right(layouts, use_local, module, outputs, mesh)

    RowwiseParallel._prepare_output_fn = staticmethod(wrong)  # type: ignore[method-assign]


def _replicas_counted(_: int) -> None:
    """Each rank adds the squares of all that it keeps, also of what all keep alike."""
    import torch
    from torch import distributed as dist

    def wrong(parameters: Any, norm: float) -> Any:
        gradients = [_local(own.grad) for own in parameters]
        if not hasattr(parameters[0], "to_local"):
            return right(parameters, norm)
        total = torch.stack([gradient.norm() ** 2 for gradient in gradients]).sum()
        dist.all_reduce(total)
        for gradient in gradients:
            gradient.mul_((norm / total.sqrt()).clamp(max=1))
        return total.sqrt()

    right = torch.nn.utils.clip_grad_norm_
    torch.nn.utils.clip_grad_norm_ = wrong  # type: ignore[assignment]


# Pipelines


def _deals_twice(_: int) -> None:
    """A layer between two stages is given to both."""
    from preflight.train_smoke.strategies import pp

    right = pp.dealt

    def wrong(stages: int) -> list[list[int]]:
        given = right(stages)
        return [[*given[0], given[1][0]], *given[1:]]

    vars(pp)["dealt"] = wrong


def _never_scaled(_: int) -> None:
    """The gradients of microbatches' mean losses are added up, and not divided."""
    from torch.distributed.pipelining.stage import _PipelineStageBase

    stage: Any = _PipelineStageBase
    stage.scale_grads = lambda _self, _factor: None


def _scaled_each_time(_: int) -> None:
    """After each accumulation step all gradients so far are divided again (pytorch PR 144352)."""
    from torch.distributed import pipelining

    right = pipelining.Schedule1F1B.__init__

    def wrong(self: Any, *arguments: Any, **options: Any) -> None:
        right(self, *arguments, **{**options, "scale_grads": True})

    pipelining.Schedule1F1B.__init__ = wrong  # type: ignore[method-assign]


def _before_each_pass(change: Callable[[Any, Callable[[], Any]], Any]) -> None:
    """Instead of a pass of Schedule1F1B: given it, and what does it rightly."""
    from torch.distributed import pipelining

    right = pipelining.Schedule1F1B.step

    def wrong(self: Any, *arguments: Any, **options: Any) -> Any:
        return change(self, lambda: right(self, *arguments, **options))

    pipelining.Schedule1F1B.step = wrong  # type: ignore[method-assign]


def _keeps_last_pass(_: int) -> None:
    """Each accumulation step begins without gradients (Automodel PR 3530)."""

    def change(schedule: Any, do: Callable[[], Any]) -> Any:
        for weight in schedule._stage.submod.parameters():
            weight.grad = None
        return do()

    _before_each_pass(change)


def _skips_second_pass(_: int) -> None:
    calls: list[None] = []

    def change(_schedule: Any, do: Callable[[], Any]) -> Any:
        calls.append(None)
        return do() if len(calls) % 2 else None

    _before_each_pass(change)


def _inputs_reversed(_: int) -> None:
    """The microbatches go in from the last to the first, and their targets the other way round."""
    from torch.distributed.pipelining import schedules

    right = schedules._PipelineSchedule._split_inputs

    def wrong(self: Any, args: Any, kwargs: Any = None) -> Any:
        args, kwargs = right(self, args, kwargs)
        return args[::-1], kwargs

    schedules._PipelineSchedule._split_inputs = wrong  # type: ignore[method-assign]


def _stage_detaches(_: int) -> None:
    """A later stage works on a copy of its input that has no history."""
    from preflight.train_smoke.strategies import pp

    right = pp.LastLayer.forward

    def wrong(self: Any, x: Any) -> Any:
        return right(self, x.detach())

    pp.LastLayer.forward = wrong  # type: ignore[method-assign]


def _clips_stage(_: int) -> None:
    """Each rank clips by the norm of its own stages."""
    from preflight.train_smoke.strategies import pp
    from preflight.train_smoke.trainer import wrapped

    pp.Staged.clip = wrapped.Wrapped.clip  # type: ignore[method-assign]


# Hybrids


def _in_fully_sharded(change: Callable[[Any], None]) -> None:
    from torch.distributed import fsdp

    right = fsdp.fully_shard

    def wrong(module: Any, **options: Any) -> Any:
        made = right(module, **options)
        change(made)
        return made

    vars(fsdp)["fully_shard"] = wrong


def _head_frozen(_: int) -> None:
    """Once it is under DDP or an FSDP."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    def frozen(module: Any) -> None:
        if hasattr(module, "head") or hasattr(module, "module"):
            weight = _named(module, "head.weight")
            if weight is not None:
                weight.requires_grad_(False)

    _in_fully_sharded(frozen)
    for wrapper in (FullyShardedDataParallel, DistributedDataParallel):
        _after(wrapper, frozen)


def _after(wrapper: Any, change: Callable[[Any], None]) -> None:
    right = wrapper.__init__

    def wrong(self: Any, *arguments: Any, **options: Any) -> None:
        right(self, *arguments, **options)
        change(self)

    wrapper.__init__ = wrong


def _replicas_not_reduced(_: int) -> None:
    """FSDP2 leaves out the second half of its reduction, over the replicas (Automodel PR 3135)."""
    from torch import distributed as dist

    right = dist.all_reduce

    def wrong(*arguments: Any, **options: Any) -> Any:
        is_fsdp = sys._getframe(1).f_globals["__name__"].endswith("_fsdp_collectives")
        return None if is_fsdp else right(*arguments, **options)

    vars(dist)["all_reduce"] = wrong


def _one_piece_each(_: int) -> None:
    """FSDP1's HYBRID_SHARD with a shard group of one rank (verl #7493): torch takes it for NO_SHARD, and reduces over
    that one rank."""
    from preflight.train_smoke.trainer import wrapped

    vars(wrapped)["shards"] = lambda _ranks: 1


def _never_zeroed(_: int) -> None:
    """Under a strategy the gradients of one step stay for the next."""
    import torch

    def hooked(module: Any) -> None:
        mine = {id(weight) for weight in module.parameters()}
        right = torch.optim.Optimizer.zero_grad

        def wrong(self: Any, *arguments: Any, **options: Any) -> None:
            if not any(id(weight) in mine for weight in self.param_groups[0]["params"]):
                right(self, *arguments, **options)

        torch.optim.Optimizer.zero_grad = wrong  # type: ignore[method-assign]

    _where_put(hooked)


def _rowwise_in_bfloat16(_: int) -> None:
    """What row-parallel layers add up is rounded before."""
    from torch.distributed.tensor.parallel import RowwiseParallel

    right: Any = RowwiseParallel._prepare_output_fn

    def wrong(layouts: Any, use_local: bool, module: Any, outputs: Any, mesh: Any) -> Any:
        return right(layouts, use_local, module, outputs.bfloat16(), mesh).float()

    RowwiseParallel._prepare_output_fn = staticmethod(wrong)  # type: ignore[method-assign]


def _doubled_where_alone(_: int) -> None:
    """DDP over one rank adds up the gradients twice (Fast-LLM 550)."""
    from torch.nn.parallel import DistributedDataParallel

    def doubled(ddp: Any) -> None:
        if ddp.process_group.size() == 1:
            for weight in ddp.parameters():
                weight.register_hook(lambda gradient: gradient * 2)

    _after(DistributedDataParallel, doubled)


DEEDS: dict[str, Callable[[int], None]] = {
    "parallel_gradient_nan": _gradient_nan,
    "parallel_starts_off": _starts_off,
    "logits_reversed": _logits_reversed,
    "norm_flips": lambda rank: _flip(rank, 28, 2),
    "norm_flips_lowest": lambda rank: _flip(rank, 0, 2),
    "reduced_once_more": _reduced_once_more,
    "norms_left_out": _norms_left_out,
    "rowwise_not_reduced": _rowwise_not_reduced,
    "never_zeroed": _never_zeroed,
    "rowwise_in_bfloat16": _rowwise_in_bfloat16,
    "doubled_where_alone": _doubled_where_alone,
    "replicas_counted": _replicas_counted,
    "deals_twice": _deals_twice,
    "never_scaled": _never_scaled,
    "scaled_each_time": _scaled_each_time,
    "keeps_last_pass": _keeps_last_pass,
    "skips_second_pass": _skips_second_pass,
    "inputs_reversed": _inputs_reversed,
    "stage_detaches": _stage_detaches,
    "clips_stage": _clips_stage,
    "head_frozen": _head_frozen,
    "replicas_not_reduced": _replicas_not_reduced,
    "sums_over_replicas": lambda _: _in_fully_sharded(lambda module: module.set_gradient_divide_factor(1.0)),
    "one_piece_each": _one_piece_each,
}
