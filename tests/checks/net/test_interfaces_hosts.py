"""Interfaces of hosts made of network namespaces. NCCL's choice is judged on what `measure` reads there, since the
facts hold both backends' choices: NCCL itself needs GPUs."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.checks.net import interfaces
from preflight.checks.net.interfaces.interface_table import Facts
from tests import running
from tests.faults import ELSEWHERE
from tests.hosts import Host, known, needs_hosts
from tests.on_hosts import found_as, ranks_on
from tests.test_sound import is_silent

ONLY = ("--only", "net.interfaces")
MEASURE = """
import json, os, sys, types
from preflight.checks.net import interfaces
job, endpoint = types.SimpleNamespace(backend="nccl"), ("host-a", 29500)
ctx = types.SimpleNamespace(job=job, endpoint=endpoint, environ=dict(os.environ), doing=lambda *_: None)
print(json.dumps(interfaces.measure(ctx)))
"""
Found = list[dict[str, Any]]
pytestmark = [pytest.mark.hosts, needs_hosts]


def measured(hosts: Sequence[Host], *environ: Mapping[str, str]) -> dict[int, Facts]:
    """What `measure` says on each. `environ`: of each host, or one for all."""
    given = environ or ({},)
    return {rank: json.loads(on(host, MEASURE, given[rank % len(given)])) for rank, host in enumerate(hosts)}


def on(host: Host, script: str, environ: Mapping[str, str] | None = None) -> str:
    """What the script prints on this host, under its name."""
    env = {**running.environment(), "HOME": "/none", **(environ or {})}
    command = host.command([sys.executable, "-c", script])
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60).stdout


def judged(facts: Mapping[int, Facts], backend: str) -> Found:
    nodes = {f"host-{chr(97 + rank)}": (rank,) for rank in facts}
    return testing.judge(interfaces, facts, nodes=nodes, backend=backend)


def told_as(name: str, found: Found) -> str:
    """The message, where all is as the fault table says."""
    fault = ELSEWHERE[name]
    (finding,) = found
    assert fault.is_told_by(found) and finding["noticed_by"] == fault.noticed_by, found
    assert set(finding["where"]) <= {*fault.culprit, "file"} and "{" not in finding["fix"], found
    return str(finding["message"])


def second_network(hosts: Sequence[Host], addresses: Sequence[str]) -> None:
    for host, address in zip(hosts, addresses, strict=True):
        host.second_interface("eth1", address)


ETH1 = ("10.88.0.1/24", "10.88.0.2/24", "10.88.0.3/24")
GLOO_BY_ETH1 = {"GLOO_SOCKET_IFNAME": "eth1"}
BY_ETH1 = {**GLOO_BY_ETH1, "NCCL_SOCKET_IFNAME": "eth1"}


# Sound


def test_hosts_with_many_interfaces_are_sound(three: list[Host], tmp_path: Path) -> None:
    """docker0 is down, the end of a container has a link-local address only, a bond has a slave, a tunnel no speed."""
    for number, host in enumerate(three, 1):
        host.has_ipv6(number)
        host.second_interface("docker0", "172.17.0.1/16")
        host.run("ip", "link", "set", "docker0-end", "down")
        host.second_interface("cali12", f"fe80::ecee:eeff:feee:ee{number}/64")
        host.second_interface(f"enp{number}s0", f"10.99.0.{number}/24")
        host.run("ip", "addr", "add", f"10.77.0.10{number}/24", "dev", "eth0")
    finished = ranks_on(tmp_path, three, *ONLY)
    is_silent(finished, 3, ["net.interfaces"])
    assert finished.check("net.interfaces")["summary"] == "gloo takes eth0 on 3 nodes, MTU 1500, 10 Gb/s"
    facts = measured(three)
    assert judged(facts, "gloo") == judged(facts, "nccl") == []
    assert judged(measured(three, {"NCCL_SOCKET_IFNAME": "^docker,lo,cali"}), "nccl") == []


def test_what_is_measured_is_what_ip_says(three: list[Host]) -> None:
    first, second, _ = three
    first.has_ipv6(1)
    first.second_interface("ib0", "10.1.0.1/24")
    first.second_interface("eth9", "10.9.0.1/24")
    first.run("ip", "link", "set", "eth9", "mtu", "9000", "down")
    second.run("ip", "link", "set", "dev", "eth0", "down")
    facts = measured(three[:2])
    for host, of_rank in zip(three, facts.values(), strict=False):
        said = {link["ifname"]: link for link in json.loads(host.run("ip", "-j", "addr"))}
        assert {name: link["mtu"] for name, link in of_rank["interfaces"].items()} == {
            name: said[name]["mtu"] for name in of_rank["interfaces"]
        }
        for name, link in of_rank["interfaces"].items():
            listed = {f"{entry['local']}/{entry['prefixlen']}" for entry in said[name]["addr_info"]}
            assert set(link["addresses"]) == listed, name
            flags = said[name]["flags"]
            state = "down" if "UP" not in flags else "no carrier" if "NO-CARRIER" in flags else "up"
            assert link["state"] == state, (name, flags)
    assert [entry["interface"] for entry in facts[0]["chosen"]["nccl"] or []] == ["ib0", "ib0-end"]
    assert facts[0]["route"] == "", "to itself"
    assert facts[0]["chosen"]["gloo"] == [{"interface": "eth0", "address": "10.77.0.1"}]
    assert [entry["interface"] for entry in facts[1]["chosen"]["nccl"] or []] == ["lo"]
    assert (
        len({of_rank["host"] for of_rank in facts.values()}) == 2 and measured(three[:1])[0]["host"] == facts[0]["host"]
    )


# Whole runs


def test_docker0_everywhere_is_told_before_gloo_breaks(three: list[Host], tmp_path: Path) -> None:
    for host in three:
        host.second_interface("docker0", "172.17.0.1/16")
    finished = ranks_on(tmp_path, three, *ONLY, environ=[{"GLOO_SOCKET_IFNAME": "docker0"}] * 3)
    assert "docker0 (172.17.0.1) on host-a, host-b and host-c" in found_as("docker0_everywhere", finished)
    told_as("docker0_everywhere_nccl", judged(measured(three, {"NCCL_SOCKET_IFNAME": "docker0"}), "nccl"))


def test_a_name_that_matches_nothing_on_one_host(two: list[Host], tmp_path: Path) -> None:
    finished = ranks_on(tmp_path, two, *ONLY, environ=[{}, {"GLOO_SOCKET_IFNAME": "ethO"}])
    assert "did you mean eth0?" in found_as("interface_unknown", finished)


def test_one_mtu_of_three(three: list[Host], tmp_path: Path) -> None:
    three[2].run("ip", "link", "set", "eth0", "mtu", "1400")
    message = found_as("mtu_unlike", ranks_on(tmp_path, three, *ONLY))
    assert message == "the MTU of eth0 (10.77.0.3) is 1,400, expected 1,500 as on 2 of 3 nodes"


def test_what_nccl_would_take_is_told_on_gloo(three: list[Host], tmp_path: Path) -> None:
    for host in three:
        host.second_interface("docker0", "172.17.0.1/16")
    names = [{"NCCL_SOCKET_IFNAME": interface} for interface in ("docker0", "ens9", "docker0")]
    finished = ranks_on(tmp_path, three, *ONLY, environ=names)
    none, shared = finished.findings()
    told_as("nccl_unknown_on_gloo", [none])
    told_as("nccl_bridge_on_gloo", [shared])
    assert "on host-a and host-c, an address that all 3 hosts have" in shared["message"], finished.told()
    assert finished.report["exit_code"] == 0 and finished.left_over == [], finished.told()


def test_another_route_to_master_addr_is_an_info(two: list[Host], tmp_path: Path) -> None:
    """The hosts meet over eth0, by the address; gloo takes eth1, by the host's own name."""
    second_network(two, ETH1[:2])
    mapped = [line for line in known(two) if line.startswith("::ffff:")]
    for host in two:
        host.etc("hosts", "127.0.0.1 localhost", "10.88.0.1 host-a", "10.88.0.2 host-b", *mapped)
    row = ELSEWHERE["other_route"]
    finished = ranks_on(tmp_path, two, *ONLY, master=two[0].address)
    found = finished.findings(finds=row.finds)
    assert "gloo takes eth1 on host-b, but the route to MASTER_ADDR uses eth0" in told_as("other_route", found)


def test_two_cards_in_one_network(three: list[Host], tmp_path: Path) -> None:
    for number, host in enumerate(three, 1):
        host.second_interface("eth1", f"10.77.0.10{number}/24")
    row = ELSEWHERE["two_cards_in_one_network"]
    finished = ranks_on(tmp_path, three, *ONLY, environ=[{"GLOO_SOCKET_IFNAME": "eth1"}] * 3)
    message = told_as("two_cards_in_one_network", finished.findings(finds=row.finds))
    assert "uses eth0, which is in the same network 10.77.0.0/24; expected" in message, finished.told()


def test_an_interface_that_nccl_takes_beside_the_right_one(two: list[Host], tmp_path: Path) -> None:
    for host in two:
        host.second_interface("pod0", "10.200.0.1/24")
    path = os.pathsep.join(map(str, (running.ROOT / "tests" / "nccl_at_work", running.ROOT, running.PLUGINS)))
    nccl = {"PYTHONPATH": path, "PREFLIGHT_TEST_NCCL": str(tmp_path), "NCCL_CONF_FILE": "/dev/null"}
    row = ELSEWHERE["also_shared"]
    finished = ranks_on(tmp_path, two, *ONLY, environ=[nccl] * 2)
    found = finished.findings(finds=row.finds)
    message = told_as("also_shared", found)
    assert message.startswith("NCCL also takes pod0 (10.200.0.1) on host-a and host-b"), finished.told()


# What measure reads there


def test_a_host_that_falls_back_on_docker0(three: list[Host]) -> None:
    for host in three:
        host.second_interface("docker0", "172.17.0.1/16")
    three[1].run("ip", "addr", "flush", "dev", "eth0")
    told_as("docker0_as_last_resort", judged(measured(three), "nccl"))


def test_two_hosts_with_one_address(three: list[Host]) -> None:
    second_network(three, ("10.88.0.1/24", "10.88.0.2/24", "10.88.0.2/24"))
    message = told_as("one_address_twice", judged(measured(three, BY_ETH1), "gloo"))
    assert "on host-b and host-c, an address that 2 hosts have" in message


def test_containers_of_one_image_with_one_address(two: list[Host]) -> None:
    """All that they list is equal; only their network namespaces are not."""
    for host in two:
        host.run("ip", "addr", "flush", "dev", "eth0")
        host.run("ip", "addr", "add", "10.77.0.9/24", "dev", "eth0")
    (found,) = judged(measured(two), "nccl")
    assert (found["code"], found["where"]) == ("net.interfaces.shared", {"interface": "eth0"}), found


def test_an_interface_that_is_down(two: list[Host], tmp_path: Path) -> None:
    """gloo takes it all the same; NCCL does not."""
    second_network(two, ETH1[:2])
    two[1].run("ip", "link", "set", "eth1-end", "down")
    two[1].run("ip", "link", "set", "eth1", "down")
    told_as("interface_down", judged(measured(two, GLOO_BY_ETH1), "gloo"))
    two[1].run("ip", "link", "set", "eth1", "up")
    (tmp_path / "nccl.conf").write_text("NCCL_SOCKET_IFNAME==eth1\nGLOO_SOCKET_IFNAME=eth9\n")
    facts = measured(two, {"NCCL_CONF_FILE": str(tmp_path / "nccl.conf")})
    assert "selects only eth1 (no carrier)" in told_as("interface_unknown_nccl", judged(facts, "nccl"))
    assert set(facts[1]["settings"]) == {"NCCL_SOCKET_IFNAME"}, "gloo does not read NCCL's files"
    assert judged(facts, "nccl")[0]["where"]["file"] == str(tmp_path / "nccl.conf")


def test_loopback_on_several_hosts(two: list[Host]) -> None:
    told_as("interface_is_loopback", judged(measured(two, {"GLOO_SOCKET_IFNAME": "lo"}), "gloo"))


def test_a_name_that_stands_for_no_address(two: list[Host]) -> None:
    two[1].etc("hosts", *known(two[:1]), "0.0.0.0 host-b")
    told_as("own_name_is_no_address", judged(measured(two), "gloo"))


def test_a_host_without_its_ipv4_address(three: list[Host]) -> None:
    second_network(three, ETH1)
    three[1].run("ip", "addr", "flush", "dev", "eth1")
    three[1].run("ip", "-6", "addr", "add", "fd00:88::2/64", "dev", "eth1", "nodad")
    told_as("interface_without_ipv4", judged(measured(three, GLOO_BY_ETH1), "gloo"))


@pytest.mark.parametrize(
    ("name", "interface", "address"),
    [
        ("bridge_of_containers", "docker0", "172.18.0.1/16"),
        ("link_local_address", "usb0", "169.254.3.1/16"),
        ("other_network", "eth1", "10.88.0.2/24"),
    ],
)
def test_one_host_with_another_interface(name: str, interface: str, address: str, three: list[Host]) -> None:
    three[1].second_interface(interface, address)
    told_as(name, judged(measured(three, {}, {"GLOO_SOCKET_IFNAME": interface}, {}), "gloo"))


def test_a_host_that_does_not_find_its_own_name_in_time_is_a_skip(two: list[Host]) -> None:
    two[1].etc("nsswitch.conf", "hosts: files dns")
    two[1].etc("hosts", *known(two[:1]))
    two[1].has_no_dns("timeout:9", "attempts:2")
    patience = "from preflight.nccl import interface_rules; interface_rules.PATIENCE_S = 0.3\n"
    gloo = MEASURE.replace('"nccl"', '"gloo"').replace("print(", "try: print(").rstrip()
    skip = "except Exception as skip: print(json.dumps({'why': f'{type(skip).__name__}: {skip}', **skip.facts}))"
    facts = json.loads(on(two[1], f"{patience}{gloo}\n{skip}"))
    assert facts["why"].startswith("Skip: looking up the host's own name") and facts["route"] == "eth0", facts
    assert facts["chosen"]["gloo"] is None and facts["chosen"]["nccl"], facts
    assert on(two[1], f"{patience}{MEASURE}"), "with nccl it is measured"
