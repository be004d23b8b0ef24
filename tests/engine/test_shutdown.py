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
        self.asked: list[int] = []

    def request(self, operation: str, *, key: str, **_entry: str) -> int:
        if operation == "append":
            self.logs[key] = self.logs.get(key, 0) + 1
            return self.logs[key]
        self.asked.append(self.logs[key])
        self.logs[key] += 1
        return self.asked[-1]

    def pump(self, _seconds: float) -> None:
        pass


def verdict(strangers: int) -> dict[str, Any]:
    job = Job("env", 3, "gloo", (Node("a", 0, (0,)), Node("b", 1, (1, 2))))
    return {"run": "r", "attempt": "n", "job": job.to_json(), "living": [0, 1, 2], "strangers": strangers}


@pytest.mark.parametrize(("rank", "strangers", "waited_for"), [(0, 0, 3), (0, 2, 5), (1, 2, 2), (None, 2, 0)], ids=str)
def test_the_node_that_serves_the_store_waits_for_all_and_others_for_their_own(
    rank: int | None, strangers: int, waited_for: int
) -> None:
    """A process without a place waits for nobody: it only says that it has the verdict."""
    store = Store()
    shutdown.farewell(cast(EventLoop, store), verdict(strangers), rank)
    assert store.asked[-1] == max(1, waited_for)
