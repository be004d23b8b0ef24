"""Cases that mostly wait, run beside each other: what one is asked for also starts those that come next."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")
Outcome = TypeVar("Outcome")
AT_ONCE = 6
"""Few enough for two cores: each case computes for half a second, and waits for several."""


@contextmanager
def outcomes(cases: Sequence[Case], run: Callable[[Case], Outcome]) -> Iterator[Callable[[Case], Outcome]]:
    """Gives the outcome of a case. `cases`: in the order in which they are asked for. What `run` raises is raised where
    its case is asked for. A case that nobody asks for any more is waited for at the end."""
    begun: dict[Case, Future[Outcome]] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:

        def outcome(case: Case) -> Outcome:
            place = cases.index(case)
            for each in cases[place : place + AT_ONCE]:
                if each not in begun:
                    begun[each] = pool.submit(run, each)
            return begun[case].result()

        yield outcome


def chosen(request: pytest.FixtureRequest, test: str, *names: str) -> list[tuple[Any, ...]]:
    """The cases of a parametrized test that this session runs: the values of its arguments of these names."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    mine = [item for item in items if item.originalname == test and item.path == request.path]
    return [tuple(item.callspec.params[name] for name in names) for item in mine]
