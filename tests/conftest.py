"""Clusters of hosts, for every test that names one; the marker `fast`; and the order of the tests."""

import signal
from collections.abc import Generator, Iterator

import pytest

from tests import dealing, processes
from tests.hosts import Host, cluster

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background: what the tests start would ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Marks first what `-m` may choose by, and deals out what is left."""
    for item in items:
        if processes.starts_none(item):
            item.add_marker(pytest.mark.fast)
    yield
    if workers := getattr(config, "workerinput", {}).get("workercount"):
        fast = [item for item in items if item.get_closest_marker("fast")]
        slow = [item for item in items if not item.get_closest_marker("fast")]
        items[:] = dealing.dealt(slow, fast, workers)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    if not item.get_closest_marker("fast"):
        return (yield)
    with processes.forbidden(item.name):
        return (yield)


@pytest.fixture
def two() -> Iterator[list[Host]]:
    with cluster(2) as hosts:
        yield hosts


@pytest.fixture
def three() -> Iterator[list[Host]]:
    with cluster(3) as hosts:
        yield hosts


@pytest.fixture
def four() -> Iterator[list[Host]]:
    with cluster(4) as hosts:
        yield hosts
