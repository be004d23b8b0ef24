"""Clusters of hosts, for every test that names one; and the marker `fast`."""

import signal
from collections.abc import Generator, Iterator

import pytest

from tests import processes
from tests.hosts import Host, cluster

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background: what the tests start would ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if processes.starts_none(item):
            item.add_marker(pytest.mark.fast)


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
