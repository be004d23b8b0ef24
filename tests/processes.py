"""Which tests start no process: `make fast` runs those. What a test reaches is read from its code before it runs; one
that starts a process all the same fails, and says so.
"""

import functools
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

STARTERS = {"subprocess", "multiprocessing", "tests.forked", "tests.fuse", "tests.hosts"}
"""Modules: who calls anything of theirs starts a process, or may."""
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""Python's audit events."""
_watched: list[str] = []
_reaches_none: set[object] = set()
"""Functions and classes whose code has been read to the end: thousands of cases share few of them."""


def starts_none(item: pytest.Item) -> bool:
    """As far as its code tells, and that of its fixtures."""
    if not isinstance(item, pytest.Function) or item.get_closest_marker("process"):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return not any(map(_may_start, (item.function, *(each.func for own in fixtures for each in own))))


@functools.cache
def _may_start(root: object) -> bool:
    seen: set[object] = set()
    starts = _reaches(root, seen)
    if not starts:
        _reaches_none.update(seen)
    return starts


def _reaches(what: object, seen: set[object]) -> bool:
    if isinstance(what, ModuleType):
        return what.__name__ in STARTERS
    what = inspect.unwrap(what) if callable(what) else what
    if not isinstance(what, FunctionType | type) or what in seen or what in _reaches_none:
        return False
    seen.add(what)
    if what.__module__ in STARTERS:
        return True
    if not what.__module__.startswith("tests."):
        return False
    if isinstance(what, type):
        return any(_reaches(own, seen) for own in vars(what).values())
    names = set(_names(what.__code__))
    found = [what.__globals__.get(name) for name in names]
    ours = [value for value in found if isinstance(value, ModuleType) and value.__name__.startswith("tests.")]
    found += [getattr(module, name, None) for module in ours for name in names]
    return "fork" in names or any(_reaches(each, seen) for each in found)


def _names(code: CodeType) -> Iterator[str]:
    """That it looks up, also in the functions within."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@contextmanager
def forbidden(test: str) -> Iterator[None]:
    """What is done within starts no process: it raises RuntimeError there."""
    if not _watched:
        sys.addaudithook(_refuse)  # it stays as long as the interpreter
    _watched[:] = [test]
    try:
        yield
    finally:
        _watched[:] = [""]


def _refuse(event: str, _: tuple[Any, ...]) -> None:
    if event in STARTS and _watched[0]:
        raise RuntimeError(f"{_watched[0]} starts a process: mark it with `pytest.mark.process`")
