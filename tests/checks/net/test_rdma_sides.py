"""Whom net.rdma blames where most nodes are the sick ones, or all are alike; and fleets that only look odd."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checks.net.made_hcas import (
    LOCAL_ONLY,
    POLLING,
    ROCE,
    SLOWER,
    STORAGE,
    Card,
    cards,
    fleet,
    is_as_told,
    judged,
    read,
    roce,
    told,
    write,
)
from tests.large import timed

DISABLED: dict[str, Any] = {**POLLING, "physical": "3: Disabled"}
FELL: dict[str, Any] = {**POLLING, "counters": {"link_downed": 2}}
OFF = {"NCCL_IB_DISABLE": "1"}
FRONT = Card("mlx5_8", 8, board="MT_0000000359", layer="Ethernet", rate="100 Gb/sec", gids=ROCE)
AZURE = [*(Card(f"mlx5_ib{n}", n, device="0x101e", lanes=("Unknown", "0")) for n in range(8)),
         replace(FRONT, name="mlx5_an0", device="0x101a", rate="50 Gb/sec", gids=LOCAL_ONLY)]  # fmt: skip
ETHERNET: dict[str, Any] = {"layer": "Ethernet", "gids": ROCE, **SLOWER}


def all_down(state: Mapping[str, Any] = POLLING) -> list[Card]:
    return cards(8, dict.fromkeys(range(8), state))


def found(folder: Path, sick: Sequence[Card], sound: Sequence[Card], of: tuple[int, int] = (5, 3)) -> list[str]:
    facts = fleet(folder, sick, sound)
    return told(judged([*[facts[0]] * of[0], *[facts[1]] * of[1]]))


# Most nodes are sick


def test_the_leaf_of_most_nodes_is_dead(tmp_path: Path) -> None:
    facts = fleet(tmp_path, all_down(), cards(), all_down(FELL), [*all_down(), FRONT])
    is_as_told("rdma_leaf_down", judged([facts[0]] * 5 + [facts[1]] * 3))
    assert told(judged([facts[2]] * 3 + [facts[1]] * 2)) == [f"fail down node-{rank}" for rank in range(3)]
    assert "expected ACTIVE as before" in judged([facts[2]] * 3 + [facts[1]] * 2)[0]["message"]


@pytest.mark.parametrize(
    ("sick", "sound", "expected"),
    [
        (cards(8, {3: POLLING}), cards(), ["fail down mlx5_3"]),
        (cards(8, {3: FELL}), cards(), [f"fail down node-{rank} mlx5_3" for rank in range(5)]),
        (cards(8, {3: {**DISABLED, "counters": {"link_downed": 2}}}), cards(), ["fail down mlx5_3"]),
        ([], cards(), ["fail missing"]),
        ([], cards(8, dict.fromkeys(range(8), POLLING)), ["info no_active_port"]),
        (cards(7), cards(), ["fail unequal mlx5_7"]),
        (cards(8, verbs="closed"), cards(), [f"fail permission_denied node-{rank}" for rank in range(5)]),
    ],
    ids=["a port", "a port that was up", "a port off", "no devices", "no devices, none used", "a device", "closed"],
)
def test_most_nodes_are_sick(sick: list[Card], sound: list[Card], expected: list[str], tmp_path: Path) -> None:
    assert found(tmp_path, sick, sound) == expected


def test_half_of_the_nodes_are_sick(tmp_path: Path) -> None:
    assert found(tmp_path / "leaf", all_down(), cards(), (4, 4)) == ["fail down"]
    assert found(tmp_path / "rail", cards(8, {3: POLLING}), cards(), (2, 2)) == [
        "fail down node-0 mlx5_3", "fail down node-1 mlx5_3",
    ]  # fmt: skip
    lone = cards(8, {**dict.fromkeys(range(8), POLLING), 3: {}})
    assert found(tmp_path / "lone", all_down(), lone, (2, 2)) == ["fail down mlx5_3"]


def test_a_name_that_one_node_has(tmp_path: Path) -> None:
    environ = {rank: {"NCCL_IB_HCA": "mlx5_3"} for rank in range(4)}
    facts = fleet(tmp_path, *([Card(f"mlx5_{number}", number)] for number in (3, 7, 9, 12)), environ=environ)
    assert told(judged(facts)) == [
        f"fail no_port_selected node-{rank} mlx5_{number} NCCL_IB_HCA" for rank, number in ((1, 7), (2, 9), (3, 12))
    ]


def test_a_switched_off_transport_is_told_with_its_values(tmp_path: Path) -> None:
    facts = fleet(tmp_path, *[cards()] * 3, environ={0: OFF, 2: OFF})
    is_as_told("rdma_disabled", judged(facts))
    (finding,) = judged([facts[1], facts[0], facts[1]])
    assert told([finding]) == ["fail unequal node-1 NCCL_IB_DISABLE"]
    assert finding["message"].endswith(
        "expected 8 as on 2 of 3 nodes (NCCL_IB_DISABLE is '1' there, not set on node-0)"
    )
    assert finding["fix"].startswith("Set NCCL_IB_DISABLE to the same value on all nodes")


def test_a_switch_that_changes_nothing_is_not_the_cause(tmp_path: Path) -> None:
    environ = {1: {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "=mlx5_1"}}
    (finding,) = judged(fleet(tmp_path, *[cards()] * 3, environ=environ))
    assert (
        told([finding]) == ["fail unequal node-1 NCCL_IB_HCA"]
        and "(NCCL_IB_HCA is '=mlx5_1' there" in finding["message"]
    )


def test_who_takes_fewer_is_named_beside_who_takes_more(tmp_path: Path) -> None:
    facts = fleet(
        tmp_path, cards(), cards(), cards(), [*cards(), FRONT], cards(), environ={4: {"NCCL_IB_HCA": "=mlx5_1"}}
    )
    assert told(judged(facts)) == ["fail unequal node-4 NCCL_IB_HCA", "warn unequal mlx5_8"]


# All nodes are alike


def test_the_leaf_of_a_rail_is_dead_under_all_nodes(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(8, {3: FELL}), cards(8, {3: POLLING}))
    is_as_told("rdma_rail_down", judged([facts[0]] * 4))
    is_as_told("rdma_rail_down", judged([facts[0], facts[1], facts[1]]))
    assert told(judged([facts[1]] * 3)) == ["info down mlx5_3"]
    assert judged([facts[0]] * 3, "gloo") == []
    dead = read(write(tmp_path / "dead", all_down()))
    assert told(judged([facts[0]] * 3 + [dead])) == ["fail down node-3", "warn down mlx5_3"]


@pytest.mark.parametrize(
    ("cards_", "expected"),
    [
        ([*cards(), Card("mlx5_8", 8, **POLLING)], ["info down mlx5_8"]), ([*cards(), replace(FRONT, **FELL)], []),
        (cards(8, {3: {**DISABLED, "counters": {"link_downed": 2}}}), []),
        ([*cards(3), *(Card(f"mlx5_{3 + n}", 3 + n, bus=f"0000:c{n}:00.1") for n in range(3)),
          Card("mlx5_6", 6, bus="0000:c6:00.1", **FELL)], ["info down mlx5_6"]),
        (cards(8, {3: {"rate": "100 Gb/sec (4X EDR)"}}), ["info slow mlx5_3"]),
        ([*cards(), *(Card(f"mlx5_{n}", n, **SLOWER) for n in (8, 9))], ["info slow"]),
        (cards(8, {3: {"rate": "800 Gb/sec"}}), []), (cards(8, dict.fromkeys(range(4), SLOWER)), []),
    ],
    ids=["spare", "front end", "off", "second port", "slow", "storage", "fast", "half"],
)  # fmt: skip
def test_alike_nodes_whose_siblings_differ(cards_: list[Card], expected: list[str], tmp_path: Path) -> None:
    assert told(judged([read(write(tmp_path, cards_))] * 3)) == expected


# Fleets that only look odd


@pytest.mark.parametrize(
    "other", [ETHERNET, SLOWER, {"lanes": ("32.0 GT/s PCIe", "8")}], ids=["layer", "rate", "lanes"]
)
@pytest.mark.parametrize("of", [(5, 3), (4, 4), (1, 1)])
def test_two_makes_of_chassis_number_their_cards_otherwise(
    of: tuple[int, int], other: Mapping[str, Any], tmp_path: Path
) -> None:
    early, late = cards(10, {2: other, 3: other}), cards(10, {8: other, 9: other})
    assert [card for card in found(tmp_path, early, late, of) if not card.startswith("info slow")] == []


def test_a_sick_node_of_another_make_of_chassis_is_told_of_its_own_fault(tmp_path: Path) -> None:
    early, late = cards(10, {2: ETHERNET, 3: ETHERNET}), cards(10, {8: ETHERNET, 9: ETHERNET})
    wrong = cards(10, {5: ETHERNET, 8: ETHERNET, 9: ETHERNET})
    slow = cards(10, {5: {"rate": "100 Gb/sec"}, 8: ETHERNET, 9: ETHERNET})
    facts = fleet(tmp_path, early, late, wrong, slow, [card for card in late if card.number != 4])
    sound = [facts[0]] * 5 + [facts[1]] * 2
    assert told(judged([*sound, facts[3]])) == ["warn slow node-7 mlx5_5"]
    assert told(judged([*sound, facts[4]])) == ["fail missing node-7 mlx5_4"]
    assert {text.split()[2] for text in told(judged([*sound, facts[2]]))} == {"node-7"}


@pytest.mark.parametrize(
    ("sick", "expected"),
    [
        ({"firmware": "16.30.1"}, ["info firmware node-3 mlx5_an0"]),
        ({"rate": "40 Gb/sec"}, ["info slow node-3 mlx5_an0"]),
        (DISABLED, ["warn down node-3 mlx5_an0"]),
    ],
    ids=["firmware", "rate", "down"],
)  # fmt: skip
def test_a_tenant_cannot_mend_the_hosts_card(sick: Mapping[str, Any], expected: list[str], tmp_path: Path) -> None:
    facts = fleet(tmp_path, AZURE, [*AZURE[:-1], replace(AZURE[-1], **sick)])
    found_ = told(judged([facts[0]] * 3 + [facts[1]]))
    assert [of_rank for of_rank in found_ if "no_gid" not in of_rank] == expected


def test_a_slow_virtual_function_of_the_jobs_network_is_told(tmp_path: Path) -> None:
    facts = fleet(tmp_path, AZURE[:-1], [*AZURE[:3], replace(AZURE[3], **SLOWER), *AZURE[4:-1]])
    assert told(judged([*[facts[0]] * 3, facts[1]])) == ["warn slow node-3 mlx5_ib3"]


def test_a_virtual_function_is_known_by_its_model_or_its_card(tmp_path: Path) -> None:
    root = write(tmp_path, [*cards(2), Card("mlx5_2", 2, device="0x101e")])
    (root / "sys/class/infiniband/mlx5_1/device/physfn").mkdir()
    assert [card["virtual"] for card in read(root)["hcas"]] == [False, True, True]


def test_firmware_of_what_nccl_does_not_take_is_compared_apart(tmp_path: Path) -> None:
    old: dict[str, Any] = {"firmware": "28.36.1010"}
    storage = [*cards(), *(Card(f"mlx5_{n}", n, **old, **ETHERNET) for n in (8, 9))]
    down = [*cards(), *(Card(f"mlx5_{n}", n, **old, **DISABLED) for n in (8, 9))]
    assert told(judged(fleet(tmp_path / "storage", storage) * 3)) == []
    assert told(judged(fleet(tmp_path / "down", down) * 3)) == []
    facts = fleet(tmp_path / "one", down, [*down[:-1], replace(down[-1], firmware="28.39.2048")])
    assert told(judged([facts[0], facts[0], facts[1]])) == ["info firmware node-2 mlx5_9"]


@pytest.mark.parametrize(
    ("card", "others", "expected"),
    [
        (FRONT, replace(FRONT, **DISABLED), ["warn down mlx5_8"]),
        (FRONT, None, ["warn unequal mlx5_8"]),
        (STORAGE, replace(STORAGE, **POLLING), ["warn down mlx5_bond_0"]),
    ],
)  # fmt: skip
def test_a_port_aside_is_up_on_some_nodes(card: Card, others: Card | None, expected: list[str], tmp_path: Path) -> None:
    with_it, without = [*cards(), card], [*cards(), *([others] if others else [])]
    assert found(tmp_path / "few", with_it, without, (2, 6)) == expected
    if others:
        assert found(tmp_path / "half", with_it, without, (1, 1)) == expected


def test_a_port_aside_is_down_on_one_node(tmp_path: Path) -> None:
    assert found(tmp_path / "front", [*cards(), replace(FRONT, **DISABLED)], [*cards(), FRONT], (1, 7)) == [
        "warn down node-0 mlx5_8"
    ]
    even = replace(FRONT, name="mlx5_1", number=1)
    pair = [*cards(1), replace(even, **DISABLED)], [*cards(1), even]
    assert found(tmp_path / "as many", *pair, (1, 7)) == ["fail down node-0 mlx5_1"]


# Settings, and one node


@pytest.mark.parametrize(
    ("last", "there", "severity"),
    [(11, cards(), "info"), (11, [*cards(), STORAGE], "info"),
     (7, [card for card in cards() if card.number != 4], "warn"),
     (7, [*cards(7), Card("mlx5_9", 9)], "warn")],
    ids=["longer", "longer, and storage", "one is gone", "another in its place"],
)  # fmt: skip
def test_a_list_of_hcas_for_larger_machines(last: int, there: list[Card], severity: str, tmp_path: Path) -> None:
    listed = {"NCCL_IB_HCA": "=" + ",".join(f"mlx5_{number}" for number in range(last + 1))}
    facts = fleet(tmp_path, there, environ={0: listed})
    (finding,) = judged(facts * 3)
    assert (finding["severity"], finding["code"]) == (severity, "net.rdma.unmatched")
    many = "mlx5_8, mlx5_9 and 2 more are not there, but named by NCCL_IB_HCA on all 3 nodes"
    assert last == 7 or finding["message"].startswith(many)


def test_alone_what_only_a_network_needs_is_worth_knowing(tmp_path: Path) -> None:
    environ = {2: {"NCCL_IB_HCA": "=mlx5_0,mlx5_9"}}
    facts = fleet(tmp_path, cards(2, verbs="closed"), roce(2, gids=LOCAL_ONLY), cards(2), environ=environ)
    expected = ["info permission_denied node-0", "info no_gid node-0", "info unmatched node-0 mlx5_9 NCCL_IB_HCA"]
    assert [told(judged([of_rank])) for of_rank in facts] == [[text] for text in expected]


def test_alone_a_slow_port_is_told_by_its_siblings(tmp_path: Path) -> None:
    assert told(judged(fleet(tmp_path, cards(8, {2: SLOWER})))) == ["warn slow node-0 mlx5_2"]


def test_the_plugin_of_hpcx_takes_the_same_ports(tmp_path: Path) -> None:
    environ = {rank: {"NCCL_NET": "IBext_v10", **OFF} for rank in range(2)}
    facts = fleet(tmp_path, cards(), cards(8, {3: POLLING}), environ=environ)
    assert told(judged([facts[0], facts[0], facts[1]])) == ["fail down node-2 mlx5_3"]


def test_1024_nodes_of_which_most_are_sick(tmp_path: Path) -> None:
    facts = fleet(tmp_path, all_down(), cards(), cards(8, {3: POLLING}))
    with timed("net.rdma, 1,024 nodes of which most are sick"):
        assert told(judged([facts[rank % 3 == 1] for rank in range(1024)])) == ["fail down"]
    assert told(judged([facts[2]] * 1024)) == ["info down mlx5_3"]
