"""Clusters of hosts, for every test that names one."""

from collections.abc import Iterator

import pytest

from tests.hosts import Host, cluster


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
