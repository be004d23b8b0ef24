"""Who waits for whom at the end of a run."""

from typing import Any, cast

import pytest

from preflight.core.job import Job, Node
from preflight.engine import shutdown
from preflight.engine.event_loop import EventLoop


class Store:
    """An event loop whose store hears of another farewell at each look."""

    def __init__(self) -> None:
        self.logs: dict[str, int] = {}
        self.awaited: list[str] = []

    def request(self, operation: str, *, key: str, **_entry: str) -> None:
        assert operation == "append"
        self.logs[key] = self.logs.get(key, 0) + 1

    def has_come(self, key: str, within_s: float) -> bool:
        assert 0.0 < within_s <= shutdown.ALL_S
        self.awaited.append(key)
        log, _, number = key.rpartition("/")
        self.logs[log] += 1
        return self.logs[log] > int(number)


def verdict(strangers: int) -> dict[str, Any]:
    job = Job("env", 3, "gloo", (Node("a", 0, (0,)), Node("b", 1, (1, 2))))
    return {"run": "r", "attempt": "n", "job": job.to_json(), "living": [0, 1, 2], "strangers": strangers}


@pytest.mark.parametrize(
    ("rank", "strangers", "waited_for"),
    [(0, 0, ["r/bye/n/3"] * 3), (0, 2, ["r/bye/n/5"] * 5), (1, 2, ["r/bye-of-node/1/n/2"] * 2), (None, 2, [])],
    ids=["rank 0", "rank 0 and strangers", "rank 1", "a stranger"],
)
def test_the_node_that_serves_the_store_waits_for_all_and_others_for_their_own(
    rank: int | None, strangers: int, waited_for: list[str]
) -> None:
    """A process without a place waits for nobody: it only says that it has the verdict."""
    store = Store()
    shutdown.farewell(cast(EventLoop, store), verdict(strangers), rank)
    assert store.awaited == waited_for
