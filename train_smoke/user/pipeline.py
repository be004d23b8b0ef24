"""Pipeline parallel of a user's model: the stages that `torch.distributed.pipelining.pipeline()` cuts out of it, under
GPipe.

The loss runs on the last stage's rank: there the model that it is given returns the pipeline's outputs.
"""

import functools
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline
from torch.utils import _pytree as pytree

from preflight.train_smoke.strategies.pp import as_gloo_opens, micro_batches_of
from preflight.train_smoke.trainer import mesh
from preflight.train_smoke.trainer.batch import each, leaves
from preflight.train_smoke.trainer.names import NEEDS_NUMPY
from preflight.train_smoke.trainer.sharded import Sharded
from preflight.train_smoke.trainer.task import Recipe, TrainingTask
from preflight.train_smoke.trainer.wrapped import Doing, StrategySetting, Variant, Wrapped, all_rows, blocks, shapes_of
from preflight.train_smoke.user.tensor_parallel import NotRun
from preflight.train_smoke.user.validation import Given

RANKS = 2
"""Ranks of a pipeline."""
FEWER_SINCE = "2.11"
"""torch's GPipe takes fewer micro-batches than stages from here on."""


class Call(NamedTuple):
    """A call of the model by the loss."""

    inputs: dict[str, Any]
    """By the parameter names of its forward."""
    outputs: Any


class _Called(BaseException):  # not an Exception: the user's loss must not swallow it
    def __init__(self, inputs: dict[str, Any]) -> None:
        super().__init__()
        self.inputs = inputs


class StandIn:
    """Takes the model's place in a call of the loss."""

    def __init__(self, plain: nn.Module, called: Callable[..., Any]) -> None:
        self._plain, self._called = plain, called

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self._called(*inputs, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def variant(given: Given | None) -> Variant:
    """`given`: None if only what holds for every model is needed."""
    return Variant(functools.partial(_wrapped, given=given), share=all_rows, waits_within=True)


def _wrapped(plain: nn.Module, setting: StrategySetting, *, given: Given | None) -> Wrapped:
    """Raises NotRun before any rank waits for another."""
    assert given is not None, "a variant without a model is never run"
    if importlib.util.find_spec("numpy") is None:
        raise NotRun(f"torch's pipelines {NEEDS_NUMPY}")
    if setting.ranks < RANKS:
        raise NotRun("a pipeline has two ranks, and there is one")
    micro_batches = micro_batches_of(given.rows)
    if micro_batches < RANKS and torch.__version__ < FEWER_SINCE:
        why = f"{given.rows} rows cannot be cut into equal micro-batches, one for each of {RANKS} stages"
        raise NotRun(f"{why}, which torch before {FEWER_SINCE} needs (this is {torch.__version__})")
    rows = given.rows // micro_batches
    data = each(lambda tensor: tensor[:rows].to(setting.device), given.batch)
    call = _call(plain, given, data, rows)
    ranks = mesh.across(setting, RANKS)
    pipe = _pipe(plain, call, RANKS)  # on all ranks: what it raises, all raise
    _put_back(plain, pipe)
    group = mesh.part(setting, ranks)
    if group.size() == 1:  # left over: it trains on all rows, as a pipeline does
        return Wrapped(plain, plain)
    stage = as_gloo_opens(pipe.build_stage(group.rank(), setting.device, group))
    return UserStage(plain, setting, group, stage, micro_batches, call.outputs)


# The model in stages


def _call(plain: nn.Module, given: Given, data: Any, rows: int) -> Call:
    """What the loss passes to the model and gets back. Raises NotRun if inputs cannot be cut by rows."""
    made: list[Any] = []
    hook = plain.register_forward_hook(lambda _, __, outputs: made.append(outputs))
    given.loss(plain, data)  # with gradients: a loss may ask for them
    hook.remove()
    inputs = _inputs(plain, given.loss, data)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and (not value.dim() or value.shape[0] != rows):
            text = f"its forward is given {name} {tuple(value.shape)}, which lacks the {rows} rows in dimension 0"
            raise NotRun(text)
    if any(isinstance(leaf, Tensor) and not leaf.dim() for leaf in pytree.tree_leaves(made[0])):
        raise NotRun("its forward computes the loss itself, but stages pass on rows: compute it from its outputs")
    return Call(inputs, made[0])


def _inputs(plain: nn.Module, loss: Callable[[Any, Any], Tensor], data: Any) -> dict[str, Any]:
    """The inputs by name, as in its forward's signature."""

    def called(*inputs: Any, **named: Any) -> Any:
        bound = inspect.signature(plain.forward).bind(*inputs, **named)
        raise _Called({name: value for name, value in bound.arguments.items() if value is not None})

    try:
        loss(StandIn(plain, called), data)
    except _Called as call:
        return call.inputs
    raise NotRun("the loss calls no forward of the model")


def _pipe(plain: nn.Module, call: Call, stages: int) -> Any:
    names = {id(module): name for name, module in plain.named_modules()}
    units = blocks(plain)
    if len(units) < stages:
        text = f"it has {len(units)} repeated blocks between which it could be cut, expected as many as stages"
        raise NotRun(f"{text} ({stages})")
    cuts = {names[id(units[number * len(units) // stages])]: SplitPoint.BEGINNING for number in range(1, stages)}
    why = ""
    try:
        pipe = pipeline(plain, mb_args=(), mb_kwargs=call.inputs, split_spec=cuts)
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    if why:  # beside the exception, whose lines of the model would be blamed
        raise NotRun(f"pipeline() cannot cut it into stages ({why})")
    if pipe.num_stages != stages:
        raise NotRun(f"pipeline() has cut it into {pipe.num_stages} stages, expected {stages}")
    return pipe


def _put_back(plain: nn.Module, pipe: Any) -> None:
    """Puts the stages' parameters into the model, by name: this shows a parameter that is now in several stages."""
    known = dict(plain.named_parameters(remove_duplicate=False))
    for number in range(pipe.num_stages):
        for name, parameter in pipe.get_stage_module(number).named_parameters(remove_duplicate=False):
            if name in known and known[name] is not parameter:
                path, _, last = name.rpartition(".")
                setattr(plain.get_submodule(path), last, parameter)


class UserStage(Sharded):
    """Each rank has one whole stage."""

    def __init__(
        self, plain: nn.Module, setting: StrategySetting, group: torch.distributed.ProcessGroup, stage: Any,
        micro_batches: int, outputs: Any,
    ) -> None:  # fmt: skip
        own = {id(parameter) for parameter in stage.submod.parameters()}
        none = torch.empty(0, device=setting.device)
        pieces = {name: its if id(its) in own else none for name, its in plain.named_parameters()}
        super().__init__(plain, plain, setting, shapes_of(plain), group, pieces)
        self._stage = stage
        # Once for all passes: torch before 2.12 sets a stage up for one schedule only.
        self._schedule = ScheduleGPipe(stage, micro_batches, loss_fn=self._loss)
        self._leaves, self._form = pytree.tree_flatten(outputs)

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._stage.submod.parameters() if parameter.requires_grad]

    def pass_(self, task: TrainingTask, _recipe: Recipe, data: Any, weight: float, doing: Doing) -> float:
        assert weight == 1.0, "torch divides by the number of micro-batches, which is wrong for a part of a batch"
        doing("pipeline")
        self._task, self._data = task, data
        losses: list[Tensor] = []
        given: dict[str, Any] = {}
        if self._stage.is_first:
            given = {name: its for name, its in _inputs(self.plain, task.loss, data).items() if isinstance(its, Tensor)}
        if self._stage.is_last:
            rows = next(leaf for _, leaf in leaves(data)).shape[0]
            self._schedule.step(**given, target=torch.arange(rows, device=task.device), losses=losses)
        else:
            self._schedule.step(**given)
        mean = torch.stack(losses).detach().mean().cpu() if losses else torch.tensor(0.0)
        mean = mean.to(task.device)
        torch.distributed.all_reduce(mean, group=self._group)  # the last stage's rank knows it
        return mean.item()

    def _loss(self, made: Any, rows: Tensor) -> Tensor:
        outputs = self._outputs(made)
        stand_in: Any = StandIn(self.plain, lambda *_, **__: outputs)
        return self._task.loss(stand_in, each(lambda tensor: tensor[rows], self._data))

    def _outputs(self, made: Any) -> Any:
        """The outputs as forward returns them: stages pass on tensors only."""
        new: Sequence[Any] = made if isinstance(made, tuple | list) else (made,)
        tensors_made = iter(new)
        leaves = [next(tensors_made) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._form)
