"""Counts the collectives of a step by kind and process group, to compare them with what the strategy needs.

torch's CommDebugMode counts them, too, but its package imports NumPy (torch 2.13), which this does without.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
KINDS = {
    "all-reduce": ("allreduce", "all_reduce"),
    "reduce-scatter": ("reduce_scatter",),
    "all-gather": ("allgather", "all_gather"),
    "send": ("send",),
    "receive": ("recv",),
}
"""Kinds, with the prefixes of torch's operators (without a leading underscore)."""
REDUCTION = ("all-reduce", "reduce-scatter")


class Need(NamedTuple):
    """Collectives that a strategy makes at least in each step."""

    kinds: Sequence[str]
    """Any of these kinds counts."""
    group: dist.ProcessGroup
    over: str
    """The ranks of the group, in words."""
    least: int
    why: str
    """Where each of them comes from, in words."""


class Made(TypedDict):
    """A need, and how many of its collectives this rank made in one step."""

    kind: str
    over: str
    ranks: list[int]
    made: int
    least: int
    why: str


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """Counts collectives while it is on, including those of backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts = Counter[tuple[str, tuple[int, ...]]]()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the operators that it consists of are dispatched here themselves
        if func.namespace in NAMESPACES and (kind := _kind(func.overloadpacket.__name__)):
            self._counts[kind, _ranks(args)] += 1
        return func(*args, **(kwargs or {}))

    def made(self, needs: Sequence[Need]) -> list[Made]:
        return [
            Made(
                kind=" or ".join(need.kinds),
                over=need.over,
                ranks=list(ranks),
                made=sum(self._counts[kind, ranks] for kind in need.kinds),
                least=need.least,
                why=need.why,
            )
            for need in needs
            for ranks in [tuple(dist.get_process_group_ranks(need.group))]
        ]


def _kind(name: str) -> str:
    name = name.lstrip("_")
    return next((kind for kind, beginnings in KINDS.items() if name.startswith(beginnings)), "")


def _ranks(args: Sequence[Any]) -> tuple[int, ...]:
    """The ranks of the group of a collective; empty if not known. torch passes the group's name or an object, among
    other arguments (such as the reduce operation)."""
    resolve: Any = dist.distributed_c10d._resolve_process_group  # type: ignore[attr-defined]  # not in __all__
    for argument in args:
        if isinstance(argument, torch.ScriptObject | str):
            with contextlib.suppress(RuntimeError, LookupError, ValueError, AttributeError):
                group = resolve(argument) if isinstance(argument, str) else dist.ProcessGroup.unbox(argument)
                return tuple(dist.get_process_group_ranks(group))
    return ()
