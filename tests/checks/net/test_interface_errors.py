"""net.interface_errors: what it says of counters that are made up. For real ones see test_interface_errors_hosts.py."""

from typing import Any

import pytest

from preflight import testing
from preflight.checks.net import interface_errors
from preflight.checks.net.shared.packet_counters import BACKLOG, PROCESSED, Counters

START = {"rx_packets": 1000, "tx_packets": 1000, "rx_errors": 7, "went_down": 2}
ENDED = {**START, "rx_packets": 101_000, "tx_packets": 101_000}
Told = list[tuple[str, str, str | None]]


def counters(interfaces: dict[str, dict[str, int]], host: dict[str, int]) -> Counters:
    return {"interfaces": interfaces, "host": host}


def judged(
    rose: dict[str, int], host: dict[str, int] | None = None, *, size: int = 3, start: Any = None, **settings: float
) -> list[dict[str, Any]]:
    """Of nodes whose eth0 has carried 100,000 packets each way; on node-1 other counters rose, too."""
    start = start or counters({"eth0": START}, {"Tcp OutSegs": 10})
    after = {rank: {"counters": counters({"eth0": ENDED}, {"Tcp OutSegs": 90_010})} for rank in range(size)}
    sick = {key: ENDED.get(key, 0) + rose.get(key, 0) for key in {*ENDED, *rose}}
    after[1] = {"counters": counters({"eth0": sick}, {"Tcp OutSegs": 90_010, **(host or {})})}
    before = {rank: {"counters": start} for rank in after}
    nodes = {f"node-{rank}": [rank] for rank in after}
    return testing.judge(
        interface_errors, after, nodes=nodes, backend="gloo", reads={"net.interfaces": before}, settings=settings
    )


def named(found: list[dict[str, Any]]) -> Told:
    return [(each["severity"], each["code"].rpartition(".")[2], each["where"].get("node")) for each in found]


@pytest.mark.parametrize(
    ("rose", "host", "told"),
    [
        ({}, {}, []),
        ({"went_down": 1}, {}, [("warn", "went_down", "node-1")]),
        ({"rx_errors": 4, "rx_crc_errors": 4}, {}, [("warn", "damaged", "node-1")]),
        ({"rx_errors": 3}, {}, []),
        ({"rx_errors": 9, "rx_bytes": 10**12}, {}, []),  # within the bit error rate of a sound link
        ({"rx_dropped": 50_000}, {}, []),  # a protocol that nobody there speaks
        ({"rx_missed_errors": 99}, {}, []),
        ({"rx_missed_errors": 100}, {}, []),
        ({"rx_missed_errors": 101}, {}, [("info", "dropped", "node-1")]),
        ({"rx_missed_errors": 1_100, "rx_fifo_errors": 1_100}, {}, [("warn", "dropped", "node-1")]),
        ({"ingress_drops": 3_000}, {}, [("warn", "dropped", "node-1")]),
        ({"queue_drops": 3_000}, {}, [("warn", "dropped", "node-1")]),
        ({"tx_dropped": 300}, {}, [("info", "dropped", "node-1")]),
        ({}, {BACKLOG: 2_000, PROCESSED: 90_000}, [("warn", "dropped", "node-1")]),
        ({}, {BACKLOG: 150, PROCESSED: 9_000_000}, []),  # of the whole host
        ({}, {"Tcp InCsumErrors": 2}, []),
        ({}, {"Tcp InCsumErrors": 2, "Udp InCsumErrors": 1}, [("warn", "checksum", "node-1")]),
        ({}, {"Tcp RetransSegs": 899}, []),
        ({}, {"Tcp RetransSegs": 900}, [("info", "retransmits", None)]),
    ],
)
def test_what_rose(rose: dict[str, int], host: dict[str, int], told: Told) -> None:
    found = judged(rose, host)
    assert named(found) == told
    assert all("{" not in each["fix"] and "expected" in each["message"] for each in found)


def test_where_packets_are_dropped_decides_where_to_look() -> None:
    (ring,) = judged({"rx_missed_errors": 3_000})
    assert "ethtool -G eth0 rx" in ring["fix"] and ring["where"] == {"node": "node-1", "interface": "eth0"}
    assert "3,000 of 103,000 packets (2.91%) in its receive ring of eth0, expected less than 0.10%" in ring["message"]
    (policer,) = judged({"ingress_drops": 3_000})
    assert "remove the policer" in policer["fix"]
    assert named(judged({"queue_drops": 3_000}, dropped_share=0.05)) == [("info", "dropped", "node-1")]


def test_wrong_checksums_name_a_node_only_where_it_alone_of_several_counts_them() -> None:
    (found,) = judged({}, {"Tcp InCsumErrors": 12}, size=2)
    assert found["where"] == {} and found["noticed_by"] == "1"


@pytest.mark.parametrize("start", [None, {"interfaces": {}, "host": {}}])
def test_without_a_first_look_nothing_passes(start: Counters | None) -> None:
    facts = {rank: {"counters": counters({"eth0": ENDED}, {})} for rank in range(2)}
    before = {0: {"counters": counters({"eth0": START}, {})}, 1: {"counters": start}}
    nodes = {"node-0": [0], "node-1": [1]}
    (found,) = testing.judge(interface_errors, facts, nodes=nodes, backend="gloo", reads={"net.interfaces": before})
    assert found["not_measured"] and found["where"] == {"node": "node-1"} and "unknown" in found["message"]


def test_the_legs_of_a_bond_are_judged_each() -> None:
    legs = {"bond0": START, "eth2": START, "eth3": START}
    facts = {rank: {"counters": counters(dict.fromkeys(legs, ENDED), {})} for rank in range(2)}
    facts[1]["counters"]["interfaces"] = {"bond0": ENDED, "eth3": {**ENDED, "went_down": 5}}
    before = {rank: {"counters": counters(legs, {})} for rank in facts}
    nodes = {"node-0": [0], "node-1": [1]}
    found = testing.judge(interface_errors, facts, nodes=nodes, backend="nccl", reads={"net.interfaces": before})
    assert [each["where"]["interface"] for each in found] == ["eth2", "eth3"]
    assert "eth2 is gone" in found[0]["message"] and "lost its link 3 times" in found[1]["message"]
