"""What a strategy must not change in a model: which names are one parameter, how many elements there are, their kind.

Exact, and checked before any number: a loss hides an embedding that is no longer tied to the output layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from torch import Tensor, nn

from preflight.train_smoke.trainer.wrapped import plain_name


class Changed(TypedDict):
    """What differs once a strategy has wrapped a model. Empty if all is well."""

    untied: list[list[str]]
    """Names that were one parameter and are now several."""
    lost: list[str]
    """Names that are no longer parameters."""
    added: list[str]
    """Names that were not parameters before."""
    other: list[tuple[str, str, str]]
    """(name, what it was, what it is): its type, and whether it is trained; a buffer's type, or that it is gone."""
    kept: list[tuple[str, int, int]]
    """(name, elements that the ranks which share it keep together, elements that it has)."""


@dataclass(frozen=True)
class Structure:
    ties: tuple[tuple[str, ...], ...]
    kinds: dict[str, str]
    """The kind of each parameter in words, by name; and of each buffer."""
    buffers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plain: nn.Module) -> "Structure":
        named = _named(plain)
        return cls(tuple(tied(plain)), {name: _kind(parameter) for name, parameter in named.items()}, _buffers(plain))

    def changed_in(self, module: nn.Module) -> Changed:
        now = _named(module)
        kinds = {name: _kind(parameter) for name, parameter in now.items()}
        buffers = _buffers(module)
        return Changed(
            untied=[[*names] for names in self.ties if len({id(now[name]) for name in names if name in now}) > 1],
            lost=[name for name in self.kinds if name not in now],
            added=[name for name in now if name not in self.kinds],
            kept=[],
            other=[
                *((name, was, kinds[name]) for name, was in self.kinds.items() if kinds.get(name, was) != was),
                *(
                    (name, was, kind)
                    for name, was in self.buffers.items()
                    if (kind := buffers.get(name, "gone")) != was
                ),
            ],
        )


def tied(module: nn.Module) -> list[tuple[str, ...]]:
    """The names of each parameter that has several names."""
    names: dict[int, list[str]] = {}
    for name, parameter in _named(module).items():
        names.setdefault(id(parameter), []).append(name)
    return [tuple(its) for its in names.values() if len(its) > 1]


def tie(module: nn.Module, names: Sequence[str]) -> None:
    """Makes all names refer to the first one's parameter."""
    first, *others = names
    parameter = module.get_parameter(first)
    for path, _, name in (other.rpartition(".") for other in others):
        setattr(module.get_submodule(path), name, parameter)


def _named(module: nn.Module) -> dict[str, nn.Parameter]:
    return {plain_name(name): parameter for name, parameter in module.named_parameters(remove_duplicate=False)}


def _buffers(module: nn.Module) -> dict[str, str]:
    named = module.named_buffers(remove_duplicate=False)
    return {plain_name(name): f"a buffer of {str(buffer.dtype).removeprefix('torch.')}" for name, buffer in named}


def _kind(parameter: Tensor) -> str:
    return f"{str(parameter.dtype).removeprefix('torch.')}, {'trained' if parameter.requires_grad else 'frozen'}"
