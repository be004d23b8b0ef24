"""Watches gradients as backward makes them, before ranks exchange them, and where a rank waits for others."""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from preflight.train_smoke.trainer import model
from preflight.train_smoke.trainer.wrapped import Mark, as_real, named, plain_name


class Signs:
    """A fixed 1 or -1 for each element of each parameter. The sum of a gradient's elements with these signs is its
    print: for two gradients with equal norms it shows that a few elements differ, and prints of parts add up."""

    def __init__(self, plain: nn.Module) -> None:
        random = torch.Generator().manual_seed(model.SEED)
        self._signs = {
            name: torch.randint(0, 2, as_real(parameter).shape, generator=random, dtype=torch.int8)
            .mul_(2)
            .sub_(1)
            .to(parameter.device)
            for name, parameter in named(plain)
        }

    def norm_and_print(self, name: str, gradient: Tensor) -> Tensor:
        """Norm and print as a tensor (2,), at least float32."""
        gradient = as_real(gradient)
        exact = gradient if gradient.dtype == torch.float64 else gradient.float()
        return torch.stack([exact.norm(), (exact * self._signs[name].to(exact.device)).sum()])


def together(each: Iterable[Tensor]) -> tuple[float, float]:
    """Norm and print of all tensors, from those of each."""
    made = [tensor.cpu() for tensor in each]
    if not made:
        return 0.0, 0.0
    norms, prints = torch.stack(made).unbind(dim=1)
    return float(norms.norm()), float(prints.sum())


NamedModule = tuple[str, nn.Module]


def _inside(plain: nn.Module, at: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, list[NamedModule]]]:
    """Yields each of these modules with all modules inside it that are in no earlier one."""
    left = dict(plain.named_modules())
    for module in at:
        ids = {id(inner) for inner in module.modules()}
        inside = [(name, inner) for name, inner in left.items() if id(inner) in ids]
        left = {name: inner for name, inner in left.items() if id(inner) not in ids}
        yield module, inside


class Unwatched:
    """For strategies whose ranks wait for each other throughout forward and backward and have no own gradient."""

    def __init__(self, signs: Signs, mark: Mark) -> None:
        self.waiting = contextlib.ExitStack()
        self.signs, self._mark, self._step = signs, mark, ""

    def begin(self, step: int) -> None:
        self._step = f"step {step}"

    def forward(self) -> None:
        """Called before a part of the batch."""
        self.waiting.enter_context(self._mark("forward and backward", self._step))

    def own(self) -> tuple[float, float] | None:
        return None


class GradientWatch:
    """Watches one model. It must see the model before a strategy wraps it, so that it knows the parameters' names.

    The tensors of a forward pass are looked up as each module begins: FSDP uses tensors there that differ from those
    that the optimizer steps.
    """

    def __init__(self, plain: nn.Module, signs: Signs, mark: Mark, at: Sequence[nn.Module] | None = None) -> None:
        """`at`: the modules whose start is watched, outermost last, if what is inside them is compiled; by default each
        module."""
        self.waiting = contextlib.ExitStack()
        self.signs, self._mark, self._step = signs, mark, ""
        self._hooks: dict[str, list[tuple[Tensor, Any]]] = {}
        """Holds the tensors, too: if one were freed, the next could have the same id."""
        self._own: dict[str, Tensor] = {}
        self._torn = False
        self.names = [name for name, parameter in named(plain) if parameter.requires_grad]
        if at is None:
            for prefix, module in plain.named_modules(remove_duplicate=False):
                module.register_forward_pre_hook(functools.partial(self._begins, [(prefix, module)]))
            return
        for module, inside in _inside(plain, at):
            begins: Any = torch.compiler.disable(functools.partial(self._begins, inside))  # type: ignore[no-untyped-call]
            module.register_forward_pre_hook(begins)

    def begin(self, step: int) -> None:
        self._own.clear()
        self._torn = False
        self._step = f"step {step}"

    def forward(self) -> None:
        """Called before a part of the batch: until the model's own forward begins, ranks may wait for each other."""
        for hooked in self._hooks.values():
            for _, hook in hooked:
                hook.remove()
        self._hooks.clear()
        self._missing = set(self.names)
        self._from: dict[str, int] = {}
        self.waiting.enter_context(self._mark("forward", self._step))

    def waits_at(self, unit: nn.Module) -> None:
        """Marks that the strategy waits for other ranks when this module's forward begins. Call it after wrapping."""
        fetches: Any = torch.compiler.disable(self._fetches)  # type: ignore[no-untyped-call]
        unit.register_forward_pre_hook(fetches, prepend=True)  # torch 2.9 cannot trace it where the unit is compiled

    def _fetches(self, _unit: nn.Module, _inputs: Any) -> None:
        self.waiting.close()
        self.waiting.enter_context(self._mark("forward", self._step))

    def _begins(self, inside: Iterable[NamedModule], _module: nn.Module, _inputs: Any) -> None:
        self.waiting.close()
        for prefix, module in inside:
            for own, parameter in module._parameters.items():
                if parameter is not None and parameter.requires_grad and not hasattr(parameter, "to_local"):
                    self._watch(plain_name(f"{prefix}.{own}" if prefix else own), parameter)

    def _watch(self, name: str, parameter: Tensor) -> None:
        hooked = self._hooks.setdefault(name, [])
        if not any(known is parameter for known, _ in hooked):
            made = functools.partial(self._made, name, len(hooked))
            hooked.append((parameter, parameter.register_hook(made)))  # type: ignore[no-untyped-call]

    def _made(self, name: str, number: int, gradient: Tensor) -> None:
        if name not in self._missing:
            self._torn |= self._from.get(name, number) != number  # a second name of a tied one is never missing
            return
        self._from[name] = number
        made = self.signs.norm_and_print(name, gradient.detach())
        self._own[name] = self._own[name] + made if name in self._own else made
        self._missing.discard(name)
        if not self._missing:
            self.waiting.enter_context(self._mark("gradients", self._step))

    def own(self) -> tuple[float, float] | None:
        """Norm (of a single part) and print of this rank's gradient over the step's parts; None if a parameter's was
        not seen, or came in several pieces: FSDP1 has a new tensor for each use of a module."""
        return together(self._own.values()) if len(self._own) == len(self.names) and not self._torn else None
