"""What is said of made-up nodes; those with real interfaces are in test_interfaces_hosts.py."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preflight import testing
from preflight.check import Skip
from preflight.checks.net import interfaces
from preflight.checks.net.interfaces.interface_table import Facts
from preflight.checks.net.shared import links
from preflight.nccl import interface_rules
from preflight.sdk import addresses
from tests.checks.net.test_chosen import host
from tests.faults import ELSEWHERE

STATES = {addresses.UP | addresses.RUNNING: "up", addresses.UP: "no carrier", 0: "down"}
BACKENDS = pytest.mark.parametrize("backend", ["nccl", "gloo"])
VARIABLES = {"nccl": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}


def node(rank: int, *lines: str, names: str | None = None, own: str | None = None, **more: Any) -> Facts:
    """A node with these interfaces ("eth0 down 10.0.0.1/24"; "#" is its number). `names`: both variables; `own`: the
    address of its name, else that of its first interface but lo. `mtu`, `speed`, `kind`: of interfaces by name. `nccl`:
    its version."""
    entries = host(*(line.replace("#", str(rank + 1)) for line in lines))
    environ = {**(dict.fromkeys(VARIABLES.values(), names) if names is not None else {}), **more.get("environ", {})}
    first = next((entry.text for entry in entries if entry.text and entry.interface != "lo"), None)
    listed: dict[str, links.Interface] = {}
    for entry in entries:
        name = entry.interface.partition(":")[0]
        listed.setdefault(name, {
            "addresses": [], "state": STATES[entry.flags], "mtu": more.get("mtu", {}).get(name, 1500),
            "speed_mbps": more.get("speed", {}).get(name), "kind": more.get("kind", {}).get(name, "ethernet"),
        })  # fmt: skip
        listed[name]["addresses"] += [f"{entry.text}/{entry.prefix}"] if entry.text else []
    taken = {"nccl": interface_rules.by_nccl(entries, environ, lambda _: None, more.get("nccl", "")),
             "gloo": interface_rules.by_gloo(entries, environ, lambda: own or first)}  # fmt: skip
    return {
        "interfaces": listed, "left_out": 0, "chosen": {**taken}, "settings": environ, "files": more.get("files", {}),
        "route": more.get("route", "eth0" if rank else ""), "host": more.get("host", f"host-{rank}"),
        "has_rdma": more.get("has_rdma", False), "nccl": more.get("nccl", ""),
    }  # fmt: skip


LO, ETH0, ETH1, IB0 = "lo 127.0.0.1/8", "eth0 10.0.0.#/24", "eth1 10.1.0.#/24", "ib0 10.2.0.#/24"
DOCKER = "docker0 172.17.0.1/16"


def nodes(size: int, *lines: str, **more: Any) -> dict[int, Facts]:
    return {rank: node(rank, *(lines or (LO, ETH0)), **more) for rank in range(size)}


def judged(facts: Mapping[int, Facts], backend: str = "gloo") -> list[dict[str, Any]]:
    """Where both variables have the same `names`, the backend's own is judged."""
    if backend == "gloo":
        facts = {rank: _without_nccl(reading) for rank, reading in facts.items()}
    found = testing.judge(interfaces, facts, nodes={f"node-{rank}": (rank,) for rank in facts}, backend=backend)
    for finding in found:
        assert "{" not in finding["fix"] and "expected" in finding["message"], finding
    return found


def _without_nccl(reading: Facts) -> Facts:
    names = VARIABLES.values()
    is_both = len({reading["settings"].get(name) for name in names}) == 1
    kept = {name: value for name, value in reading["settings"].items() if not is_both or name != VARIABLES["nccl"]}
    return {**reading, "settings": kept}


def told(facts: Mapping[int, Facts], backend: str = "gloo") -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (finding["severity"], finding["code"].rpartition(".")[2], finding["where"])
        for finding in judged(facts, backend)
    ]


# Sound


CLUSTERS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "plain": ((LO, ETH0), {}),
    "containers": ((LO, "eth0 10.244.#.2/24"), {}),
    "docker": ((LO, ETH0, "docker0 no-carrier 172.17.0.1/16"), {}),
    "docker_runs": ((LO, ETH0, DOCKER, "virbr0 192.168.122.1/24"), {}),
    "kubernetes": ((LO, ETH0, "flannel.1 10.244.#.0/32", "cni0 10.244.#.1/24", "cali1 fe80::ecee:eeff:feee:eeee/64",
                    "veth7 fe80::1/64"), {"kind": {"cali1": "virtual", "veth7": "virtual"}}),
    "bond": ((LO, "bond0 10.0.0.#/24", "bond0.7 10.7.0.#/24"), {"route": "bond0"}),
    "infiniband": ((LO, ETH0, IB0), {"kind": {"ib0": "infiniband"}, "has_rdma": True}),
    "told": ((LO, ETH0, ETH1), {"names": "eth1"}),
    "told_all_but": ((LO, ETH0, DOCKER), {"environ": {"NCCL_SOCKET_IFNAME": "^docker,lo"}}),
    "ipv6": ((LO, "lo ::1/128", "eth0 fd00::#/64", "eth0 fe80::1/64"), {}),
    "both": ((LO, ETH0, "eth0 fd00::#/64", "eth0 fe80::1/64"), {}),
    "several_addresses": ((LO, ETH0, "eth0 10.0.0.10#/24", "eth0:vip 10.0.0.20#/24"), {}),
    "routed": ((LO, "eth0 10.0.#.1/24"), {}),
    "point_to_point": ((LO, "eth0 10.0.0.#/32"), {}),
    "shared_by_lo": ((LO, "lo 10.100.0.1/32", ETH0), {}),
    "one_fabric": ((LO, ETH0, "ib0 down 10.2.0.#/24"), {"kind": {"ib0": "infiniband"}}),
}  # fmt: skip


@BACKENDS
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_sound_cluster_gives_no_finding(name: str, size: int, backend: str) -> None:
    lines, more = CLUSTERS[name]
    assert judged(nodes(size, *lines, **more), backend) == []


@BACKENDS
def test_interfaces_may_have_other_names(backend: str) -> None:
    facts = {
        rank: node(rank, LO, f"enp{rank}s0 10.0.0.#/24", route=f"enp{rank}s0" if rank else "") for rank in range(4)
    }
    assert judged(facts, backend) == []


@BACKENDS
@pytest.mark.parametrize("names", ["lo", "docker0", "usb0"])
def test_on_one_host_all_may_be_used(names: str, backend: str) -> None:
    lines = (LO, ETH0, DOCKER, "usb0 169.254.3.1/16")
    assert judged(nodes(1, *lines, names=names), backend) == []
    same = {rank: node(0, *lines, names=names, host="one") for rank in range(3)}
    assert judged(same, backend) == []  # containers that share a network


@BACKENDS
def test_thousand_nodes_are_judged_in_a_moment(backend: str) -> None:
    lines = (
        LO,
        "eth0 10.0.#.1/16",
        "docker0 no-carrier 172.17.0.1/16",
        *(f"eth{n} 10.{n}.#.1/16" for n in range(1, 9)),
    )
    facts = {rank: node(rank % 250, *lines, host=str(rank)) for rank in range(250)}
    for rank in range(250, 1024):
        facts[rank] = node(
            rank % 250, *(line.replace(" 10.", f" {10 + rank // 250}.") for line in lines), host=str(rank)
        )
    assert [finding for finding in judged(facts, backend) if finding["severity"] != "info"] == []


def test_a_look_up_that_did_not_end_says_nothing() -> None:
    unknown = {**nodes(3)[1], "chosen": {"nccl": [], "gloo": None}}
    assert judged({**nodes(3), 1: unknown}) == []  # type: ignore[dict-item]  # its own keys


# Nothing to listen on


@BACKENDS
@pytest.mark.parametrize("size", [1, 3])
def test_a_name_that_is_no_interface(size: int, backend: str) -> None:
    facts = {**nodes(size), 0: node(0, LO, ETH0, names="ethO")}
    found, *others = judged(facts, backend)
    assert [finding["severity"] for finding in others] == (["info"] if backend == "nccl" else [])  # gloo's variable
    assert (found["severity"], found["where"]) == ("fail", {"node": "node-0", "variable": VARIABLES[backend]})
    assert "eth0 (10.0.0.1)" in found["message"] and "did you mean eth0?" in found["message"], found


@BACKENDS
def test_where_it_is_so_on_all_nodes_none_is_named(backend: str) -> None:
    found = judged(nodes(4, LO, ETH0, names="ens3"), backend)[0]
    assert found["where"] == {"variable": VARIABLES[backend]} and "the same on all 4 nodes" in found["message"]


@pytest.mark.parametrize(
    ("line", "more", "why"),
    [
        ("eth1 down 10.1.0.1/24", {}, "only eth1 (down)"),
        ("eth1 no-carrier 10.1.0.1/24", {}, "only eth1 (no carrier)"),
        ("eth1 10.1.0.1/24", {"NCCL_SOCKET_FAMILY": "AF_INET6"}, "only eth1 (no IPv6 address)"),
        ("eth2 10.1.0.1/24", {}, "selects no interface of this node"),
        ("eth2 10.1.0.1/24", {"NCCL_SOCKET_IFNAME": "^eth,lo"}, "expected one of eth0 (10.0.0.1) and eth2 (10.1.0.1)"),
    ],
)
def test_why_nccl_takes_none(line: str, more: dict[str, str], why: str) -> None:
    (found,) = judged({0: node(0, LO, ETH0, line, environ={"NCCL_SOCKET_IFNAME": "eth1", **more})}, "nccl")
    assert found["severity"] == "fail" and why in found["message"], found
    assert ("did you mean" in found["message"]) == ("selects no interface" in why), found


def test_an_interface_without_an_address() -> None:
    facts = node(0, LO, ETH0)
    facts["interfaces"]["ib0"] = {"addresses": [], "state": "up", "mtu": 1500, "speed_mbps": None, "kind": ""}
    facts["settings"] = {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "eth0,ib0"}
    facts["chosen"]["nccl"] = []
    assert "ib0 (no address)" in judged({0: facts}, "nccl")[0]["message"]
    assert "ib0 has no address" in judged({0: facts})[0]["message"]


@pytest.mark.parametrize(
    ("line", "more", "variable"),
    [
        (ETH0, {"NCCL_SOCKET_FAMILY": "AF_INET6"}, "NCCL_SOCKET_FAMILY"),
        (ETH0, {"NCCL_COMM_ID": "10.9.0.1:5000", "NCCL_SOCKET_IFNAME": "eth0"}, "NCCL_COMM_ID"),
        ("eth0 down 10.0.0.1/24", {}, None),
    ],
)
def test_other_reasons_why_nccl_takes_none(line: str, more: dict[str, str], variable: str | None) -> None:
    (found,) = judged({0: node(0, "lo down 127.0.0.1/8", line, environ=more)}, "nccl")
    assert found["code"] == "net.interfaces.none" and found["where"].get("variable") == variable, found


def test_a_name_that_is_no_address_of_this_host() -> None:
    (found,) = judged({**nodes(3), 1: node(1, LO, ETH0, own="0.0.0.0")})
    assert found["where"] == {"node": "node-1"} and "gloo listens on 0.0.0.0" in found["message"]


def test_glooss_variable_is_an_info_on_nccl_and_the_reverse_is_a_warning() -> None:
    facts = {**nodes(3), 1: node(1, LO, ETH0, environ={"GLOO_SOCKET_IFNAME": "eth9"})}
    assert told(facts, "nccl") == [("info", "none", {"node": "node-1", "variable": "GLOO_SOCKET_IFNAME"})]
    facts = {**nodes(3), 1: node(1, LO, ETH0, environ={"NCCL_SOCKET_IFNAME": "eth9"})}
    assert told(facts, "gloo") == [("warn", "none", {"node": "node-1", "variable": "NCCL_SOCKET_IFNAME"})]
    bridge = nodes(3, LO, ETH0, DOCKER, environ={"NCCL_SOCKET_IFNAME": "docker0"})
    where = {"interface": "docker0", "variable": "NCCL_SOCKET_IFNAME"}
    assert told(bridge, "gloo") == [("warn", "shared", where)]
    assert told({0: bridge[0]}, "gloo") == [], "on one host all may be used"


def test_the_file_is_named_that_sets_the_variable() -> None:
    more: dict[str, Any] = {
        "environ": {"NCCL_SOCKET_IFNAME": "eth9"},
        "files": {"NCCL_SOCKET_IFNAME": "/etc/nccl.conf"},
    }
    (found,) = told({**nodes(3), 1: node(1, LO, ETH0, **more)}, "nccl")
    assert found[2] == {"node": "node-1", "variable": "NCCL_SOCKET_IFNAME", "file": "/etc/nccl.conf"}


# What other hosts cannot reach


def one_odd(*lines: str, size: int = 4, **more: Any) -> dict[int, Facts]:
    """Node 1 has these interfaces, the others lo and eth0."""
    return {**nodes(size), 1: node(1, *lines, **more)}


@pytest.mark.parametrize("state", ["down", "no-carrier"])
def test_gloo_takes_an_interface_that_is_down(state: str) -> None:
    facts = one_odd(LO, ETH0, f"eth1 {state} 10.1.0.2/24", names="eth1", environ={"NCCL_SOCKET_IFNAME": ""})
    where = {"node": "node-1", "interface": "eth1", "variable": "GLOO_SOCKET_IFNAME"}
    assert told(facts) == [("fail", "down", where)]
    by_name = one_odd(LO, f"eth1 {state} 10.1.0.2/24", ETH0, own="10.1.0.2")
    assert told(by_name) == [("fail", "down", {"node": "node-1", "interface": "eth1"})]
    assert told(by_name, "nccl") == []


@pytest.mark.parametrize("state", ["down", "no-carrier"])
def test_nccl_took_an_interface_that_is_down_before_2_28(state: str) -> None:
    lines = (LO, f"eno1 {state} 192.168.1.7/24", ETH0)
    where = {"node": "node-2", "interface": "eno1"}
    for version in ("2.21.5", "2.27.7"):
        facts = {**nodes(4, nccl=version), 2: node(2, *lines, nccl=version)}
        (found,) = judged(facts, "nccl")
        assert (found["severity"], found["code"], found["where"]) == ("fail", "net.interfaces.down", where)
        assert found["message"].startswith(f"NCCL {version} takes eno1 (192.168.1.7), which "), found
    for version in ("2.28.3", "2.30.7", ""):
        assert told({**nodes(4, nccl=version), 2: node(2, *lines, nccl=version)}, "nccl") == []


@BACKENDS
def test_loopback_among_several_hosts(backend: str) -> None:
    where = {"interface": "lo", "variable": VARIABLES[backend]}
    assert told(nodes(3, LO, ETH0, names="lo"), backend) == [("fail", "loopback", where)]
    assert told(one_odd(LO, ETH0, names="lo"), backend) == [("fail", "loopback", {"node": "node-1", **where})]
    assert judged(one_odd(LO, ETH0, names="lo"), backend)[0]["fix"].count("(eth0)") == 1


def test_loopback_by_the_hosts_own_name_is_told_by_net_rendezvous() -> None:
    assert told(one_odd(LO, ETH0, own="127.0.1.1")) == told(one_odd(LO, ETH0, own="127.0.1.1"), "nccl") == []


def test_nccl_falls_back_on_loopback() -> None:
    assert told(one_odd(LO, "eth0 down 10.0.0.2/24"), "nccl") == [
        ("fail", "loopback", {"node": "node-1", "interface": "lo"})
    ]


@BACKENDS
def test_one_address_on_all_hosts(backend: str) -> None:
    where = {"interface": "docker0", "variable": VARIABLES[backend]}
    (found,) = judged(nodes(5, LO, ETH0, DOCKER, names="docker0"), backend)
    assert (found["severity"], found["code"], found["where"]) == ("fail", "net.interfaces.shared", where)
    assert "on node-0, node-1, node-2 and 2 more, an address that all 5 hosts have" in found["message"]
    assert "(eth0)" in found["fix"]


@BACKENDS
def test_an_address_that_others_have_but_do_not_take(backend: str) -> None:
    """A connection to it ends on the host that it comes from, also where docker0 has no carrier there."""
    facts = nodes(4, LO, ETH0, "docker0 no-carrier 172.17.0.1/16")
    facts[1] = node(1, LO, DOCKER, own="172.17.0.1")
    assert told(facts, backend) == [("fail", "shared", {"node": "node-1", "interface": "docker0"})]


@BACKENDS
def test_two_nodes_with_one_address_are_both_told(backend: str) -> None:
    facts = {**nodes(6), 4: node(2, LO, ETH0, host="host-4")}
    (found,) = judged(facts, backend)
    assert (
        found["where"] == {"interface": "eth0"}
        and "on node-2 and node-4, an address that 2 hosts have" in found["message"]
    )


@BACKENDS
@pytest.mark.parametrize("name", ["docker0", "virbr0", "br-0123456789ab", "veth1234567", "lxcbr0", "cni-podman0"])
def test_a_bridge_of_containers(name: str, backend: str) -> None:
    """NCCL would take lo before virbr0, and fail."""
    facts = one_odd(LO, f"{name} 172.30.0.1/16", names=name)
    where = {"node": "node-1", "interface": name, "variable": VARIABLES[backend]}
    assert told(facts, backend) == [("warn", "internal", where)]


@BACKENDS
@pytest.mark.parametrize("name", ["br0", "br-ex", "brdata", "vmbr0", "flannel.1", "cilium_host", "tailscale0"])
def test_a_bridge_or_overlay_that_may_lead_to_the_others(name: str, backend: str) -> None:
    facts = {rank: node(rank, LO, f"{name} 10.0.0.#/24", route=name if rank else "") for rank in range(4)}
    assert told(facts, backend) == []


@BACKENDS
@pytest.mark.parametrize("line", ["eth0 169.254.7.8/16", "eth0 fe80::1/64"])
def test_a_link_local_address(line: str, backend: str) -> None:
    where = {"node": "node-1", "interface": "eth0"}
    facts = {**nodes(4, "lo 127.0.0.1/8", line.replace("7.8", "7.#").replace("::1", "::#"))}
    assert [found[:2] for found in told(facts, backend)] == [("warn", "link_local")]
    same = nodes(4, LO, line)
    for of_rank in same.values():
        of_rank["interfaces"]["eth0"]["addresses"] = ["fe80::1/64"]  # each on a link of its own
    assert ":" not in line or [found[1] for found in told(same, backend)] == ["link_local"]
    if ":" not in line:
        assert told(one_odd(LO, line), backend) == [("warn", "link_local", where)]


def test_gloo_joins_the_ranks_by_each_of_its_list() -> None:
    lines = (LO, ETH0, ETH1, DOCKER)
    where = {"interface": "docker0", "variable": "GLOO_SOCKET_IFNAME"}
    assert told(nodes(3, *lines, names="eth1,docker0")) == [("fail", "shared", where)]
    assert told(nodes(3, *lines, names="eth0,eth1")) == []
    where["variable"] = "NCCL_SOCKET_IFNAME"
    assert told(nodes(3, *lines, names="eth1,docker0"), "nccl") == [("info", "second_interface", where)]
    where["interface"] = "lo"
    assert told(nodes(3, *lines, names="eth1,lo"), "nccl") == [("fail", "loopback", where)]  # in the host's order


# Between nodes


def test_a_node_that_lost_its_ipv4_address() -> None:
    facts = {rank: node(rank, LO, ETH0, "eth0 fd00::#/64", "eth0 fe80::#/64") for rank in range(4)}
    facts[1] = node(1, LO, "eth0 fd00::2/64", "eth0 fe80::2/64")
    where = {"node": "node-1", "interface": "eth0"}
    assert told(facts) == [("fail", "family", where)]
    assert told(facts, "nccl") == [("warn", "family", where)]  # they can connect
    facts[2] = node(2, LO, ETH0, "eth0 fe80::3/64")
    assert told(facts, "nccl") == [("fail", "family", where)]  # one cannot


def test_one_family_against_the_other_names_nobody() -> None:
    facts = {0: node(0, LO, ETH0), 1: node(1, LO, "eth0 fd00::2/64")}
    (found,) = judged(facts)
    assert found["where"] == {"interface": "eth0"} and "IPv4 on node-0 and IPv6 on node-1" in found["message"]


def test_a_node_whose_infiniband_is_down() -> None:
    kind: dict[str, Any] = {"kind": {"ib0": "infiniband"}, "route": "eth0"}
    facts = nodes(4, LO, ETH0, IB0, **kind)
    facts[1] = node(1, LO, ETH0, "ib0 down 10.2.0.2/24", **kind)
    (found,) = judged(facts, "nccl")
    assert (found["severity"], found["where"]) == ("warn", {"node": "node-1", "interface": "eth0"})
    assert "10.2.0.0/24 as on 3 of 4 nodes; its ib0 is in that, and is down" in found["message"]
    assert found["fix"].startswith("On that node: ip link set ib0 up;")
    facts[1] = node(1, LO, ETH0, **kind)
    (found,) = judged(facts, "nccl")
    assert found["code"] == "net.interfaces.different_network" and "(ib0 there)" in found["message"]


@BACKENDS
def test_a_node_that_takes_another_network_though_it_is_in_the_usual_one(backend: str) -> None:
    facts = nodes(4, LO, ETH0, ETH1)
    facts[1] = node(1, LO, "eth0 10.1.0.2/24", "eth1 10.0.0.2/24", route="")
    assert told(facts, backend) == [("warn", "different_network", {"node": "node-1", "interface": "eth0"})]
    assert judged(facts, backend)[0]["fix"].startswith("ip -br addr on each node; set ")
    two = {0: facts[0], 1: facts[1]}
    assert told(two, backend) == [("warn", "different_network", {"interface": "eth0"})]


@BACKENDS
def test_a_node_in_another_network_may_be_behind_a_router(backend: str) -> None:
    facts = one_odd(LO, "eth0 10.9.0.2/24")
    assert told(facts, backend) == [("info", "different_network", {"node": "node-1", "interface": "eth0"})]
    facts[2] = node(2, LO, "eth0 10.9.0.3/24")
    assert told(facts, backend) == []  # half and half


@BACKENDS
def test_nodes_behind_a_router_are_compared_all_the_same(backend: str) -> None:
    """Two racks, a network each; one node of the smaller one has a slow interface, and one another MTU."""
    racks: dict[int, dict[str, Any]] = {rank: {"mtu": {"eth0": 9000}, "speed": {"eth0": 100_000}} for rank in range(8)}
    sound = {rank: node(rank, LO, f"eth0 10.0.{1 + rank // 5}.#/24", **more) for rank, more in racks.items()}
    assert [found[:2] for found in told(sound, backend)] == [("info", "different_network")]
    racks[6]["mtu"], racks[7]["speed"] = {}, {"eth0": 1000}
    facts = {rank: node(rank, LO, f"eth0 10.0.{1 + rank // 5}.#/24", **more) for rank, more in racks.items()}
    network, *found = told(facts, backend)
    assert network[:2] == ("info", "different_network")
    wheres = [{"node": name, "interface": "eth0"} for name in ("node-6", "node-7")]
    assert found == [("warn", "mtu", wheres[0]), ("warn", "speed", wheres[1])]


@BACKENDS
def test_the_odd_mtu_is_named_by_majority(backend: str) -> None:
    facts = {**nodes(4, mtu={"eth0": 9000}), 1: node(1, LO, ETH0)}
    (found,) = judged(facts, backend)
    assert (found["severity"], found["where"]) == ("warn", {"node": "node-1", "interface": "eth0"})
    assert found["message"] == "the MTU of eth0 (10.0.0.2) is 1,500, expected 9,000 as on 3 of 4 nodes"
    assert "ip link set eth0 mtu 9000" in found["fix"] and "if the switch port carries it" in found["fix"]


def test_one_mtu_against_another_names_nobody() -> None:
    (found,) = judged({0: node(0, LO, ETH0, mtu={"eth0": 9000}), 1: node(1, LO, ETH0)})
    assert found["where"] == {"interface": "eth0"} and "9,000 on node-0, 1,500 on node-1" in found["message"]
    assert "if the switch port carries it" in found["fix"] and "CNI" in found["fix"]


def test_the_slower_interface_is_named() -> None:
    fast: dict[str, Any] = {"speed": {"eth0": 100_000}}
    slow: dict[str, Any] = {"speed": {"eth0": 10_000}}
    facts = {**nodes(4, **fast), 1: node(1, LO, ETH0, **slow)}
    where = {"node": "node-1", "interface": "eth0"}
    assert told(facts) == told(facts, "nccl") == [("warn", "speed", where)]
    assert ELSEWHERE["speed_unlike"].is_told_by(judged(facts))
    assert judged(facts)[0]["message"] == "eth0 (10.0.0.2) runs at 10 Gb/s, expected 100 Gb/s as on 3 of 4 nodes"
    facts[1] = node(1, LO, ETH0, has_rdma=True, **slow)
    assert told(facts, "nccl") == [("info", "speed", where)]
    assert told({**nodes(4, **slow), 1: node(1, LO, ETH0, **fast)}) == []  # faster
    assert told({**nodes(4, **fast), 1: node(1, LO, ETH0)}) == []  # not known
    assert told({0: node(0, LO, ETH0, **fast), 1: node(1, LO, ETH0, **slow)}) == []  # one against one


@pytest.mark.parametrize(
    ("environ", "severity"),
    [
        ({"NCCL_IB_DISABLE": "1"}, "warn"),
        ({"NCCL_NET": "socket"}, "warn"),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, "warn"),
        ({"NCCL_IB_DISABLE": "0"}, "info"),
        ({"NCCL_NET": "IB"}, "info"),
        ({"NCCL_NET": "AWS Libfabric", "NCCL_IB_DISABLE": "1"}, "info"),
    ],
    ids=str,
)
def test_the_data_goes_over_sockets_where_rdma_is_off(environ: dict[str, str], severity: str) -> None:
    more: dict[str, Any] = {"has_rdma": True, "environ": environ}
    facts = {**nodes(4, LO, ETH0, speed={"eth0": 100_000}, **more), 1: node(1, LO, ETH0, speed={"eth0": 1000}, **more)}
    assert [found[0] for found in told(facts, "nccl")] == [severity]
    bridge = nodes(4, LO, ETH0, "br-0123456789ab 172.18.0.1/16", **more)
    assert [found[1] for found in told(bridge, "nccl")] == (["second_interface"] if severity == "warn" else [])


def test_mtu_of_another_fabric_is_not_compared() -> None:
    facts = nodes(4, LO, IB0, mtu={"ib0": 2044}, kind={"ib0": "infiniband"}, route="")
    facts[1] = node(1, LO, ETH0)
    assert [found[1] for found in told(facts, "nccl")] == ["different_network"]


@BACKENDS
def test_another_route_to_master_is_an_info_unless_it_was_asked_for(backend: str) -> None:
    facts = {rank: node(rank, LO, ETH0, ETH1, route="eth1" if rank else "") for rank in range(4)}
    (found,) = judged(facts, backend)
    assert (found["severity"], found["where"]) == ("info", {"interface": "eth0"})
    assert "on node-1, node-2 and node-3, but the route to MASTER_ADDR uses eth1" in found["message"]
    assert found["fix"].endswith(f"{VARIABLES[backend]}=eth1 on all nodes.")
    asked = {rank: node(rank, LO, ETH0, ETH1, names="eth0", route="eth1" if rank else "") for rank in range(4)}
    assert judged(asked, backend) == []


def test_nccl_also_takes_a_bridge_that_all_hosts_have() -> None:
    lines = (LO, ETH0, "br-0123456789ab 172.18.0.1/16")
    assert told(nodes(4, *lines), "nccl") == [("info", "second_interface", {"interface": "br-0123456789ab"})]
    assert told(nodes(4, *lines, has_rdma=True), "nccl") == told(nodes(4, *lines), "gloo") == []
    assert told(nodes(4, *lines, speed={"eth0": 100_000}), "nccl") == []  # the faster alone


# What the kernel says


def test_what_sysfs_says_of_an_interface(tmp_path: Path) -> None:
    """lo, as that is here: of a card by another one's files."""
    (tmp_path / "lo").mkdir()
    for file, text in {"ifindex": "1", "type": "1", "speed": "25000", "uevent": "INTERFACE=lo\nIFINDEX=1\n"}.items():
        (tmp_path / "lo" / file).write_text(f"{text}\n")
    entries = [entry for entry in addresses.listed() if entry.interface == "lo"]

    def read(**files: str) -> links.Interface:
        for file, text in files.items():
            (tmp_path / "lo" / file).write_text(f"{text}\n")
        return links.read(entries, ["lo"], str(tmp_path))[0]["lo"]

    seen = read()
    assert (seen["state"], seen["mtu"], seen["speed_mbps"], seen["kind"]) == ("up", 65536, 25000, "virtual")
    assert "127.0.0.1/8" in seen["addresses"]
    os.symlink("/", tmp_path / "lo" / "device")
    assert read(speed="-1")["speed_mbps"] is None and read()["kind"] == "ethernet"
    assert read(speed="4294967295")["speed_mbps"] is None  # unknown, on old kernels
    assert read(type="32")["kind"] == "infiniband" and read(type="772")["kind"] == "loopback"
    assert read(type="1", uevent="DEVTYPE=bond\nIFINDEX=1")["kind"] == "bond"
    other = read(speed="25000", ifindex="7")  # the files of another network namespace
    assert (other["kind"], other["speed_mbps"], other["mtu"]) == ("", None, 65536)


def test_the_ends_of_containers_are_counted_only(tmp_path: Path) -> None:
    (tmp_path / "lo").mkdir()
    (tmp_path / "lo" / "ifindex").write_text("1")
    entries = [entry._replace(text=entry.text and "fe80::1") for entry in addresses.listed() if entry.interface == "lo"]
    assert links.read(entries, [], str(tmp_path)) == ({}, 1)
    assert links.read(entries, ["lo"], str(tmp_path))[1] == 0


def test_a_node_with_very_many_interfaces(tmp_path: Path) -> None:
    """What was named is always told of."""
    entries = host(*(f"made-up{number} 10.0.{number}.1/24" for number in range(70)))
    found, left_out = links.read(entries, ["made-up69"], str(tmp_path))
    assert (len(found), left_out) == (links.MOST, 6) and "made-up69" in found and "made-up0" in found


def test_where_interfaces_may_not_be_listed_it_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(addresses, "listed", refuse)
    ctx: Any = SimpleNamespace(doing=lambda _: None, environ={}, endpoint=None)
    with pytest.raises(Skip, match="cannot be listed: Operation not permitted"):
        interfaces.measure(ctx)


def test_clones_of_a_machine_are_two_hosts() -> None:
    """One boot id and one namespace's number, and other addresses."""
    here = addresses.listed()
    other = [entry._replace(text="10.0.0.7") if entry.text == "127.0.0.1" else entry for entry in here]
    assert links.host(here) == links.host(here[::-1]) != links.host(other)


def test_no_rdma_device_is_no_error(tmp_path: Path) -> None:
    assert not links.has_rdma(str(tmp_path)) and not links.has_rdma(str(tmp_path / "none"))
    (tmp_path / "mlx5_0").mkdir()
    assert links.has_rdma(str(tmp_path))


def test_the_kernel_knows_the_address_towards_a_place_that_it_can_reach() -> None:
    assert links.towards(socket.AF_INET, ("127.0.0.1", 1)) == "127.0.0.1"
    assert links.towards(socket.AF_INET, ("300.0.0.1", 1)) == ""


def test_without_namespaces_a_host_is_told_by_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def readlink(path: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr("os.readlink", readlink)
    assert len(links.host([])) == 16
