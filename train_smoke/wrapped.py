"""A model under a strategy, and how a training reads it: the whole values of what may be cut among the ranks."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from preflight.train_smoke.task import Recipe

Mark = Callable[[str, str], AbstractContextManager[None]]
"""Marks the time in which a rank may wait for others: (operation, step)."""
Doing = Callable[[str], None]
"""Says what a rank does now, so that a hang or a death shows where it was."""
Values = Iterator[tuple[str, Tensor]]
"""Whole tensors by the parameters' names in the plain model, in its order, one at a time: a large model's do not fit
together. All ranks ask for them together."""


def silent(_what: str) -> None:
    """Where nobody asks."""


def unmarked(_operation: str, _step: str) -> AbstractContextManager[None]:
    """Where nobody waits for anybody."""
    return contextlib.nullcontext()


class Place(NamedTuple):
    """Which elements of a parameter, laid out flat, this rank keeps."""

    start: int
    length: int


PUT_BETWEEN = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What torch's wrappers put into a parameter's name."""


def plain_name(name: str) -> str:
    """A parameter's name in the plain model."""
    for word in PUT_BETWEEN:
        name = name.replace(word, "")
    return name


def shapes_of(plain: nn.Module) -> dict[str, torch.Size]:
    """Of the parameters, by name; before a strategy cuts them."""
    return {name: parameter.shape for name, parameter in plain.named_parameters()}


def blocks(plain: nn.Module) -> list[nn.Module]:
    """What is wrapped beside the whole model, as one would: the items of every list of modules, and of every sequence
    of at least two of one class. Outermost only; no container, which has no forward of its own; and none that shares
    a parameter with the rest of the model, which then could not be cut twice."""
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
    """Into how many a parameter is cut where it need not be cut among all: the largest divisor up to the root, such as
    4 of 16; all, where there is none."""
    divisors = [divisor for divisor in range(2, ranks) if divisor * divisor <= ranks and ranks % divisor == 0]
    return max(divisors, default=ranks)


class Wrapped:
    """A model that is whole on its rank: alone, or under DDP. What a strategy has otherwise it overrides."""

    def __init__(self, module: nn.Module, plain: nn.Module) -> None:
        self.module, self.plain = module, plain
        self.units: list[nn.Module] = []
        """Inside the module: those that wait for other ranks as their forward begins."""

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer steps."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def piece(self, *, last: bool) -> AbstractContextManager[object]:  # noqa: ARG002 -- for strategies that need it
        """In which a micro-batch is trained on; the last one of a step exchanges gradients."""
        return contextlib.nullcontext()

    def joining(self) -> AbstractContextManager[object]:
        """In which all steps are taken."""
        return contextlib.nullcontext()

    def finish(self) -> None:
        """After the last part of a step, before anybody reads its gradient."""

    def clip(self, norm: float) -> None:
        """The gradient of all parameters, to this norm."""
        torch.nn.utils.clip_grad_norm_(self.parameters(), norm)

    def gradients(self) -> Values:
        """Those that the step takes. A parameter without a gradient is left out."""
        for name, parameter in self.plain.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad

    def weights(self) -> Values:
        for name, parameter in self.plain.named_parameters():
            yield name, parameter.detach()

    def states(self, optimizer: torch.optim.Optimizer) -> Values:
        """The optimizer's tensors of every parameter, as "name momentum_buffer"; single numbers left out."""
        for name, parameter in self.plain.named_parameters():
            for kind, value in sorted(optimizer.state.get(parameter, {}).items()):
                if isinstance(value, Tensor) and value.dim() > 0:
                    yield f"{name} {kind}", value

    def places(self) -> dict[str, Place]:
        """By the parameter's name; empty where each rank keeps all. Ranks together."""
        return {}

    def held(self, optimizer: torch.optim.Optimizer) -> int:
        """Bytes of parameters, gradients and optimizer state that this rank keeps between steps."""
        kept: list[Any] = []
        for parameter in self.parameters():
            kept += [parameter, parameter.grad, *optimizer.state.get(parameter, {}).values()]
        own = (piece.to_local() if hasattr(piece, "to_local") else piece for piece in kept if isinstance(piece, Tensor))
        return sum(piece.numel() * piece.element_size() for piece in own)


@dataclass(frozen=True)
class Setting:
    """What a strategy is put up in."""

    group: torch.distributed.ProcessGroup
    device: torch.device
    ranks: int
    part: Callable[[tuple[int, ...]], torch.distributed.ProcessGroup] | None = None
    """A process group of some of the group's ranks (`ctx.part`), all ranks calling it together."""


@dataclass(frozen=True)
class Variant:
    """One way to train."""

    wrap: Callable[[nn.Module, Setting], Wrapped]
    recipe: Recipe = field(default_factory=Recipe)
    in_pieces: bool = False
    """Two micro-batches a step."""
    unfit: Callable[[Setting], str] | None = None
    """Why it cannot run here ("" where it can): the same on all ranks."""
