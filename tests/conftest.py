"""Clusters of hosts and cgroups, for every test that names them; the marker `fast`; and the order of the tests."""

import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """A timer that a test has left ends this process in a later one, without a word."""
    yield
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    assert not left_s, f"{item.name} leaves a timer, which would end this process in {left_s:.0f} s"


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


@pytest.fixture
def cgroups() -> Iterator[Callable[..., str]]:
    """Makes cgroups with one limit, of version 1 or 2, and with `more` values of the files that are there: what a rank
    begins with to run in it."""
    made: list[Path] = []

    def make(controller: str, first: tuple[str, str], two: tuple[str, str], *more: tuple[str, str]) -> str:
        top = Path("/sys/fs/cgroup")
        name, value = first if (top / controller).is_dir() else two
        group = (top / controller if (top / controller).is_dir() else top) / f"preflight-test-{os.getpid()}-{len(made)}"
        try:
            group.mkdir()
            made.append(group)
            (group / name).write_text(value)
            for name, value in more:
                if (group / name).exists():
                    (group / name).write_text(value)
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error}")
        return f"echo $PPID >{group}/cgroup.procs"

    yield make
    for group in made:
        group.rmdir()
