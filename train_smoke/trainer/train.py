"""Trains a task for some steps, alone or under a strategy.

A training that is compared with another one keeps no tensors: each is compared and freed, since those of a large model
do not fit twice.
"""

import collections
import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from preflight.train_smoke.trainer.batch import Part, each
from preflight.train_smoke.trainer.buffers import Buffers
from preflight.train_smoke.trainer.collectives import Collectives, Made
from preflight.train_smoke.trainer.compare import (
    SAME,
    WORST,
    Along,
    Apart,
    Curve,
    Furthest,
    GradientOff,
    GradientsOff,
    Number,
    as_json,
    block_of,
    difference,
)
from preflight.train_smoke.trainer.gradient_watch import GradientWatch, Unwatched, together
from preflight.train_smoke.trainer.layer_products import Layers, Unkept
from preflight.train_smoke.trainer.memory import PeakWatch
from preflight.train_smoke.trainer.task import Recipe, TrainingTask
from preflight.train_smoke.trainer.wrapped import Piece, StrategySetting, Values, Wrapped, silent, unmarked

NEGLIGIBLE = {"gradient": 0.05, "end": 1e-2, "state": 0.05}
"""A share of the largest element of all tensors. Some parameters have only roundings as gradient (biases of attention's
keys, biases before a BatchNorm: 1e-7 of the largest): relative to their own size no two trainings agree, and their
spread would hide what is wrong with the others. Relative to this share 1e-7 is 2e-6, a tenth of the least limit."""


@dataclass
class KeptTensors:
    """A training's tensors on the CPU, by name: at the MOMENTS, and this rank's own gradient at the first step, as it
    goes into the mean over the ranks."""

    start: dict[str, Tensor] = field(default_factory=dict)
    gradient: dict[str, Tensor] = field(default_factory=dict)
    end: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)
    own: dict[str, Tensor] = field(default_factory=dict)
    layers: list[Layers] = field(default_factory=list)
    """By step, if the task asks for them."""
    _scales: dict[str, dict[str, float]] = field(default_factory=dict)
    """By moment, once all its tensors are there."""

    def at(self, moment: str) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = getattr(self, moment)
        return tensors

    def scale(self, moment: str, name: str) -> float:
        """The scale of a difference: for weights at the end, the largest change of an element. For tensors that are
        negligible compared with the model's largest of that kind, a share of that one's scale."""
        if moment not in self._scales:
            self._scales[moment] = {named: self._size(moment, named) for named in self.at(moment)}
        kind = name.partition(" ")[2]
        sizes = self._scales[moment]
        largest = max((size for other, size in sizes.items() if other.partition(" ")[2] == kind), default=0.0)
        return max(sizes[name], NEGLIGIBLE.get(moment, 0.0) * largest)

    def _size(self, moment: str, name: str) -> float:
        tensor = self.at(moment)[name]
        return float((tensor - self.start[name] if moment == "end" else tensor).abs().max()) if tensor.numel() else 0.0


class TensorComparison:
    """Compares a training's tensors, as they come, with those of another one."""

    def __init__(self, expected: KeptTensors, places: Mapping[str, Piece]) -> None:
        self._expected, self._places = expected, places
        self._whole: dict[str, Furthest] = {}
        self._own: dict[str, Furthest] = {}
        self._along = [0.0, 0.0, 0.0]
        self._like = [0.0, 0.0, 0.0]
        self._gradients: list[tuple[float, GradientOff]] = []

    def see(self, moment: str, values: Values) -> None:
        """Compares all tensors of a moment. A missing one is infinitely far off, and so is one that should not be
        there, unless it is all 0: FSDP1 makes such a gradient for an unused parameter."""
        expected = self._expected.at(moment)
        off, own_off = dict.fromkeys(expected, math.inf), {}
        for name, value in values:
            if name not in expected:
                off[name] = math.inf if value.any() else 0.0
                continue
            value = value.to("cpu", torch.float32)
            apart = value - expected[name]
            by = self._expected.scale(moment, name)
            off[name] = _relative(apart, by)
            if place := self._places.get(name.partition(" ")[0]):
                own_off[name] = _relative(place.of(apart), by)
            if moment == "gradient":
                self._gradients.append(_gradient_off(name, apart, value, expected[name], by))
            if moment == "gradient" and name in self._expected.own:
                own = self._expected.own[name].double()
                _add_products(self._along, apart.double().flatten(), own.flatten())
                piece, own = (place.of(value), place.of(own)) if place else (value, own)
                _add_products(self._like, piece.double().flatten(), own.flatten())
        if moment == "gradient":
            seen = {told["parameter"] for _, told in self._gradients}
            missing = [name for name, tensor in expected.items() if name not in seen and tensor.any()]
            self._gradients += [(math.inf, GradientOff(parameter=name, error=1.0, ratio=0.0)) for name in missing]
        self._whole[moment] = _furthest(off)
        if self._places:
            self._own[moment] = _furthest(own_off)

    def apart(self) -> Apart:
        common, own, all_ = self._along
        along = Along(times=as_json(common / own), share=as_json(common**2 / own / all_)) if own and all_ else None
        common, own, all_ = self._like
        like = as_json(common / math.sqrt(own * all_)) if own * all_ else None
        return Apart(whole=self._whole, own=self._own, along=along, like=like, gradients=_worst(self._gradients))


def _gradient_off(name: str, apart: Tensor, value: Tensor, expected: Tensor, by: float) -> tuple[float, GradientOff]:
    """(how far it counts as off, the entry). `by`: the scale of its elements: a lower bound for the expected norm."""
    error, norm, wanted = (float(tensor.double().norm()) for tensor in (apart, value, expected))
    told = GradientOff(parameter=name, error=as_json(_by(error, wanted)), ratio=as_json(_by(norm, wanted)))
    floor = NEGLIGIBLE["gradient"] * by * math.sqrt(max(1, expected.numel()))
    off = _by(error, max(wanted, floor))
    return (math.inf if math.isnan(off) else off), told


def _by(value: float, expected: float) -> float:
    return value / expected if expected else (math.inf if value else 0.0)


def _worst(every: list[tuple[float, GradientOff]]) -> GradientsOff:
    """The worst first; those that are equally off, to 3 digits, stay in the model's order."""
    found = [told for _, told in sorted(every, key=lambda entry: -float(f"{entry[0]:.3g}"))]
    worst = found[0]["ratio"] if found else 1.0
    alike = sum(difference(told["ratio"], worst) <= SAME for told in found)
    return GradientsOff(worst=found[:WORST], alike=alike, count=len(found))


def _add_products(sums: list[float], tensor: Tensor, other: Tensor) -> None:
    for place, value in enumerate((tensor @ other, other @ other, tensor @ tensor)):
        sums[place] += float(value)


def _relative(apart: Tensor, by: float) -> float:
    most = float(apart.abs().max()) if apart.numel() else 0.0
    return most / by if by else (math.inf if most else 0.0)


def _furthest(off: dict[str, float]) -> Furthest:
    """The furthest tensor; `off`: by tensor name."""
    ways = {name: math.inf if math.isnan(off_by) else off_by for name, off_by in off.items()}
    worst = max(ways, key=lambda name: ways[name], default="")
    parameter = worst.partition(" ")[0]
    rest = {name: off_by for name, off_by in ways.items() if name.partition(" ")[0] != parameter}
    elsewhere = [off_by for name, off_by in rest.items() if block_of(name) != block_of(parameter)]
    return Furthest(
        parameter=worst,
        off=as_json(off[worst]) if worst else 0.0,
        rest=as_json(max(rest.values(), default=0.0)),
        elsewhere=as_json(max(elsewhere, default=0.0)),
    )


class InBfloat16(nn.Module):
    """A model that computes with rounded weights, as under mixed precision; the weights themselves are not changed."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        self.plain = plain

    def forward(self, *inputs: Any, **named: Any) -> Any:
        rounded = {name: parameter.bfloat16() for name, parameter in self.plain.named_parameters()}
        inputs, named = each(_rounded, (inputs, named))
        return torch.func.functional_call(self.plain, rounded, inputs, named)


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16() if tensor.is_floating_point() else tensor


@dataclass
class Trained:
    curve: Curve
    kept: KeptTensors
    """Its tensors; empty if it was compared with another one."""
    apart: Apart | None
    """How far it is from that one."""
    clipped: Sequence[Number] = ()
    """The norm before clipping, at each step."""
    made: Sequence[Made] = ()
    """The collectives of one step that the strategy needs."""


class Training:
    """One training, from the current weights to the last step."""

    def __init__(
        self,
        task: TrainingTask,
        recipe: Recipe,
        wrapped: Wrapped,
        watch: GradientWatch | Unwatched,
        *,
        against: KeptTensors | None = None,
        probe: PeakWatch | None = None,
        setting: StrategySetting | None = None,
        layers: Unkept | None = None,
    ) -> None:
        """`against`: what it is compared with. `setting`: None for a training alone."""
        self._task, self._recipe, self._wrapped, self._watch, self._probe = task, recipe, wrapped, watch, probe
        self._mark, self._doing = (setting.mark, setting.doing) if setting else (unmarked, silent)
        self._setting = setting
        self._kept, self._clip_to = KeptTensors(), 0.0
        self._layers = layers or Unkept()
        self._made: list[Made] = []
        self._clipped: list[Number] = []
        self._buffers = Buffers(wrapped.plain, task.written)
        self._comparison = None if against is None else TensorComparison(against, wrapped.places())
        self._curve = Curve(losses=[], own_norms=[], own_prints=[], norms=[], prints=[])

    def run(self, steps: Sequence[Sequence[Part]], own: int = 1) -> Trained:
        """`steps`: the parts of each step. The last `own` are this rank's; their loss and gradient are recorded."""
        self._see("start", self._wrapped.weights())
        self.optimizer = self._recipe.optimizer(self._wrapped.groups(), self._task.rates)
        with self._wrapped.joining():
            for step, parts in enumerate(steps):
                self._step(step, parts, own)
        self._buffers.put_back()
        self._see("end", self._wrapped.weights())
        if len(steps) == self._task.steps:  # a rank that joined early has not taken the last step itself
            self._see("state", self._wrapped.states(self.optimizer))
        apart = self._comparison.apart() if self._comparison is not None else None
        if self._setting and self._task.common:
            self._curve["losses"] = self._over_ranks(self._curve["losses"], self._setting)
            forget_own(self._curve)
        return Trained(self._curve, self._kept, apart, self._clipped, self._made)

    def _step(self, step: int, parts: Sequence[Part], own: int) -> None:
        with self._measured(), self._counted(step):
            self.optimizer.zero_grad()
            losses = []
            for place, part in enumerate(parts, own - len(parts)):
                if place <= 0:  # nothing is kept of the parts before this rank's own
                    self._watch.begin(step)
                losses.append(self._backward(step, part, last=part is parts[-1]))
            self._wrapped.finish()
        norm, print_ = self._taken(step)
        mine = parts[-own:]
        share = sum(part.share for part in mine)
        weights = [part.share / share if share else 1 / own for part in mine]
        self._curve["losses"].append(as_json(sum(w * loss for w, loss in zip(weights, losses[-own:], strict=True))))
        if made := self._watch.own():
            factor = share * self._wrapped.times or 1.0
            if own == 1:
                self._curve["own_norms"].append(as_json(made[0] / factor))
            self._curve["own_prints"].append(as_json(made[1] / factor))
        self._curve["norms"].append(as_json(norm))
        self._curve["prints"].append(as_json(print_))
        self._doing(f"step {step}: optimizer")
        with self._measured():
            if self._recipe.clip:
                self._clip_to = self._clip_to or self._recipe.clip * norm
                self._clipped.append(as_json(float(self._wrapped.clip(self._clip_to))))
            self.optimizer.step()
        self._layers.stepped()

    def _over_ranks(self, losses: Sequence[Number], setting: StrategySetting) -> list[Number]:
        """Their mean over the ranks, by step."""
        values = torch.tensor([float(loss) for loss in losses], dtype=torch.float64, device=self._task.device)
        with self._mark("comparing losses", ""):
            torch.distributed.all_reduce(values, group=setting.group)
        return [as_json(value / setting.ranks) for value in values.tolist()]

    @contextlib.contextmanager
    def _counted(self, step: int) -> Iterator[None]:
        """Counts in the second step, which is like later ones: in the first shapes are sent, and DDP has one bucket."""
        if not self._task.counts or self._probe is None or step != min(1, self._task.steps - 1):
            yield
            return
        with Collectives() as counted:
            yield
        self._made = counted.made(self._wrapped.needs)

    def _backward(self, step: int, part: Part, *, last: bool) -> float:
        self._doing(f"step {step}: forward")
        self._buffers.put_back()
        self._watch.forward()
        weight = part.share * self._wrapped.times
        with self._wrapped.piece(last=last), self._watch.waiting:
            return self._wrapped.pass_(
                self._task, self._recipe, part.data, weight, lambda what: self._doing(f"step {step}: {what}")
            )

    def _taken(self, step: int) -> tuple[float, float]:
        """Norm and print of the gradient that the step uses."""
        prints: list[Tensor] = []

        def seen() -> Values:
            for name, gradient in self._wrapped.gradients():
                prints.append(self._watch.signs.norm_and_print(name, gradient))
                yield name, gradient

        if step == 0:
            self._see("gradient", seen())
        else:
            with self._mark("reading the gradient", f"step {step}"):
                collections.deque(seen(), maxlen=0)
        return together(prints)

    def _see(self, moment: str, values: Values) -> None:
        self._doing(f"reading the {moment}")
        with self._mark(f"reading the {moment}", ""):
            if self._comparison is not None:
                self._comparison.see(moment, values)
            else:
                self._kept.at(moment).update((name, on_cpu(tensor)) for name, tensor in values)

    def _measured(self) -> AbstractContextManager[None]:
        return self._probe.on() if self._probe else contextlib.nullcontext()


def forget_own(curve: Curve) -> None:
    """Where the loss is of all ranks' rows, no rank has a gradient of its own."""
    curve["own_norms"], curve["own_prints"] = [], []


def on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32, copy=True)
