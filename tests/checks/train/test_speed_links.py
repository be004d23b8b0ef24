"""train.speed: which node's link is slow, by what two nodes exchange in each round."""

from typing import Any

import pytest

from preflight.checks.train import speed as check
from preflight.checks.train.speed import node_links
from preflight.testing import judge
from tests.checks.train.test_speed import facts, series

SLOW, USUAL = 7e6, 480e6
PARTED = {(a, b): SLOW for a in range(4) for b in range(4) if (a < 2) != (b < 2)}


def said(
    nodes: int, slow: dict[tuple[int, int], float], share: float = 0.9, usual: float = USUAL, kernels: str = "aaaaa"
) -> Any:
    """Of nodes of one rank. `slow`: bytes a second from one to another. `share`: of a step, exposed."""
    made = facts(*[series()] * nodes)
    for rank, own in made.items():
        own["kernel"] = kernels[rank]
        own["links"] = [(peer, slow.get((peer, rank), usual)) for peer in range(nodes) if peer != rank]
        own["strategies"]["ddp/plain"]["exposed"] = {
            "step": 0.2,
            "collectives": 0.2,
            "exposed": 0.2 * share,
            "count": 3,
        }
    return judge(check, made, nodes={f"node-{number}": (number,) for number in range(nodes)})


def test_a_node_that_sends_slowly_to_all_others_is_named() -> None:
    (found,) = said(3, {(2, 0): SLOW, (2, 1): 7.2e6})
    assert (found["code"], found["severity"]) == ("train.speed.slow_link", "warn")
    assert found["where"] == {"node": "node-2"} and found["noticed_by"] == "0-1"
    assert found["message"] == (
        "it sends 7 MB/s to 7.2 MB/s to 2 of 2 other nodes, expected about 480 MB/s as between the others; 90% of each "
        "step under ddp/plain is exposed communication (180 ms); ranks 0-1 wait for it"
    )
    assert found["fix"].startswith("On node-2: ethtool ")


@pytest.mark.parametrize(
    ("way", "says"), [((0, 1), "it exchanges 7 MB/s with 4 of 4"), ((1,), "it receives 7 MB/s from 4 of 4")]
)
def test_of_five_nodes_the_one_and_its_way(way: tuple[int, ...], says: str) -> None:
    slow = {((3, other), (other, 3))[role]: SLOW for other in (0, 1, 2, 4) for role in way}
    (found,) = said(5, slow)
    assert found["where"] == {"node": "node-3"} and found["message"].startswith(says), found["message"]


@pytest.mark.parametrize("slow", [{}, {(2, 0): USUAL / 7, (2, 1): USUAL / 7}])
def test_links_of_one_kind_are_sound(slow: Any) -> None:
    assert said(3, slow) == []


def test_what_two_containers_of_one_machine_reach_is_not_expected_of_a_network() -> None:
    slow = dict.fromkeys(((0, 2), (1, 2), (2, 0), (2, 1)), SLOW)
    assert said(3, slow) and said(3, slow, kernels="aab") == []


def test_two_nodes_that_are_quick_with_each_other_make_no_other_slow() -> None:
    assert said(4, {(0, 1): 80e6, (1, 0): 80e6}, usual=SLOW) == []


def test_a_slow_link_that_costs_no_step_is_sound() -> None:
    assert said(3, {(2, 0): SLOW, (2, 1): SLOW}, share=0.4) == []


def test_a_rate_that_does_not_explain_the_time_is_held_against_nobody() -> None:
    """A MiB of gradients takes 30 ms of the 180; or 1.4 s, so that they go another way."""
    for rate in (45e6, 1e6):
        assert said(3, {(2, 0): rate, (2, 1): rate}) == []


def test_two_nodes_that_are_slow_with_each_other_only_and_two_halves_name_no_node() -> None:
    (found,) = said(4, {(0, 1): SLOW, (1, 0): SLOW})
    assert found["code"] == "train.speed.slow_path" and "node" not in found["where"]
    assert found["message"].startswith("7 MB/s from node-0 to node-1 and node-1 to node-0, expected about 480 MB/s")
    (found,) = said(4, PARTED)
    assert found["code"] == "train.speed.slow_path" and not found["where"]


def test_no_more_bytes_travel_than_there_is_time_for() -> None:
    class Gloo:
        job = type("job", (), {"backend": "gloo"})()

    ctx: Any = Gloo()
    assert node_links._size(ctx, 3_600_000, 0.1) == 3_600_000
    assert node_links._size(ctx, 3_600_000, 2.0) == 1_800_000
    assert node_links._size(ctx, 3_600_000, 1000.0) == node_links._size(ctx, 100, 0.0) == node_links.LEAST_BYTES
