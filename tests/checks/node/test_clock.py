import time
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.checks.node import clock
from preflight.checks.node.clock import Facts
from preflight.core.job import Job, Node
from tests import running
from tests.test_sound import is_silent


def at(*ahead_s: float, error_s: float = 0.0001) -> dict[int, Facts]:
    """Two ranks a node, of which the first asks; the first of all answers."""
    facts: dict[int, Facts] = {}
    for node, ahead in enumerate(ahead_s):
        facts[2 * node] = {"ahead_s": ahead, "error_s": error_s if node else 0.0}
        facts[2 * node + 1] = {"ahead_s": None, "error_s": None}
    return facts


def judged(facts: dict[int, Facts], **settings: Any) -> list[dict[str, Any]]:
    nodes = {f"node-{rank // 2}": (rank, rank + 1) for rank in facts if rank % 2 == 0}
    return testing.judge(clock, facts, nodes=nodes, settings=settings)


@pytest.mark.parametrize(
    "ahead_s", [(0.0,), (0.0, 0.9), (0.0, -0.9, 0.9), (0.0, *[0.01] * 1023), (0.0, -0.5, 0.5)], ids=len
)
def test_clocks_that_agree_give_no_finding(ahead_s: tuple[float, ...]) -> None:
    assert judged(at(*ahead_s)) == []


@pytest.mark.parametrize(
    ("ahead_s", "odd", "told"),
    [
        ((0.0, 0.001, 5.0), "node-2", "5 s ahead of"),
        ((0.0, -3600.0, 0.0), "node-1", "60 min behind"),
        ((0.0, 30.0, 30.0), "node-0", "30 s behind"),
        ((0.0, *[-2.0] * 1023), "node-0", "2 s ahead of"),
    ],
)  # fmt: skip
def test_who_is_away_from_most_is_named(ahead_s: tuple[float, ...], odd: str, told: str) -> None:
    """Also the one whose clock all were compared with."""
    (found,) = judged(at(*ahead_s))
    assert (found["severity"], found["code"], found["where"]) == ("warn", "node.clock.skewed", {"node": odd})
    assert found["message"].startswith(f"the clock is {told} most nodes', expected at most 1 s"), found


@pytest.mark.parametrize("ahead_s", [(0.0, 60.0), (0.0, 0.0, 60.0, 60.0), (0.0, 30.0, 60.0)], ids=len)
def test_without_a_majority_nobody_is_named(ahead_s: tuple[float, ...]) -> None:
    (found,) = judged(at(*ahead_s))
    assert found["where"] == {}
    assert f"the clock of node-{ahead_s.index(60.0)} is 60 s ahead of that of node-0" in found["message"]


def test_what_the_error_explains_is_no_skew() -> None:
    facts = at(0.0, 1.5, 0.0)
    assert len(judged(facts)) == 1
    facts[2]["error_s"] = 0.6
    assert judged(facts) == []


def test_the_threshold_is_an_option() -> None:
    assert judged(at(0.0, 5.0, 0.0), max_skew_s=10) == []
    assert len(judged(at(0.0, 0.2, 0.0), max_skew_s=0.1)) == 1


class SlowOnTheWayBack:
    """A store by which the same clock answers at once, and is heard late."""

    answer = 0.0

    def set(self, *_: str) -> None:
        self.answer = time.time()

    def wait(self, keys: list[str]) -> None:
        if keys[0].startswith("answer/"):
            time.sleep(0.02)  # the way back

    def get(self, _: str) -> bytes:
        return repr(self.answer).encode()


def test_the_error_covers_a_way_that_is_longer_than_the_other() -> None:
    store: Any = SlowOnTheWayBack()
    ahead_s, error_s = clock._ask(store, 1)
    assert 0 < ahead_s <= error_s


def test_the_deadline_grows_with_the_nodes() -> None:
    assert callable(clock.PLAN.deadline_s)
    small, large = (
        Job("env", nodes, "gloo", tuple(Node(f"node-{rank}", rank, (rank,)) for rank in range(nodes)))
        for nodes in (2, 1024)
    )
    assert clock.PLAN.deadline_s(small) < 21 < 70 < clock.PLAN.deadline_s(large)


def test_nodes_with_one_clock_are_sound(tmp_path: Path) -> None:
    """Six ranks on three nodes of this machine: three of them ask."""
    ranks = [{**env, "NODE_RANK": str(rank // 2)} for rank, env in enumerate(running.plain_ranks(6))]
    finished = running.run_ranks(tmp_path, ranks, "--only", "node.clock")
    is_silent(finished, 6, ["node.clock"])
    summary = finished.check("node.clock")["summary"]
    assert summary.startswith("the clocks of 3 nodes are within ") and " ms (error " in summary, finished.told()


def test_one_node_has_nothing_to_compare(tmp_path: Path) -> None:
    finished = running.run_ranks(tmp_path, running.plain_ranks(2), "--only", "node.clock")
    is_silent(finished, 2, ["node.clock"])
    assert finished.check("node.clock")["summary"] == "one node: nothing to compare"
