"""Deeds of sitecustomize.py that only some variant of a strategy sees: accumulation, states that DDP sends, groups of
parameters, bfloat16, pipelines of three ranks, replicas of experts, products of tensor parallelism."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any


def _is(rank: int) -> bool:
    from torch import distributed as dist

    return dist.get_rank() == rank


# Accumulation


def _after_post_backward(change: Callable[[Any], None]) -> None:
    """Of each group of parameters that FSDP2 reduces together."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    group: Any = _fsdp_param_group.FSDPParamGroup
    right = group.post_backward

    def wrong(self: Any, *arguments: Any) -> None:
        right(self, *arguments)
        change(self)

    group.post_backward = wrong


def _loses_unreduced(_: int) -> None:
    """What backward has made under no_sync() or set_requires_gradient_sync(False) is gone afterwards."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    right: Any = FullyShardedDataParallel.no_sync

    @contextlib.contextmanager
    def no_sync(self: Any) -> Iterator[None]:
        with right(self):
            yield
        units: Any = FullyShardedDataParallel.fsdp_modules(self)
        for unit in units:
            unit._handle.flat_param.grad = None
        for parameter in self.parameters():
            parameter.grad = None

    def lose(group: Any) -> None:
        if not group.reduce_grads:
            for parameter in group.fsdp_params:
                parameter._unsharded_param.grad = None

    FullyShardedDataParallel.no_sync = no_sync  # type: ignore[method-assign]
    _after_post_backward(lose)


def _replaces_reduced(_: int) -> None:
    """What a micro-batch's reduction leaves takes the place of what was there, instead of being added to it."""
    runtime: Any = importlib.import_module("torch.distributed.fsdp._runtime_utils")
    collectives: Any = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_param_group")
    right, reduce = runtime._accumulate_sharded_grad, collectives.foreach_reduce

    def replaced(state: Any, handle: Any, gradient: Any) -> Any:
        if hasattr(handle.flat_param, "_saved_grad_shard"):
            del handle.flat_param._saved_grad_shard
        return right(state, handle, gradient)

    def reduced(parameters: Any, *arguments: Any, **options: Any) -> Any:
        for parameter in parameters:
            parameter.sharded_param.grad = None
        return reduce(parameters, *arguments, **options)

    runtime._accumulate_sharded_grad, collectives.foreach_reduce = replaced, reduced


def _loses_partly_reduced(_: int) -> None:
    """What is reduced over shards, and waits for the all-reduce of the last micro-batch, is gone (HSDP)."""

    def lose(group: Any) -> None:
        if not group.all_reduce_grads:
            group._partial_reduce_output = None

    _after_post_backward(lose)


# Data parallel


def _ddp_sends_nothing(_: int) -> None:
    """DDP does not send the lowest rank's weights and buffers to all."""
    from torch.nn.parallel import distributed

    vars(distributed)["_sync_module_states"] = lambda **_options: None


def _in_fsdp2(change: Callable[[Any], None]) -> None:
    """When fully_shard has taken a whole model."""
    from torch.distributed import fsdp

    right = fsdp.fully_shard

    def wrong(module: Any, **options: Any) -> Any:
        sharded = right(module, **options)
        if hasattr(module, "head"):
            change(sharded)
        return sharded

    vars(fsdp)["fully_shard"] = wrong


def _buffers_off(rank: int) -> None:
    """One rank's buffers are others than in the plain model."""

    def spoil(module: Any) -> None:
        for buffer in module.buffers():
            buffer.mul_(1.01 if _is(rank) else 1)

    _in_fsdp2(spoil)


def _norms_anew(_: int) -> None:
    """Norms are initialized once more, to ones and zeros, as by a reset_parameters() after to_empty()."""
    from torch import nn

    def reset(module: Any) -> None:
        for each in module.modules():
            if isinstance(each, nn.LayerNorm):
                each.reset_parameters()

    _in_fsdp2(reset)


def _one_group(_: int) -> None:
    """Once a model is sharded, optimizers take the first group's weight decay for all."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def step(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            group["weight_decay"] = optimizer.param_groups[0]["weight_decay"]

    def hooked(_: Any) -> None:
        register_optimizer_step_pre_hook(step)

    _in_fsdp2(hooked)


# Ranks that cut a model


def _in_rowwise(change: Callable[[Any, Any], Any]) -> None:
    """On what row-parallel layers have before it is reduced: given the layer and its local term."""
    from torch import nn
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import RowwiseParallel

    right: Any = RowwiseParallel._prepare_output_fn

    def wrong(layouts: Any, use_local: bool, module: Any, outputs: Any, mesh: Any) -> Any:
        if isinstance(module, nn.Linear):
            local = change(module, outputs.to_local())
            outputs = DTensor.from_local(local, mesh, outputs.placements, run_check=False)
        return right(layouts, use_local, module, outputs, mesh)

    RowwiseParallel._prepare_output_fn = staticmethod(wrong)  # type: ignore[method-assign]


def _terms_in_bfloat16_off(_: int) -> None:
    """Terms that are added up over the ranks in bfloat16 are too large."""
    _in_rowwise(lambda _layer, term: term * 1.25 if term.element_size() == 2 else term)


def _bias_on_each(_: int) -> None:
    """Each rank adds the whole bias to its term."""
    _in_rowwise(lambda layer, term: term + layer.bias.to_local() / 2)


def _product_off(rank: int) -> None:
    """One rank's own product is 1% too large in one layer, of those that it shares."""
    from torch import nn
    from torch.distributed.tensor import DTensor

    linear: Any = nn.Linear
    right = linear.forward

    def wrong(self: Any, inputs: Any) -> Any:
        output = right(self, inputs)
        if not (hasattr(output, "to_local") and _is(rank) and 2 * self.out_features < self.in_features):
            return output
        return DTensor.from_local(output.to_local() * 1.01, output.device_mesh, output.placements, run_check=False)

    linear.forward = wrong


def _reversed_at(step: int) -> None:
    """Logits come out in the wrong order at one step, once tensor parallelism has cut the model."""
    from torch.distributed.tensor import parallel

    right: Any = parallel.parallelize_module

    def wrong(module: Any, *arguments: Any, **options: Any) -> Any:
        steps: list[None] = []

        def hook(_module: Any, _inputs: Any, logits: Any) -> Any:
            steps.append(None)
            return logits.flip(1) if len(steps) == step + 1 else None

        module.register_forward_hook(hook)
        return right(module, *arguments, **options)

    vars(parallel)["parallelize_module"] = wrong


def _adamw_counts_twice(_: int) -> None:
    """Where parameters are parts of DTensors under DDP, AdamW counts each step twice."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    hybrid: Any = importlib.import_module("preflight.train_smoke.strategies.hybrid")
    right = hybrid.OfLocalised

    def count(optimizer: Any, *_: Any) -> None:
        for state in optimizer.state.values():
            state["step"] += 1

    def wrong(*arguments: Any, **options: Any) -> Any:
        register_optimizer_step_pre_hook(count)
        return right(*arguments, **options)

    hybrid.OfLocalised = wrong


def _middle_stage_off(_: int) -> None:
    """A stage that is neither the first nor the last sends back a gradient that is too large."""
    from torch.distributed.pipelining.stage import _PipelineStageBase

    stage: Any = _PipelineStageBase
    right = stage.get_bwd_send_ops

    def wrong(self: Any, *arguments: Any) -> Any:
        operations = right(self, *arguments)
        for operation in operations:
            operation.tensor.mul_(1 if self.is_last else 1.5)
        return operations

    stage.get_bwd_send_ops = wrong


def _expert_replicas_left_out(_: int) -> None:
    """Experts' gradients are not added up over the groups that keep the same experts."""
    expert: Any = importlib.import_module("preflight.train_smoke.strategies.expert")
    right = expert.UnderExpertParallel.finish

    def wrong(self: Any) -> None:
        self._replicas = None
        right(self)

    expert.UnderExpertParallel.finish = wrong


def _tokens_in_bfloat16_off(_: int) -> None:
    """What is sent to experts in bfloat16 arrives too large."""
    from torch.distributed import _functional_collectives as functional_collectives

    right = functional_collectives.all_to_all_single_autograd
    functional_collectives.all_to_all_single_autograd = lambda rows, *more: right(
        rows * 1.25 if rows.element_size() == 2 else rows, *more
    )


DEEDS: dict[str, Callable[[int], None]] = {
    "loses_unreduced": _loses_unreduced,
    "replaces_reduced": _replaces_reduced,
    "loses_partly_reduced": _loses_partly_reduced,
    "ddp_sends_nothing": _ddp_sends_nothing,
    "buffers_off": _buffers_off,
    "norms_anew": _norms_anew,
    "one_group": _one_group,
    "terms_in_bfloat16_off": _terms_in_bfloat16_off,
    "bias_on_each": _bias_on_each,
    "product_off": _product_off,
    "reversed_at": _reversed_at,
    "adamw_counts_twice": _adamw_counts_twice,
    "middle_stage_off": _middle_stage_off,
    "expert_replicas_left_out": _expert_replicas_left_out,
    "tokens_in_bfloat16_off": _tokens_in_bfloat16_off,
}
