"""The training alone, with which strategies are compared, and how far apart sound trainings may be.

It is done three times: with the batch cut as on the ranks, and its parts added up in their order; with the whole batch
at once, if that is a different cut; and cut again, with the weights and the batch moved by one unit in the last place.
These differ only by the roundings of this hardware.
"""

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.batch import Cut, Part, each
from preflight.train_smoke.trainer.compare import Curve, Spread
from preflight.train_smoke.trainer.gradient_watch import GradientWatch, Signs
from preflight.train_smoke.trainer.layer_products import LayersAlone
from preflight.train_smoke.trainer.memory import is_out_of_memory
from preflight.train_smoke.trainer.task import Recipe, TrainingTask
from preflight.train_smoke.trainer.train import InBfloat16, KeptTensors, Trained, Training, forget_own, on_cpu
from preflight.train_smoke.trainer.wrapped import Wrapped, as_real, named, unmarked


@dataclass(frozen=True)
class Reference:
    curve: Curve
    """The curve with the batch in parts: losses and own gradients are those of this rank's own part."""
    kept: KeptTensors
    spread: Spread


_made: dict[tuple[str, Recipe, int, int, bool], Reference] = {}
"""Those made in this worker, by task name, recipe, rank, number of ranks, and whether the layers' products are kept."""


def of(task: TrainingTask, recipe: Recipe) -> Reference:
    """Trains alone, or returns what an earlier check has trained."""
    key = task.name, recipe, task.cut.rank, task.cut.ranks, task.layers
    if key not in _made:
        with task.alone():
            _made[key] = _trained(task.solo or task, recipe)
    return _made[key]


def forget() -> None:
    """Frees the tensors of all trainings: those of a user's model are large."""
    _made.clear()


def _trained(task: TrainingTask, recipe: Recipe) -> Reference:
    in_parts = alone(task, recipe)
    if task.common:
        forget_own(in_parts.curve)
    else:
        in_parts.kept.own = _own_gradient(task, recipe)
    again = [_alone_nudged(task, recipe, in_parts.kept)]
    if task.cut.whole is not task.cut.parts and task.cut.ranks > 1:  # else they are the same part
        again.append(alone(task, recipe, whole=True, against=in_parts.kept))
    spreads = (compare.spread(training.curve, in_parts.curve, training.apart) for training in again if training.apart)
    return Reference(in_parts.curve, in_parts.kept, functools.reduce(compare.wider, spreads))


def _alone_nudged(task: TrainingTask, recipe: Recipe, against: KeptTensors) -> Trained:
    """Trains with weights and batch moved by one rounding; with only the weights, if the code refuses that batch."""
    try:
        return alone(_nudged(task, _nudged_cut(task.cut)), recipe, against=against)
    except Exception as error:
        if is_out_of_memory(error):
            raise
    return alone(_nudged(task, task.cut), recipe, against=against)


class Alone(Wrapped):
    """A training whose losses are multiplied by the number of ranks, as under a strategy: a bfloat16 gradient is
    rounded after that."""

    def __init__(self, module: nn.Module, plain: nn.Module, times: int) -> None:
        super().__init__(module, plain)
        self.times = times

    def finish(self) -> None:
        for parameter in self.parameters():
            if parameter.grad is not None and self.times > 1:
                parameter.grad /= self.times


def alone(task: TrainingTask, recipe: Recipe, *, whole: bool = False, against: KeptTensors | None = None) -> Trained:
    """One training in this process, with the batch in parts, weighted as on the ranks, or whole."""
    plain = task.new()
    layers = LayersAlone(plain) if task.layers and against is None else None
    watch = GradientWatch(plain, Signs(plain), unmarked)
    times = 1 if whole else task.cut.ranks
    wrapped = Alone(InBfloat16(plain) if recipe.mixed else plain, plain, times)
    steps = [task.cut.whole if whole else task.cut.parts] * task.steps
    if recipe.uneven:
        steps[-1] = task.cut.early
    trained = Training(task, recipe, wrapped, watch, against=against, layers=layers).run(steps)
    trained.kept.layers = layers.steps if layers else []
    return trained


def _own_gradient(task: TrainingTask, recipe: Recipe) -> dict[str, Tensor]:
    """The gradient of this rank's own part, as it goes into the mean over the ranks."""
    plain = task.new()
    with recipe.forward(task.device):
        loss = task.loss(InBfloat16(plain) if recipe.mixed else plain, task.cut.own.data)
    (loss * task.cut.own.share).backward()  # type: ignore[no-untyped-call]
    made = ((name, parameter.grad) for name, parameter in named(plain))
    return {name: on_cpu(as_real(gradient)) for name, gradient in made if gradient is not None}


def _nudged(task: TrainingTask, cut: Cut) -> TrainingTask:
    """The task on another cut, its weights moved by one unit in the last place."""
    random = torch.Generator().manual_seed(1)

    def new() -> nn.Module:
        plain = task.new()
        with torch.no_grad():
            for parameter in plain.parameters():
                if parameter.requires_grad:  # a frozen one must not have moved at the end
                    parameter.copy_(_moved(parameter, random))
        return plain

    return replace(task, new=new, cut=cut)


def _nudged_cut(cut: Cut) -> Cut:
    """The batch moved by one unit in the last place, but within its own smallest and largest numbers: code may check a
    range, such as that of probabilities. Whole numbers stay: masks, classes and counts are not rounded."""
    random = torch.Generator().manual_seed(2)

    def nudge(tensor: Tensor) -> Tensor:
        numbers = tensor[tensor.isfinite()] if tensor.is_floating_point() else tensor[:0]
        if not numbers.numel():
            return tensor
        moved = _moved(tensor, random).clamp(numbers.min(), numbers.max())
        return torch.where(tensor == tensor.round(), tensor, moved)

    def parts(chosen: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(replace(part, data=each(nudge, part.data)) for part in chosen)

    return replace(cut, parts=parts(cut.parts), early=parts(cut.early))


def _moved(tensor: Tensor, random: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    way = torch.randint(0, 2, tensor.shape, generator=random).mul_(2).sub_(1).to(tensor)
    moved = tensor * (1 + torch.finfo(tensor.dtype).eps * way)
    return torch.where(moved.isfinite(), moved, tensor)  # a mask may hold the lowest number that there is
