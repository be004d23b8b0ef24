"""Who waits for whom at the end of a run."""

import time
from typing import cast

import pytest

from preflight.core.job import Job, Node
from preflight.engine import shutdown
from preflight.engine.event_loop import EventLoop
from preflight.engine.verdict import RunVerdict


class Store:
    """An event loop whose store hears of another farewell at each look, of which each takes `seconds` of a clock."""

    left = 900.0

    def __init__(self, seconds: float = 0.0) -> None:
        self.logs: dict[str, int] = {}
        self.awaited: list[str] = []
        self.now, self._seconds = 0.0, seconds

    def request(self, operation: str, *, key: str, **_entry: str) -> int:
        assert operation in ("append", "count")
        self.logs[key] = self.logs.get(key, 0) + (operation == "append")
        return self.logs[key]

    def monotonic(self) -> float:
        return self.now

    def has_come(self, key: str, within_s: float) -> bool:
        assert 0.0 < within_s <= shutdown.NEXT_S
        self.now += self._seconds
        self.awaited.append(key)
        log, _, number = key.rpartition("/")
        self.logs[log] += 1
        return self.logs[log] > int(number)


def verdict(strangers: int) -> RunVerdict:
    job = Job("env", 3, "gloo", (Node("a", 0, (0,)), Node("b", 1, (1, 2))))
    return RunVerdict("r", "n", job, [0, 1, 2], strangers, 0, "preflight: PASS", ["preflight"], "")


@pytest.mark.parametrize(
    ("rank", "strangers", "waited_for"),
    [(0, 0, ["r/bye/n/3"] * 2), (0, 2, ["r/bye/n/5"] * 4), (1, 2, ["r/bye-of-node/1/n/2"]), (None, 2, [])],
    ids=["rank 0", "rank 0 and strangers", "rank 1", "a stranger"],
)
def test_the_node_that_serves_the_store_waits_for_all_and_others_for_their_own(
    rank: int | None, strangers: int, waited_for: list[str]
) -> None:
    """A process without a place waits for nobody: it only says that it has the verdict."""
    store = Store()
    shutdown.farewell(cast(EventLoop, store), verdict(strangers), rank)
    assert store.awaited == waited_for


def test_ranks_of_a_starved_machine_are_awaited_as_long_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each after 4 s; where none comes any more, and where they are too many for the time, rank 0 leaves."""
    store = Store(4.0)
    monkeypatch.setattr(time, "monotonic", store.monotonic)
    shutdown.farewell(cast(EventLoop, store), verdict(3), 0)
    assert store.now == 20.0 and store.logs["r/bye/n"] == 6
    alone = Store(4.0)
    monkeypatch.setattr(time, "monotonic", alone.monotonic)
    monkeypatch.setattr(alone, "has_come", lambda *_: setattr(alone, "now", alone.now + 1.0))
    shutdown.farewell(cast(EventLoop, alone), verdict(3), 0)
    assert alone.now == pytest.approx(shutdown.NEXT_S, abs=1.0)
    many = Store(4.0)
    monkeypatch.setattr(time, "monotonic", many.monotonic)
    shutdown.farewell(cast(EventLoop, many), verdict(100), 0)
    assert shutdown.ALL_S <= many.now <= shutdown.ALL_S + 4.0
