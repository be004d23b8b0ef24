"""The world of a training alone: a default process group of one member, whichever group the user's code names.

A loss that gathers rows, or adds up a count over ranks, then sees the whole batch once, as in a job of one process.
"""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ProcessGroup

ENVIRON = {"RANK": "0", "WORLD_SIZE": "1"}
"""What a launcher sets."""


@dataclass
class Solo:
    """One rank's own world."""

    group: ProcessGroup
    """Of this rank alone."""
    asked: bool = False
    """Whether code that ran in it asked for a rank, the number of ranks, or a collective."""

    @contextlib.contextmanager
    def world(self) -> Iterator[None]:
        """In this context the default group has one member, and every other group that is named is that one."""
        c10d: Any = torch.distributed.distributed_c10d
        with contextlib.ExitStack() as stack:
            for place, name, value in self._replacements(c10d):
                stack.enter_context(_replaced(place, name, value))
            stack.enter_context(_replaced(c10d.GroupMember, "WORLD", self.group))
            stack.enter_context(_environ(ENVIRON))
            yield

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """In this context of all ranks it is noted whether code asks for a rank, their number, or a collective."""
        c10d: Any = torch.distributed.distributed_c10d
        own = c10d._get_default_group

        def asked() -> Any:
            self.asked = True
            return own()

        self.asked = False
        with _replaced(c10d, "_get_default_group", asked):
            yield

    def _replacements(self, c10d: Any) -> Iterator[tuple[Any, str, Any]]:
        """(a module, a name, its value in this world)."""
        functional: Any = torch.distributed._functional_collectives
        yield c10d, "_get_default_group", self._default
        yield c10d, "get_group_rank", lambda *_, **__: 0
        yield functional, "_resolve_group_name", lambda *_, **__: self._default().group_name
        for name in c10d.__all__:
            function = getattr(torch.distributed, name, None)
            if inspect.isfunction(function) and _takes_a_group(function):
                yield torch.distributed, name, self._of_default_group(function)

    def _default(self) -> Any:
        self.asked = True
        return self.group

    def _of_default_group(self, function: Callable[..., Any]) -> Callable[..., Any]:
        place = [*inspect.signature(function).parameters].index("group")

        @functools.wraps(function)
        def of_default(*given: Any, **named: Any) -> Any:
            self.asked = True
            if "group" in named:
                named["group"] = None
            return function(*(None if at == place else value for at, value in enumerate(given)), **named)

        return of_default


def _takes_a_group(function: Callable[..., Any]) -> bool:
    group = inspect.signature(function).parameters.get("group")
    return group is not None and group.default is None


@contextlib.contextmanager
def _replaced(place: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


@contextlib.contextmanager
def _environ(values: dict[str, str]) -> Iterator[None]:
    """Only what a launcher has set is replaced."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update({name: values[name] for name in before})
    try:
        yield
    finally:
        os.environ.update(before)


def calls() -> int:
    """How many collectives this rank has begun, in any of its groups."""
    known: Any = torch.distributed.distributed_c10d._world.pg_map
    return sum(group._get_sequence_number_for_group() for group in known)
