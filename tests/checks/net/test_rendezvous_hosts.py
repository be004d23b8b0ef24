"""MASTER_ADDR on hosts of their own: names, addresses and links are really wrong."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests import running
from tests.faults import ELSEWHERE
from tests.hosts import Host, cluster, needs_hosts
from tests.running import Finished, Run
from tests.test_hosts import run_on
from tests.test_sound import is_silent

ONLY = ("--only", "net.rendezvous")
PORT = "29513"
BY_NAME = (
    ("--master-addr", "host-a", "--master-port", "29514"),
    ("--rdzv-backend", "c10d", "--rdzv-endpoint", "host-a:29515", "--rdzv-id", "test"),
)
pytestmark = [pytest.mark.hosts, needs_hosts]


@pytest.fixture
def two() -> Iterator[list[Host]]:
    with cluster(2) as hosts:
        yield hosts


@pytest.fixture
def three() -> Iterator[list[Host]]:
    with cluster(3) as hosts:
        yield hosts


def etc(host: Host, file: str, *lines: str) -> None:
    """The file as this host has it in /etc."""
    (Path("/etc/netns") / host.namespace / file).write_text("".join(f"{line}\n" for line in lines))


def known(hosts: Sequence[Host], *, mapped: bool = True) -> list[str]:
    """The lines of /etc/hosts that `cluster` writes."""
    lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{host.address} {host.name}" for host in hosts)]
    return lines + [f"::ffff:{host.address} {host.name}" for host in hosts if mapped]


def without_dns(host: Host, *options: str) -> None:
    """Its DNS server is a machine that nothing comes back from."""
    etc(host, "resolv.conf", "nameserver 10.77.0.200", " ".join(("options", *options)))
    host.run("ip", "neigh", "add", "10.77.0.200", "lladdr", "02:00:00:00:00:99", "dev", "eth0")


def second_address(host: Host) -> str:
    host.run("ip", "addr", "add", "10.77.0.101/24", "dev", "eth0")
    return "10.77.0.101"


def ranks_on(folder: Path, hosts: Sequence[Host], *, midway: Callable[[], None] = lambda: None) -> Finished:
    """One plain rank a host; the first one serves the store, and did so before any rank came. `midway` is done when
    the second host's rank is connected and the last rank has not begun."""
    serve = (
        "import sys, torch.distributed as d;"
        f"s = d.TCPStore('127.0.0.1', {PORT}, is_master=True, wait_for_workers=False);"
        "print(flush=True); sys.stdin.read()"
    )
    run = Run(folder)
    with subprocess.Popen(
        hosts[0].command([sys.executable, "-W", "ignore", "-c", serve]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as store:  # fmt: skip
        assert store.stdin and store.stdout
        store.stdout.readline()
        for rank, host in enumerate(hosts):
            if rank == 2:
                connected(hosts[0], hosts[1])
                midway()
            place = {"RANK": str(rank), "NODE_RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            place |= {"WORLD_SIZE": str(len(hosts)), "MASTER_ADDR": "host-a", "MASTER_PORT": PORT}
            words = [*ONLY, "--report", str(folder), "--deadline", str(running.DEADLINE_S)]
            environ = running.environment(TORCHELASTIC_USE_AGENT_STORE="True", **place)
            run.start(host.command(running.preflight(*words)), environ)
        try:
            return run.finish()
        finally:
            store.stdin.close()


def connected(server: Host, client: Host) -> None:
    """Returns when it is."""
    words = ["ss", "-Htn", "state", "established", f"sport = :{PORT} and dst {client.address}"]
    end = time.monotonic() + running.DEADLINE_S
    while not subprocess.run(server.command(words), capture_output=True, check=True).stdout:
        assert time.monotonic() < end, "it never connected"
        time.sleep(0.05)  # the kernel tells nobody of a connection between two others


def found_as(name: str, finished: Finished) -> str:
    """The message of the first finding, where all is as the fault table says."""
    told = finished.told()
    found = finished.findings()
    fault = ELSEWHERE[name]
    assert fault.is_told_by(found) and len(found) == len(fault.finds), told
    assert finished.report["exit_code"] == fault.exit_code and finished.left_over == [], told
    for finding in found:
        assert fault.culprit.items() <= finding["where"].items(), told
        assert finding["noticed_by"] == fault.noticed_by and "{" not in finding["fix"], told
    return str(found[0]["message"])


@pytest.mark.parametrize("rendezvous", BY_NAME, ids=["static", "c10d"])
def test_two_hosts_with_ipv6_are_sound(rendezvous: Sequence[str], two: list[Host], tmp_path: Path) -> None:
    for number, host in enumerate(two, 1):
        host.run("ip", "-6", "addr", "add", f"fd00:77::{number}/64", "dev", "eth0", "nodad")
        lines = [f"fd00:77::{index} {other.name}" for index, other in enumerate(two, 1)]
        etc(host, "hosts", *known(two), *lines)
    finished = run_on(tmp_path, two, *ONLY, rendezvous=rendezvous)
    is_silent(finished, 4, ["net.rendezvous"])
    summary = finished.check("net.rendezvous")["summary"]
    assert summary.startswith("2 nodes reached host-a:") and summary.endswith(" over eth0"), summary


def test_a_dns_server_that_never_answers_is_told_by_the_host_that_asks_it(two: list[Host], tmp_path: Path) -> None:
    """As torch's store asks, /etc/hosts does not know an IPv4 address."""
    etc(two[0], "hosts", *known(two, mapped=False))
    without_dns(two[0], "timeout:5", "attempts:1")
    message = found_as("reverse_look_up_hangs", ranks_on(tmp_path, two))
    assert "the name of 10.77.0.1 did not end within 4.0 s" in message, message


def test_a_slow_resolver_is_told(two: list[Host], tmp_path: Path) -> None:
    etc(two[1], "nsswitch.conf", "hosts: dns files")
    etc(two[1], "hosts", *known(two), "10.77.0.1 10.77.0.1")
    without_dns(two[1], "timeout:1", "attempts:1")
    found_as("name_resolves_slowly", ranks_on(tmp_path, two))


def test_a_name_that_one_host_does_not_know_is_told(three: list[Host], tmp_path: Path) -> None:
    """It knew it when preflight began."""
    etc(three[1], "nsswitch.conf", "hosts: files")
    forget = ["127.0.0.1 localhost", "10.77.0.2 host-b"]
    found_as("name_unknown", ranks_on(tmp_path, three, midway=lambda: etc(three[1], "hosts", *forget)))


def test_a_silent_address_names_the_host_that_gets_no_answer(three: list[Host], tmp_path: Path) -> None:
    """To another one it says no at once: that harms nobody."""
    address = second_address(three[0])
    for host in three:
        etc(host, "hosts", *known(three), f"{address} host-a")
    three[1].run("iptables", "-A", "OUTPUT", "-d", address, "-j", "DROP")
    three[2].run("iptables", "-A", "OUTPUT", "-d", address, "-j", "REJECT")
    found_as("silent_address", ranks_on(tmp_path, three))


def test_a_silent_ipv6_address_of_which_nobody_knows_whose_fault_it_is(two: list[Host], tmp_path: Path) -> None:
    for number, host in enumerate(two, 1):
        host.run("ip", "-6", "addr", "add", f"fd00:77::{number}/64", "dev", "eth0", "nodad")
        etc(host, "hosts", *known(two), "fd00:77::1 host-a")
        etc(host, "gai.conf", "precedence ::ffff:0:0/96 100")  # IPv4 first
    two[1].run("ip6tables", "-A", "OUTPUT", "-d", "fd00:77::1", "-p", "tcp", "-j", "DROP")
    assert "fd00:77::1" in found_as("silent_ipv6_address", ranks_on(tmp_path, two))


def test_the_line_of_debian_that_makes_a_host_loopback_is_told(two: list[Host], tmp_path: Path) -> None:
    etc(two[1], "hosts", "127.0.0.1 localhost", "127.0.1.1 host-b", *known(two[:1]))
    found_as("own_name_is_loopback", ranks_on(tmp_path, two))


def test_one_host_that_knows_another_address_is_named(tmp_path: Path) -> None:
    with cluster(4) as hosts:
        address = second_address(hosts[0])
        etc(hosts[3], "hosts", *known(hosts[1:]), f"{address} host-a", f"::ffff:{address} host-a")
        found_as("other_address", ranks_on(tmp_path, hosts))


def test_a_host_that_can_open_no_further_connection_is_named(three: list[Host], tmp_path: Path) -> None:
    """Its first one is that of preflight itself."""
    limit = ("-m", "connlimit", "--connlimit-above", "1", "--connlimit-mask", "0", "-j", "DROP")
    three[1].run("iptables", "-A", "OUTPUT", "-p", "tcp", "--syn", "--dport", PORT, *limit)
    found_as("port_unreachable", ranks_on(tmp_path, three))


def test_a_host_behind_a_full_link_is_named(three: list[Host], tmp_path: Path) -> None:
    """Others fill what leaves it: each packet waits for 60 ms."""
    queue = ["tbf", "rate", "10mbit", "burst", "16kb", "latency", "60ms"]
    three[2].run("tc", "qdisc", "add", "dev", "eth0", "root", *queue)
    flood = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM)\nwhile True: s.sendto(bytes(1400), ('10.77.0.2', 9))"
    )
    with subprocess.Popen(three[2].command([sys.executable, "-c", flood])) as filler:
        try:
            finished = ranks_on(tmp_path, three)
        finally:
            filler.kill()
    found_as("full_link", finished)
