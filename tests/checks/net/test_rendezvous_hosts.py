"""MASTER_ADDR on hosts of their own: names, addresses and links are really wrong."""

import re
from pathlib import Path

import pytest

from tests.hosts import Host, cluster, known, needs_hosts
from tests.on_hosts import PORT, found_as, ranks_on, run_on
from tests.test_sound import is_silent

ONLY = ("--only", "net.rendezvous")
C10D = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "host-a:29515", "--rdzv-id", "test")
pytestmark = [pytest.mark.hosts, needs_hosts]


def second_address(host: Host) -> str:
    host.run("ip", "addr", "add", "10.77.0.101/24", "dev", "eth0")
    return "10.77.0.101"


@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.more), "plain"])
def test_two_hosts_with_ipv6_are_sound(launcher: str, two: list[Host], tmp_path: Path) -> None:
    for number, host in enumerate(two, 1):
        host.has_ipv6(number)
        lines = [f"fd00:77::{index} {other.name}" for index, other in enumerate(two, 1)]
        host.etc("hosts", *known(two), *lines)
    if launcher == "torchrun":
        is_silent(finished := run_on(tmp_path, two, *ONLY, rendezvous=C10D, ranks=1), 2, ["net.rendezvous"])
    else:
        is_silent(finished := ranks_on(tmp_path, two, *ONLY), 2, ["net.rendezvous"])
    summary = finished.check("net.rendezvous")["summary"]
    assert summary.startswith("2 nodes reached host-a:") and summary.endswith(" over eth0"), summary


@pytest.mark.more
def test_a_dns_server_that_never_answers_is_told_by_the_host_that_asks_it(two: list[Host], tmp_path: Path) -> None:
    """As torch's store asks, /etc/hosts does not know an IPv4 address."""
    two[0].etc("hosts", *known(two, mapped=False))
    two[0].has_no_dns("timeout:1", "attempts:1")
    message = found_as("reverse_look_up_hangs", ranks_on(tmp_path, two, *ONLY, served=True))
    assert re.search(r"the name of 10\.77\.0\.1 took 1(\.\d+)? s", message), message


def test_a_slow_resolver_is_told(two: list[Host], tmp_path: Path) -> None:
    two[1].etc("nsswitch.conf", "hosts: dns files")
    two[1].etc("hosts", *known(two), "10.77.0.1 10.77.0.1")
    two[1].has_no_dns("timeout:1", "attempts:1")
    found_as("name_resolves_slowly", ranks_on(tmp_path, two, *ONLY, served=True))


def test_a_name_that_one_host_does_not_know_is_told(three: list[Host], tmp_path: Path) -> None:
    """It knew it when preflight began."""
    three[1].etc("nsswitch.conf", "hosts: files")
    forget = ["127.0.0.1 localhost", "10.77.0.2 host-b"]
    found_as(
        "name_unknown", ranks_on(tmp_path, three, *ONLY, served=True, midway=lambda: three[1].etc("hosts", *forget))
    )


@pytest.mark.more
def test_a_silent_address_names_the_host_that_gets_no_answer(three: list[Host], tmp_path: Path) -> None:
    """To another one it says no at once: that harms nobody."""
    for number, host in enumerate(three, 1):
        host.has_ipv6(number)
        host.etc("hosts", *known(three), "fd00:77::1 host-a")
        host.etc("gai.conf", "precedence ::ffff:0:0/96 100")  # IPv4 first
    for host, target in zip(three[1:], ("DROP", "REJECT"), strict=True):
        host.run("ip6tables", "-A", "OUTPUT", "-d", "fd00:77::1", "-p", "tcp", "-j", target)
    message = found_as("silent_address", ranks_on(tmp_path, three, *ONLY, served=True, deadline_s=25))
    assert "at fd00:77::1, port" in message, message


def test_the_line_of_debian_that_makes_hosts_loopback_is_told(two: list[Host], tmp_path: Path) -> None:
    for host in two:
        others = [line for line in known(two) if not line.startswith(host.address)]
        host.etc("hosts", f"127.0.1.1 {host.name}", *others)
    finished = ranks_on(tmp_path, two, *ONLY, master=two[0].address, served=True)
    assert "the same on all 2 nodes" in found_as("own_name_is_loopback", finished)


def test_one_host_that_knows_another_address_is_named(tmp_path: Path) -> None:
    with cluster(4) as hosts:
        address = second_address(hosts[0])
        hosts[3].etc("hosts", *known(hosts[1:]), f"{address} host-a", f"::ffff:{address} host-a")
        found_as("other_address", ranks_on(tmp_path, hosts, *ONLY, served=True))


def test_a_host_that_can_open_no_further_connection_is_named(three: list[Host], tmp_path: Path) -> None:
    """Its first one is that of preflight itself."""
    limit = ("-m", "connlimit", "--connlimit-above", "1", "--connlimit-mask", "0", "-j", "DROP")
    three[1].run("iptables", "-A", "OUTPUT", "-p", "tcp", "--syn", "--dport", PORT, *limit)
    found_as("port_unreachable", ranks_on(tmp_path, three, *ONLY, served=True))


def test_a_host_behind_a_full_link_is_named(three: list[Host], tmp_path: Path) -> None:
    with three[2].full_link(three[1]):
        finished = ranks_on(tmp_path, three, *ONLY, master=three[0].address, served=True)
    found_as("full_link", finished)


@pytest.mark.more
def test_a_rank_that_does_not_reach_the_store_says_why(two: list[Host], tmp_path: Path) -> None:
    """torch only says that it has not: here a firewall drops."""
    two[0].refuse(two[1], PORT, "DROP")
    finished = ranks_on(tmp_path, two, *ONLY, deadline_s=15)
    told = finished.told()
    assert [f["code"] for f in finished.findings()] == ["preflight.run.lost"], told
    (own,) = finished.findings(finished.report_named("report.rank-1.json"))
    assert own["code"] == "preflight.run.store_lost" and "10.77.0.1 (timed out after 2.0 s)" in own["message"], told
