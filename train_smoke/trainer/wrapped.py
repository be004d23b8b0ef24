"""A model under a strategy, and how a training reads the full values of what may be cut among the ranks."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from preflight.train_smoke.trainer.collectives import Need
from preflight.train_smoke.trainer.names import STEPS
from preflight.train_smoke.trainer.task import Groups, Recipe, TrainingTask

Mark = Callable[[str, str], AbstractContextManager[None]]
"""Marks the time in which a rank may wait for others: (operation, step)."""
Doing = Callable[[str], None]
"""Notes what a rank is doing, so that a hang or a death shows where it was."""
Values = Iterator[tuple[str, Tensor]]
"""Full tensors by the parameters' names in the plain model, in its order, one at a time, since a large model's do not
fit together. All ranks iterate together."""


def silent(_what: str) -> None:
    """A `Doing` that does nothing."""


def unmarked(_operation: str, _step: str) -> AbstractContextManager[None]:
    """A `Mark` for code in which no rank waits for another."""
    return contextlib.nullcontext()


class ShardRange(NamedTuple):
    """The elements of a flattened parameter that this rank keeps."""

    start: int
    length: int

    def of(self, whole: Tensor) -> Tensor:
        """These elements of the whole tensor, flat."""
        return whole.flatten()[self.start : self.start + self.length]


class ShardBox(NamedTuple):
    """The elements that this rank keeps, as a range (start, end) of each dimension."""

    ranges: tuple[tuple[int, int], ...]

    def of(self, whole: Tensor) -> Tensor:
        """These elements of the whole tensor, flat."""
        return whole[tuple(slice(*range_) for range_ in self.ranges)].flatten()


Piece = ShardRange | ShardBox


PUT_BETWEEN = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
"""What torch's wrappers insert into a parameter's name."""


def plain_name(name: str) -> str:
    """A parameter's name in the plain model."""
    for word in PUT_BETWEEN:
        name = name.replace(word, "")
    return name


def named(plain: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters by their names in the plain model, also where the user has compiled it."""
    return ((plain_name(name), parameter) for name, parameter in plain.named_parameters())


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor's real and imaginary parts, in one more dimension; any other tensor as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def shapes_of(plain: nn.Module) -> dict[str, torch.Size]:
    """The parameters' shapes by name, before a strategy cuts them."""
    return {name: as_real(parameter).shape for name, parameter in named(plain)}


def blocks(plain: nn.Module) -> list[nn.Module]:
    """The modules to wrap besides the whole model: the items of every list of modules, and of every sequence of at
    least two of one class. Only the outermost; no container, which has no forward; and none that shares a parameter
    with the rest of the model, since that cannot be cut twice."""
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in plain.modules():
        if id(module) not in inside and _repeats(module):
            chosen = [child for child in module.children() if is_apart(child, plain)]
            found += chosen
            inside |= {id(module_in) for item in chosen for module_in in item.modules()}
    return found


def _repeats(module: nn.Module) -> bool:
    if isinstance(module, nn.ModuleList):
        return True
    classes = [type(child) for child in module.children()] if isinstance(module, nn.Sequential) else []
    return len(classes) > 1 and len(set(classes)) == 1


def is_apart(module: nn.Module, plain: nn.Module) -> bool:
    """Whether a module can be wrapped by itself: it has parameters, all its own, and a forward."""
    own = {id(parameter) for parameter in module.parameters()}
    if not own or isinstance(module, nn.ModuleList | nn.ModuleDict):
        return False
    inside = {id(inner) for inner in module.modules()}
    rest = (other for other in plain.modules() if id(other) not in inside)
    return not any(id(parameter) in own for other in rest for parameter in other._parameters.values())


def shards(ranks: int) -> int:
    """Into how many pieces a parameter is cut if it need not be cut among all ranks: the largest divisor up to the
    square root, such as 4 for 16; all ranks if there is none."""
    divisors = [divisor for divisor in range(2, ranks) if divisor * divisor <= ranks and ranks % divisor == 0]
    return max(divisors, default=ranks)


class Wrapped:
    """A model that is whole on its rank: alone, or under DDP. A strategy overrides what is different."""

    def __init__(self, module: nn.Module, plain: nn.Module) -> None:
        self.module, self.plain = module, plain
        self.units: list[nn.Module] = []
        """Modules inside it that wait for other ranks when their forward begins."""
        self.mesh: Sequence[tuple[str, int]] = ()
        """Names and sizes of the mesh's dimensions; empty if there is only one."""
        self.sizes: Mapping[str, int] = {}
        """Factors by which a gradient may be wrong by mistake, by name: {"microbatches": 4}."""
        self.needs: Sequence[Need] = ()
        self.times = 1
        """Ranks over whose gradients a mean is taken: a part's loss is weighted by this number times its share."""

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the optimizer steps."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def groups(self) -> Groups:
        """The same for the optimizer. By their names: a strategy may have flattened them."""
        names = {id(parameter): name.lower() for name, parameter in self.named()}
        groups = Groups([], [])
        for parameter in self.parameters():
            name = names.get(id(parameter), "")
            groups[name.endswith("bias") or "norm" in name].append(parameter)  # type: ignore[attr-defined]
        return groups

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The same and frozen ones, by the names in the plain model."""
        return named(self.plain)

    def piece(self, *, last: bool) -> AbstractContextManager[object]:  # noqa: ARG002 -- for strategies that need it
        """The context for training on a micro-batch; the last one of a step exchanges gradients."""
        return contextlib.nullcontext()

    def joining(self) -> AbstractContextManager[object]:
        """The context in which all steps are taken."""
        return contextlib.nullcontext()

    def finish(self) -> None:
        """Called after the last part of a step, before its gradient is read."""

    def clip(self, norm: float) -> Tensor:
        """Clips the gradient of all parameters to this norm. Returns the norm that it had, as the strategy knows it."""
        return torch.nn.utils.clip_grad_norm_(self.parameters(), norm)

    def pass_(self, task: TrainingTask, recipe: Recipe, data: Any, weight: float, doing: Doing) -> float:
        """Forward and backward. The gradient is that of the mean over the rows times `weight`; returns the mean."""
        with recipe.forward(task.device):
            loss = self.loss(task, data)
        doing("backward")
        (loss * weight).backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def loss(self, task: TrainingTask, data: Any) -> Tensor:
        """The mean over the rows."""
        return task.loss(self.module, data)

    def gradients(self) -> Values:
        """The gradients that the step uses. A parameter without a gradient is left out."""
        for name, parameter in self.named():
            if parameter.grad is not None:
                yield name, as_real(parameter.grad)

    def weights(self) -> Values:
        for name, parameter in self.named():
            yield name, as_real(parameter.detach())

    def states(self, optimizer: torch.optim.Optimizer) -> Values:
        """The optimizer's tensors of every parameter, as "name momentum_buffer"; single numbers left out."""
        for name, parameter in self.named():
            for kind, value in sorted(optimizer.state.get(parameter, {}).items()):
                if isinstance(value, Tensor) and value.dim() > 0:
                    yield f"{name} {kind}", as_real(value)

    def pieces(self) -> Values:
        """What this rank keeps of every parameter."""
        for name, parameter in self.named():
            yield name, as_real(parameter.detach())

    def places(self) -> Mapping[str, Piece]:
        """What this rank keeps, by the parameter's name; empty if each rank keeps all. Called on all ranks together."""
        return {}

    def kept(self) -> Mapping[str, tuple[int, int]]:
        """By the parameter's name: (elements that the ranks which share it keep together, elements that it has). Empty
        if each rank keeps all. Called on all ranks together."""
        return {}

    def held(self, optimizer: torch.optim.Optimizer) -> int:
        """Bytes of parameters, gradients and optimizer state that this rank keeps between steps."""
        kept: list[Any] = []
        for parameter in self.parameters():
            kept += [parameter, parameter.grad, *optimizer.state.get(parameter, {}).values()]
        own = (piece.to_local() if hasattr(piece, "to_local") else piece for piece in kept if isinstance(piece, Tensor))
        return sum(piece.numel() * piece.element_size() for piece in own)


@dataclass(frozen=True)
class StrategySetting:
    """The ranks that train together under a strategy, as one of them knows them."""

    group: torch.distributed.ProcessGroup
    device: torch.device
    ranks: int
    part: Callable[[tuple[int, ...]], torch.distributed.ProcessGroup] | None = None
    """Makes a process group of some of the group's ranks (`ctx.part_of_group`); all ranks call it together."""
    per_node: int = 1
    """How many neighbors in the group are on one node, if that number is the same on every node; else 1."""
    mark: Mark = unmarked
    doing: Doing = silent

    def under(self, name: str) -> "StrategySetting":
        """The same ranks, whose marks and doings bear the name of what they train."""

        def mark(operation: str, step: str) -> AbstractContextManager[None]:
            return self.mark(f"{name}: {operation}", step)

        return replace(self, mark=mark, doing=lambda what: self.doing(f"{name}, {what}"))


def all_rows(_setting: StrategySetting) -> tuple[int, int]:
    """The share of a rank that sees the whole batch, for `Variant.share`."""
    return 0, 1


@dataclass(frozen=True)
class Variant:
    wrap: Callable[[nn.Module, StrategySetting], Wrapped]
    recipe: Recipe = field(default_factory=Recipe)
    in_pieces: bool = False
    """Two micro-batches per step."""
    unfit: Callable[[StrategySetting], str] | None = None
    """Returns why it cannot run here ("" if it can), the same on all ranks."""
    share: Callable[[StrategySetting], tuple[int, int]] | None = None
    """(this rank's share of the batch, the number of shares); None if each rank has its own."""
    tied: bool = False
    """Whether the model's embedding and output layer are one parameter."""
    steps: int = STEPS
    """The most steps."""
    sparse: bool = False
    """Whether the model has experts."""
    cuts_layers: bool = False
    """Whether ranks have a part of each layer's product."""
    waits_within: bool = False
    """Whether ranks wait for each other throughout forward and backward; else only where `GradientWatch` knows."""
    compiled: Callable[[nn.Module], list[nn.Module]] | None = None
    """The modules at whose start `GradientWatch` may hook, outermost last: what is inside them is compiled, and a hook
    there would break the graph. None if nothing is compiled."""
