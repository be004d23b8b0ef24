"""HCAs of made-up nodes: trees of /sys read by the real code, judged together, and in real runs over two nodes."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from preflight.check import Job
from preflight.checks.net import rdma
from preflight.checks.net.rdma import hca_gids
from preflight.checks.net.shared import hca
from tests.checks.net.made_hcas import (
    EMPTY,
    IPV4,
    IPV6,
    LINK_LOCAL,
    LOCAL_ONLY,
    POLLING,
    ROCE,
    SLOWER,
    STORAGE,
    V1,
    V2,
    Card,
    cards,
    fleet,
    is_as_told,
    is_told,
    judged,
    needs_mounts,
    read,
    read_again,
    roce,
    run_with,
    told,
    write,
)
from tests.large import timed

WAITING = {"state": "2: INIT", "physical": "5: LinkUp"}
NAMED = {"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_2,mlx5_3"}
INTEL, AMAZON, MANA = "0x8086", "0x1d0f", "0x1414"


def test_a_machine_is_read(tmp_path: Path) -> None:
    changed = roce(1, {0: {"counters": {"symbol_error": 7, "packet_seq_err": 3}}})
    (card,) = read(write(tmp_path, changed), NCCL_IB_HCA="mlx5", NCCL_DEBUG="INFO")["hcas"]
    (port,) = card.pop("ports")
    assert card == {
        "name": "mlx5_0", "vendor": "0x15b3", "kind": "MT_0000000838", "firmware": "28.39.2048",
        "bus": "0000:10:00.0", "numa": None, "pcie": "32.0 GT/s x16", "virtual": False, "opens": True,
    }  # fmt: skip
    assert port.pop("gids") == [
        {"index": index, "kind": kind, "version": version, "interface": "eth0"}
        for index, kind, version in ((0, "link-local", 1), (1, "link-local", 2), (2, "ipv4", 1), (3, "ipv4", 2))
    ]
    assert port == {
        "port": 1, "state": "ACTIVE", "physical": "LinkUp", "layer": "Ethernet", "rate": 400.0,
        "counters": {"symbol_error": 7, "packet_seq_err": 3}, "more_gids": False,
    }  # fmt: skip


def test_what_is_not_there_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband/rxe0/ports/1").mkdir(parents=True)
    (card,) = read(tmp_path)["hcas"]
    (port,) = card.pop("ports")
    assert card.pop("virtual") is False
    assert {*card.values(), port["state"], port["rate"]} == {"rxe0", "", None} and port["gids"] is None
    assert judged([read(tmp_path)] * 3) == []


@pytest.mark.parametrize(
    ("lanes", "read_"),
    [(("8.0 GT/s PCIe", "4"), "8.0 GT/s x4"), (("Unknown speed", "16"), ""), (("16.0 GT/s PCIe", "0"), "")],
)
def test_a_pcie_link_is_read(lanes: tuple[str, str], read_: str, tmp_path: Path) -> None:
    assert read(write(tmp_path, cards(1, lanes=lanes)))["hcas"][0]["pcie"] == read_


def test_devices_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    assert hca.names(str(write(tmp_path, cards(12))))[1:3] == ["mlx5_1", "mlx5_2"]


@pytest.mark.parametrize(
    "cards_",
    [
        cards(), [*cards(), STORAGE], roce(), roce(2, rate="200 Gb/sec (4X HDR)"),
        [Card(f"efa_{n}", n, AMAZON, "", layer="Unspecified", rate="100 Gb/sec (4X EDR)", lanes=("", ""))
         for n in range(32)],
        cards(8, {1: POLLING, 3: POLLING, 5: POLLING, 7: POLLING}),
        cards(8, {7: POLLING | {"physical": "3: Disabled"}}),
        [*cards(4), *(Card(f"mlx5_{4 + n}", 4 + n, bus=f"0000:c1:00.{n}", **(POLLING if n else {})) for n in (0, 1))],
        roce(4, gids={5: (IPV4, V2)}), cards(16, lanes=("Unknown speed", "0"), bus="0000:3b:00.2"),
        [*cards(4), Card("mana_0", 5, MANA, layer="Ethernet", gids=LOCAL_ONLY, verbs="unknown")],
        [*roce(2), *(Card(f"irdma{n}", 6 + n, INTEL, layer="Ethernet", gids=ROCE) for n in (0, 1))],
        [Card("roceP1p1s0", 0, layer="Ethernet", gids=ROCE), Card("ibP2p1s0", 1)],
        roce(8, verbs="unknown"), cards(2, state="", physical="", rate="", board="", firmware="", layer=""),
        [],
    ],
    ids=["8 IB", "8 IB and a bond", "RoCE", "LAG", "EFA", "every second port", "one port", "dual port",
         "few GIDs", "VFs", "Azure", "mixed", "names by place", "no uverbs", "unreadable", "none"],
)  # fmt: skip
def test_alike_nodes_are_sound(cards_: Sequence[Card], tmp_path: Path) -> None:
    facts = read(write(tmp_path, cards_))
    assert judged([facts] * 4) == judged([facts] * 2) == judged([facts] * 4, "gloo") == []


@pytest.mark.parametrize(
    "changes",
    [
        {}, {1: POLLING, 3: POLLING, 5: POLLING, 7: POLLING}, dict.fromkeys(range(1, 8), POLLING),
        {7: {"layer": "Ethernet", "rate": "100 Gb/sec (4X EDR)", "gids": ROCE}},
    ],
    ids=["all up", "half", "one", "one Ethernet"],
)  # fmt: skip
def test_one_node_is_sound(changes: Mapping[int, Mapping[str, Any]], tmp_path: Path) -> None:
    assert judged([read(write(tmp_path, cards(8, changes)))]) == []


def test_nodes_of_two_kinds_are_sound(tmp_path: Path) -> None:
    older = cards(board="MT_0000000223", rate="200 Gb/sec (4X HDR)", firmware="20.38.1900")
    facts = fleet(tmp_path, cards(), older)
    assert judged([facts[0], facts[0], facts[0], facts[1]]) == []


SECOND = {  # of three nodes, the others have 8 sound cards
    "extra_port": [*cards(), Card("mlx5_8", 8)], "selects_nothing": cards(), "selects_fewer": cards(),
    "link_layer": cards(8, {2: {"layer": "Ethernet"}}), "pcie": cards(8, {2: {"lanes": ("32.0 GT/s PCIe", "8")}}),
    "firmware": cards(8, {2: {"firmware": "28.36.1010"}}),
}  # fmt: skip
OWN = {"selects_nothing": {"NCCL_IB_HCA": "=mlx5"}, "selects_fewer": {"NCCL_IB_HCA": "=mlx5_1"}}


@pytest.mark.parametrize("name", SECOND)
def test_the_second_of_three_nodes_is_odd(name: str, tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(), SECOND[name], environ={1: OWN.get(name, {})})
    is_as_told(f"rdma_{name}", judged([facts[0], facts[1], facts[0]]))


# Ports that are not ACTIVE


def test_a_card_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe blocks who opens it, as a driver does who waits for the card."""
    monkeypatch.setattr(rdma, "PATIENCE_S", 0.5)
    sound, root = read(write(tmp_path / "sound", cards())), write(tmp_path / "sick", cards())
    state = root / "sys/class/infiniband/mlx5_3/ports/1/state"
    state.unlink()
    os.mkfifo(state)
    sick = read(root)
    state.write_text("4: ACTIVE\n")  # the thread ends
    assert sick["silent"] == {"mlx5_3": "0x15b3"} and len(sick["hcas"]) == 7
    is_as_told("rdma_silent", judged([sound, sick, sound]))


def test_a_port_is_down_on_one_node(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(), cards(8, {3: POLLING}))
    (finding,) = judged([facts[0], facts[1], facts[0], facts[0]])
    assert told([finding]) == ["fail down node-1 mlx5_3"]
    assert finding["message"] == "mlx5_3 is DOWN (Polling), expected ACTIVE as on 3 of 4 nodes"
    assert "ibstat mlx5_3" in finding["fix"]
    (of_two,) = judged(facts)
    assert told([of_two]) == ["fail down node-1 mlx5_3"] and "as 7 of 8 siblings" in of_two["message"]
    assert [finding["severity"] for finding in judged([*facts, facts[0]], "gloo")] == ["info"]
    assert told(judged([facts[1]])) == ["fail down node-0 mlx5_3"]
    assert [finding["severity"] for finding in judged([facts[1]], "gloo")] == ["info"]


@pytest.mark.parametrize(
    ("count", "change", "found"),
    [
        (8, {"physical": "3: Disabled"}, "warn"), (4, {}, "warn"), (5, {}, "fail"),
        (5, {"vendor": INTEL}, "warn"), (8, {"layer": "Ethernet", "gids": ROCE}, ""),
    ],
    ids=["turned off", "one of four", "one of five", "another make", "another kind"],
)  # fmt: skip
def test_one_dead_port_of_a_lone_node(count: int, change: Mapping[str, Any], found: str, tmp_path: Path) -> None:
    """Nobody cables seven of eight; but a node of four may have three."""
    facts = read(write(tmp_path, cards(count, {2: {**POLLING, **change}})))
    assert told(judged([facts])) == ([f"{found} down node-0 mlx5_2"] if found else [])


def test_all_ports_of_a_node_are_down(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(), cards(state="1: DOWN", physical="3: Disabled"))
    (finding,) = judged([facts[0], facts[0], facts[1]])
    assert told([finding]) == ["fail down node-2"]
    assert finding["message"].startswith("mlx5_0, mlx5_1 and 6 more are DOWN (Disabled), expected ACTIVE as on 2 of 3")


def test_one_against_one_names_nobody(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(1), cards(1, {0: POLLING}))
    is_as_told("rdma_state_of_two", judged(facts))
    assert told(judged(facts)) == ["fail down mlx5_0"]


def test_no_subnet_manager_is_told_though_all_nodes_wait_for_it(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(2, {0: WAITING, 1: WAITING}), roce(2, {0: WAITING}))
    found = judged([facts[0]] * 3)
    assert told(found) == ["warn down", "info no_active_port"] and "sminfo" in found[0]["fix"]
    is_as_told("rdma_no_subnet_manager", found)
    assert told(judged([facts[1]] * 3)) == []


def test_one_against_one_that_waits_or_is_named_is_told(tmp_path: Path) -> None:
    named = {0: {"NCCL_IB_HCA": "mlx5_0"}, 1: {"NCCL_IB_HCA": "mlx5_0"}}
    waiting = fleet(tmp_path / "waiting", cards(1), cards(1, {0: WAITING}))
    down = fleet(tmp_path / "down", cards(1), cards(1, {0: POLLING}), environ=named)
    assert told(judged(waiting)) == told(judged(down)) == ["fail down node-1 mlx5_0"]


def test_of_two_that_are_not_active_only_the_one_that_waits_is_told(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(1, {0: POLLING}), cards(1, {0: WAITING}))
    assert told(judged(facts)) == ["warn down node-1 mlx5_0", "info no_active_port"]


def test_what_nccl_ib_hca_names_should_be_up(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(8, {3: POLLING, 5: POLLING}), cards(8, {5: POLLING}), environ={0: NAMED, 1: NAMED})
    assert told(judged([facts[0]] * 3)) == ["warn down mlx5_3"]
    assert told(judged([facts[1]] * 2)) == []


def test_unused_cards_are_worth_knowing(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(2, {0: POLLING, 1: POLLING}))
    assert told(judged(facts * 2)) == ["info no_active_port"]
    assert judged(facts * 2, "gloo") == []


def test_other_makes_fail_nothing(tmp_path: Path) -> None:
    facts = fleet(tmp_path, roce(2, vendor=INTEL), roce(2, {1: POLLING}, vendor=INTEL))
    assert told(judged([facts[0], facts[0], facts[1]])) == ["warn down node-2 mlx5_1"]
    slower = fleet(tmp_path / "slower", roce(2, {1: SLOWER}, vendor=INTEL, firmware="9"))
    assert judged([facts[0], facts[0], *slower]) == []


# Unlike numbers


def test_a_device_is_missing(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(), [card for card in cards() if card.number != 4], [])
    (finding,) = judged([facts[0], facts[0], facts[1]])
    assert told([finding]) == ["fail missing node-2 mlx5_4"]
    assert finding["message"] == "7 RDMA devices there, expected 8 as on 2 of 3 nodes; mlx5_4 is missing"
    (none,) = judged([facts[2], facts[0], facts[0]])
    assert (
        told([none]) == ["fail missing node-0"]
        and none["message"] == "0 RDMA devices there, expected 8 as on 2 of 3 nodes"
    )
    (tie,) = judged(facts[:2])
    assert told([tie]) == ["fail missing"] and "8 on node-0, 7 on node-1" in tie["message"]


def test_a_node_has_more(tmp_path: Path) -> None:
    more = Card("efa_0", 8, AMAZON, layer="Unspecified"), Card("mlx5_8", 8, **POLLING)
    facts = fleet(tmp_path, cards(), [*cards(), more[0]], [*cards(), more[1]])
    assert judged([facts[0], facts[1], facts[0]]) == []
    assert told(judged([facts[0], facts[2], facts[0]])) == ["warn down node-1 mlx5_8"]


def test_a_missing_device_that_nobody_uses_is_worth_knowing(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(2, {1: POLLING}), cards(1))
    assert told(judged([facts[0], facts[1], facts[0]])) == ["info missing node-1 mlx5_1"]


def test_a_missing_device_that_nccl_does_not_take_is_milder(tmp_path: Path) -> None:
    efa = [Card(f"efa_{n}", n, AMAZON, layer="Unspecified") for n in range(4)]
    facts = fleet(tmp_path, efa, efa[:3])
    assert told(judged([facts[0], facts[1], facts[0]])) == ["warn missing node-1 efa_3"]


def test_two_faults_of_two_nodes_are_both_told(tmp_path: Path) -> None:
    other = {"NCCL_IB_HCA": "mlx5_1,mlx5_2"}
    facts = fleet(tmp_path, cards(), cards(7), cards(), environ={2: other})
    found = told(judged([facts[0], facts[1], facts[2], facts[0], facts[0]]))
    assert found == ["fail missing node-1 mlx5_7", "fail unequal node-2 NCCL_IB_HCA"]


def test_a_variable_that_all_have_is_not_blamed(tmp_path: Path) -> None:
    same = {key: {"NCCL_IB_HCA": "mlx5"} for key in range(3)}
    facts = fleet(tmp_path, [*cards(3), STORAGE], [*cards(3), STORAGE], [*cards(3), Card("irdma0", 8)], environ=same)
    assert told(judged(facts)) == ["warn unequal node-2 mlx5_bond_0"]


def test_a_device_that_cannot_be_opened(tmp_path: Path) -> None:
    facts = fleet(tmp_path, roce(2), roce(2, {1: {"verbs": "closed"}}), roce(2, verbs="closed"))
    assert told(judged(facts[:2])) == ["fail permission_denied node-1 mlx5_1"]
    (all_,) = judged([facts[2]] * 3)
    assert told([all_]) == ["warn permission_denied"] and "else NCCL uses sockets" in all_["message"]
    assert all_["message"].startswith("mlx5_0 and mlx5_1 are closed to this process (/dev/infiniband) on all 3 nodes")


def test_nccl_takes_one_more_on_a_node(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(), [*cards(), Card("mlx5_8", 8)])
    (finding,) = judged([facts[0], facts[0], facts[1]])
    assert told([finding]) == ["fail unequal mlx5_8"]
    told_of = "8 on node-0 and node-1, 9 on node-2 (they differ in mlx5_8)"
    assert finding["message"] == f"the number of ports that NCCL uses is {told_of}, expected the same on all nodes"
    assert "NCCL 2.30 ignores the mismatch" in finding["fix"] and "2428" in finding["fix"]


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"NCCL_IB_HCA": "mlx5_1,mlx5_2"}, ["fail unequal node-2 NCCL_IB_HCA"]),
        ({"NCCL_IB_HCA": "=mlx5"}, ["fail no_port_selected node-2 NCCL_IB_HCA"]),
        ({"NCCL_IB_DISABLE": "1"}, ["fail unequal node-2 NCCL_IB_DISABLE"]),
        ({"NCCL_IB_HCA": "^mlx5_9"}, []),
        ({"NCCL_IB_HCA": "mlx5"}, []),
    ],
)
def test_a_node_selects_others(environ: Mapping[str, str], found: list[str], tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(), cards(), cards(), environ={2: environ})
    assert told(judged(facts)) == found


def test_what_nccl_ib_hca_selects_is_read_from_nccls_file(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_IB_HCA==mlx5_77\n")
    facts = fleet(tmp_path, cards(2), environ={0: {"NCCL_CONF_FILE": str(conf)}})
    (finding,) = judged(facts * 2)
    assert told([finding]) == ["warn no_port_selected NCCL_IB_HCA"]
    assert finding["message"].startswith("mlx5_0 and mlx5_1 are left out by NCCL_IB_HCA='=mlx5_77' on both nodes")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("=mlx5_0,mlx5_9", ["warn unmatched mlx5_9 NCCL_IB_HCA"]),
        ("mlx5_0:2,mlx5_1", ["warn unmatched mlx5_0 NCCL_IB_HCA"]),
        ("mlx5,irdma", []), ("^=mlx5_9", []), ("^mlx5_0,mlx5_9", []),
    ],
)  # fmt: skip
def test_a_name_that_no_node_has(value: str, found: list[str], tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(2), environ={0: {"NCCL_IB_HCA": value}})
    assert told(judged(facts * 2)) == found
    if value == "=mlx5_0,mlx5_9":
        is_as_told("rdma_stale_name", judged(facts * 2))


def test_nccl_takes_32_ports(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(33))
    assert told(judged(facts * 2)) == ["info too_many mlx5_32"]
    assert judged(fleet(tmp_path / "less", cards(32)) * 2) == []


# Links


@pytest.mark.parametrize(
    ("changes", "found", "words"),
    [
        (SLOWER, "warn slow", "mlx5_2 is at 200 Gb/s, expected 400 Gb/s as on 3 of 4 nodes"),
        ({"lanes": ("16.0 GT/s PCIe", "16")}, "warn pcie", "mlx5_2 is at 16.0 GT/s x16, expected 32.0 GT/s x16 as on"),
        ({"lanes": ("32.0 GT/s PCIe", "8")}, "warn pcie", "mlx5_2 is at 32.0 GT/s x8, expected 32.0 GT/s x16 as on 3"),
        ({"layer": "Ethernet"}, "fail link_layer", "mlx5_2 is at Ethernet, expected InfiniBand as on 3 of 4 nodes"),
        ({"firmware": "28.36.1010"}, "warn firmware",
         "mlx5_2 is on firmware 28.36.1010, expected 28.39.2048 as on 31 of 32 HCAs of its board (MT_0000000838)"),
    ],
    ids=["rate", "PCIe speed", "PCIe width", "link layer", "firmware"],
)  # fmt: skip
def test_a_link_is_unlike(changes: Mapping[str, Any], found: str, words: str, tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(), cards(8, {2: changes}))
    (finding,) = judged([facts[0], facts[1], facts[0], facts[0]])
    assert told([finding]) == [f"{found} node-1 mlx5_2"] and finding["message"].startswith(words)


def test_a_faster_link_is_no_fault(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(), cards(8, {2: {**SLOWER, "lanes": ("16.0 GT/s PCIe", "16")}}))
    assert judged([facts[1], facts[1], facts[0], facts[1]]) == []


def test_half_the_nodes_have_another_rate(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(), cards(rate="200 Gb/sec (4X HDR)", firmware="9.1"))
    found = judged([facts[0], facts[0], facts[1], facts[1]])
    assert told(found) == ["warn slow", "warn firmware"]
    rate = "the rate of mlx5_0, mlx5_1 and 6 more is 400 Gb/s on node-0 and node-1, 200 Gb/s on node-2 and node-3"
    assert found[0]["message"].startswith(rate)
    board = "HCAs of board MT_0000000838 have firmware 28.39.2048 on node-0 and node-1, 9.1 on node-2 and node-3"
    assert found[1]["message"].startswith(board)


# GIDs


def gids(table: Mapping[int, tuple[str, str]]) -> list[hca.Gid]:
    kinds = {LINK_LOCAL: "link-local", IPV4: "ipv4", IPV6: "ipv6"}
    return [
        {"index": index, "kind": kinds[gid], "version": 2 if kind == V2 else 1, "interface": ""}
        for index, (gid, kind) in table.items()
        if gid != EMPTY
    ]


BOTH = {**ROCE, 4: (IPV6, V1), 5: (IPV6, V2)}


@pytest.mark.parametrize(
    ("table", "settings", "index"),
    [
        (ROCE, {}, 3), (ROCE, {"NCCL_IB_ROCE_VERSION_NUM": "1"}, 2), (LOCAL_ONLY, {}, 0), (BOTH, {}, 3), ({}, {}, 0),
        (BOTH, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 5), (ROCE, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 0),
        ({**LOCAL_ONLY, 4: (IPV6, V1), 5: (IPV6, V2)}, {}, 0), ({7: (IPV4, V2)}, {}, 7), ({2: (IPV4, V1)}, {}, 2),
        ({**ROCE, 5: (IPV4, V2)}, {}, 3), ({0: (IPV4, V1), 1: (IPV4, V2)}, {}, 1),
    ],
)  # fmt: skip
def test_nccl_takes_this_gid(table: Mapping[int, Any], settings: dict[str, str], index: int) -> None:
    assert hca_gids.chosen(gids(table), settings) == index


INDEX = {"NCCL_IB_GID_INDEX": "3"}


@pytest.mark.parametrize(
    ("table", "environ", "found"),
    [
        (LOCAL_ONLY, {}, "fail no_gid node-1 mlx5_1"),
        ({0: (EMPTY, ""), 1: (EMPTY, "")}, {}, "fail no_gid node-1 mlx5_1"),
        ({**LOCAL_ONLY, 5: (IPV6, V2)}, {}, "fail no_gid node-1 mlx5_1"),
        (LOCAL_ONLY, INDEX, "fail gid_index node-1 mlx5_1 NCCL_IB_GID_INDEX"),
        ({**ROCE, 3: (IPV4, V1)}, INDEX, "fail gid_index node-1 mlx5_1 NCCL_IB_GID_INDEX"),
        ({**ROCE, 3: (LINK_LOCAL, V2)}, INDEX, "fail gid_index node-1 mlx5_1 NCCL_IB_GID_INDEX"),
        ({**ROCE, 3: (IPV6, V2)}, INDEX, None),
        ({}, {}, None), ({}, INDEX, None), (LOCAL_ONLY, {"NCCL_IB_ADDR_RANGE": "10.0.0.0/8"}, None),
        ({5: (IPV4, V2)}, {"NCCL_IB_GID_INDEX": "-1"}, None),
    ],
)  # fmt: skip
def test_a_gid_is_unfit_on_one_node(
    table: Mapping[int, Any], environ: Mapping[str, str], found: str | None, tmp_path: Path
) -> None:
    facts = fleet(tmp_path, roce(2), roce(2, {1: {"gids": table}}), environ={0: environ, 1: environ})
    findings = judged([facts[0], facts[1], facts[0]])
    assert told(findings) == ([found] if found else [])
    if table is LOCAL_ONLY and environ is INDEX:
        is_as_told("rdma_gid_index", findings)


@pytest.mark.parametrize(
    ("table", "environ", "found"),
    [
        (LOCAL_ONLY, {}, ["warn no_gid"]), (LOCAL_ONLY, INDEX, ["fail gid_index NCCL_IB_GID_INDEX"]),
        ({**ROCE, 3: (IPV4, V1)}, INDEX, ["warn gid_index NCCL_IB_GID_INDEX"]),
        (ROCE, {"NCCL_IB_GID_INDEX": "auto"}, ["warn gid_index NCCL_IB_GID_INDEX"]),
        ({0: (IPV4, V1)}, {"NCCL_IB_ROCE_VERSION_NUM": "1"}, []),
    ],
)  # fmt: skip
def test_gids_that_are_unfit_everywhere_name_no_node(
    table: Mapping[int, Any], environ: Mapping[str, str], found: list[str], tmp_path: Path
) -> None:
    facts = fleet(tmp_path, roce(2, gids=table), environ={0: environ})
    assert told(judged(facts * 3)) == found


def test_a_port_without_an_address_beside_fit_ones_is_worth_knowing(tmp_path: Path) -> None:
    bare = Card("mlx5_8", 8, layer="Ethernet", gids=LOCAL_ONLY)
    assert told(judged([read(write(tmp_path, [*cards(), bare]))] * 3)) == ["info no_gid mlx5_8"]


def test_gids_matter_to_roce_only(tmp_path: Path) -> None:
    facts = fleet(tmp_path, cards(2, gids=LOCAL_ONLY), roce(2, gids=LOCAL_ONLY, state="1: DOWN", physical=""))
    assert judged([facts[0]] * 2) == [] and told(judged([facts[1]] * 2)) == ["info no_active_port"]


def test_a_table_of_which_not_all_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma, "MOST_GIDS", 4)
    long = {**ROCE, 4: (IPV4, V1), 5: (IPV4, V2)}
    facts = fleet(tmp_path, roce(2, gids=long), environ={0: {"NCCL_IB_GID_INDEX": "5"}})
    assert len(facts[0]["hcas"][0]["ports"][0]["gids"]) == 4 and judged(facts * 2) == []


# Many nodes, and words


def test_of_1024_nodes_one_is_odd(tmp_path: Path) -> None:
    sound, sick = fleet(tmp_path, roce(), roce(8, {3: POLLING}))
    with timed("net.rdma, 1,024 nodes of which one is odd"):
        found = judged([sick if rank == 700 else sound for rank in range(1024)])
    assert told(found) == ["fail down node-700 mlx5_3"]


def test_the_summary(tmp_path: Path) -> None:
    facts = dict(enumerate(fleet(tmp_path, [*cards(), STORAGE], cards(8, {3: POLLING}))))
    run: Any = None
    words = "9 RDMA devices per node; NCCL's own transport uses 9 (Ethernet 100 Gb/s, InfiniBand 400 Gb/s)"
    assert rdma.summarize({0: facts[0]}, run) == words
    assert rdma.summarize(facts, run).startswith("8 to 9 RDMA devices per node; NCCL's own transport uses 7 to 9 (")


def test_what_threads_read_is_what_one_reads(tmp_path: Path) -> None:
    root = str(write(tmp_path, [*roce(2), *cards(4, {2: {"verbs": "closed"}, 3: {"lanes": ("Unknown", "0")}})[2:]]))
    verbs = hca.verbs_devices(root)
    assert [hca.read(name, verbs, 4, root) for name in hca.names(root)] == read(tmp_path)["hcas"]
    watched = {place: list(found) for name in hca.names(root) for place, found in hca.watched(name, root).items()}
    assert watched == read_again(tmp_path)["ports"] and hca.vendor("mlx5_0", root) == hca.MELLANOX


# Real runs


ONLY = ("--only", "net.rdma")


@needs_mounts
def test_three_nodes_of_which_one_is_sick(tmp_path: Path) -> None:
    """A card is gone, a port is down, one is slow, and one has no address."""
    sick = roce(8, {2: POLLING, 4: SLOWER, 6: {"gids": LOCAL_ONLY}}, verbs="unknown")[:7]
    sound = roce(8, verbs="unknown")
    finished = run_with(tmp_path, ONLY, sound, sick, sound)
    is_told("rdma_sick_node", finished)
    assert {finding["where"]["node"] for finding in finished.findings()} == {"node-1"}, finished.told()


@needs_mounts
def test_two_nodes_and_a_container_without_the_devices(tmp_path: Path) -> None:
    """/dev/infiniband is really not there."""
    finished = run_with(tmp_path, ONLY, cards(2, verbs="unknown"), cards(2, verbs="closed"))
    is_told("rdma_closed", finished)


@needs_mounts
def test_sound_nodes_in_a_real_run(tmp_path: Path) -> None:
    finished = run_with(tmp_path, ONLY, cards(8, verbs="unknown"), cards(8, verbs="unknown"))
    check = finished.check("net.rdma")
    assert (check["status"], check["findings"]) == ("pass", []), finished.told()
    assert check["summary"] == "8 RDMA devices per node; NCCL's own transport uses 8 (InfiniBand 400 Gb/s)"


@needs_mounts
def test_what_is_worth_knowing_in_a_real_run(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    many, down = cards(33, verbs="unknown"), cards(2, {0: POLLING, 1: POLLING}, verbs="unknown")
    is_told("rdma_too_many", run_with(tmp_path / "many", ONLY, many, many))
    (tmp_path / "down").mkdir()
    is_told("rdma_unused", run_with(tmp_path / "down", ONLY, down, down))


def test_what_is_compared_with_other_runs_are_rate_state_firmware_and_pcie(tmp_path: Path) -> None:
    told = {
        (trait.kind, trait.name): trait.value
        for trait in rdma.record(read(write(tmp_path, cards(1))), Job("", 1, "", ()))
    }
    assert told["link", "mlx5_0:1 Gb/s"] == "400.0" and told["link", "mlx5_0:1 state"] == "ACTIVE"
    assert told["software", "mlx5_0 firmware"] == "28.39.2048" and ("link", "mlx5_0 PCIe") in told
