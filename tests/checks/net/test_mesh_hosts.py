"""net.mesh on hosts of their own: firewalls, links, addresses and processes are really sick."""

import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.faults import ELSEWHERE
from tests.hosts import Host, cluster, known, needs_hosts
from tests.on_hosts import PORT, found_as, ranks_on
from tests.running import Finished
from tests.test_sound import is_silent

ONLY = ("--only", "net.mesh")
pytestmark = [pytest.mark.hosts, needs_hosts]


@pytest.fixture
def five() -> Iterator[list[Host]]:
    with cluster(5) as hosts:
        yield hosts


def close(host: Host, peer: Host, how: str) -> None:
    """All ephemeral ports, but that of preflight's store."""
    for ports in (f"1024:{int(PORT) - 1}", f"{int(PORT) + 1}:65535"):
        host.refuse(peer, ports, how)


def on_data(host: Host, peer: Host, *target: str) -> None:
    """What this peer says to it, but in answer to preflight's store."""
    words = ["-p", "tcp", "-s", peer.address, "!", "--sport", PORT, "--tcp-flags", "PSH", "PSH"]
    if host.name == "host-a":
        words += ["!", "--dport", PORT]
    host.firewall("INPUT", *words, "-j", *target)


def told_as(finished: Finished, *names: str) -> None:
    """Each finding is that of one row, and there is one for each."""
    found = finished.findings()
    assert len(found) == len(names) and finished.left_over == [], finished.told()
    for name in names:
        row = ELSEWHERE[name]
        of_row = [finding for finding in found if f"{finding['severity']} {finding['code']}" in row.finds]
        mine = [finding for finding in of_row if row.culprit.items() <= finding["where"].items()]
        assert len(mine) == 1 and row.is_told_by(mine) and mine[0]["noticed_by"] == row.noticed_by, finished.told()


def behind(host: Host) -> dict[str, str]:
    """What Slurm says of its switch."""
    pattern = "switch.switch.node"
    return {"SLURM_TOPOLOGY_ADDR": f"spine.leaf-1.{host.name}", "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}


def test_two_hosts_that_are_known_by_ipv6_are_sound(two: list[Host], tmp_path: Path) -> None:
    addresses = [host.has_ipv6(number) for number, host in enumerate(two, 1)]
    names = [f"{address} {host.name}" for address, host in zip(addresses, two, strict=True)]
    for host in two:
        host.etc("hosts", "127.0.0.1 localhost", *names, *(line for line in known(two) if line.startswith("::ffff")))
        host.firewall("INPUT", "-p", "tcp", "!", "--dport", PORT, "--syn", "-j", "DROP")  # of IPv4
    is_silent(ranks_on(tmp_path, two, *ONLY, master=two[0].address), 2, ["net.mesh"])


def test_pairs_that_a_firewall_parts_one_way_are_told_with_how(four: list[Host], tmp_path: Path) -> None:
    a, b, c, d = four
    close(b, a, "DROP")
    close(c, b, "icmp-host-prohibited")
    close(d, c, "tcp-reset")
    close(c, d, "icmp-port-unreachable")
    d.run("ip", "route", "add", "prohibit", b.address)
    names = ["mesh_filtered_pair", "mesh_prohibited_pair", "mesh_refused_pair", "mesh_own_route", "mesh_no_way_back"]
    told_as(ranks_on(tmp_path, four, *ONLY), *names)


def test_pairs_of_which_connections_are_made_and_come_to_nothing(five: list[Host], tmp_path: Path) -> None:
    a, b, c, d, e = five
    on_data(b, a, "REJECT", "--reject-with", "tcp-reset")
    on_data(d, c, "DROP")
    redirect = ["-p", "tcp", "-s", d.address, "-j", "REDIRECT", "--to-ports", "22"]
    e.run("iptables", "-t", "nat", "-A", "PREROUTING", *redirect)
    serve = (
        "import socket; s = socket.create_server(('', 22)); print(flush=True)\n"
        "while True:\n    c, _ = s.accept(); c.sendall(b'SSH-2.0-OpenSSH_9.6\\r\\n' * 4); c.recv(1000); c.close()"
    )
    with subprocess.Popen(e.command([sys.executable, "-c", serve]), stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        try:
            finished = ranks_on(tmp_path, five, *ONLY)
        finally:
            other.kill()
    told_as(finished, "mesh_reset_pair", "mesh_silent_pair", "mesh_stranger")


def test_a_host_that_nobody_reaches_and_one_with_a_slow_link(five: list[Host], tmp_path: Path) -> None:
    five[1].firewall("INPUT", "-p", "tcp", "!", "--dport", "29500", "--syn", "-j", "DROP")
    five[4].slow_down("100mbit")
    told_as(ranks_on(tmp_path, five, *ONLY), "mesh_filtered_node", "mesh_slow_node")


def test_a_black_hole_for_large_packets_names_its_host(three: list[Host], tmp_path: Path) -> None:
    three[1].swallow_large_packets()
    message = found_as("mesh_mtu", ranks_on(tmp_path, three, *ONLY))
    assert "cannot send large messages to 2 of 2 other nodes" in message and "is 1500" in message, message


def lose(host: Host, share: float, *what: str) -> None:
    """This host loses so many of the packets that it receives, at random. A rule for OUTPUT would lose none: TCP is
    told, and sends them later."""
    host.firewall("INPUT", *what, "-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP")


def lost_in_bulk(folder: Path) -> int:
    """What all hosts have resent in the first look."""
    with gzip.open(folder / "facts.jsonl.gz", "rt") as lines:
        facts = [json.loads(line)["facts"] for line in lines]
    sent = [what["sent"] for reading in facts for what in reading.get("pairs", {}).values()]
    return sum(max(0, resent - twice) for _, resent, twice in sent)


@pytest.mark.parametrize(
    "share", [0.03, *(pytest.param(share, marks=pytest.mark.more) for share in (0.005, 0.01, 0.1))]
)
def test_a_host_that_loses_what_it_receives_is_named(share: float, three: list[Host], tmp_path: Path) -> None:
    lose(three[1], share)
    found_as("mesh_loss_in", ranks_on(tmp_path, three, *ONLY, deadline_s=90))


@pytest.mark.more
def test_a_host_that_loses_what_it_sends_is_named(three: list[Host], tmp_path: Path) -> None:
    for host in (three[0], three[2]):
        lose(host, 0.03, "-s", three[1].address)
    found_as("mesh_loss_out", ranks_on(tmp_path, three, *ONLY, deadline_s=90))


def test_a_link_that_loses_packets_one_way_blames_no_host(two: list[Host], tmp_path: Path) -> None:
    lose(two[1], 0.03, "-s", two[0].address)
    found_as("mesh_loss_pair", ranks_on(tmp_path, two, *ONLY, deadline_s=90))


def test_where_all_hosts_lose_packets_none_is_named(three: list[Host], tmp_path: Path) -> None:
    for host in three:
        lose(host, 0.03)
    found_as("mesh_loss_everywhere", ranks_on(tmp_path, three, *ONLY, deadline_s=90))


def test_what_bulk_data_loses_in_a_short_queue_is_no_loss(two: list[Host], tmp_path: Path) -> None:
    """As in a switch with little memory: TCP fills any queue until it overflows, and that is how it finds its rate."""
    for host in two:
        host.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "1gbit", "burst", "64kb", "limit", "100kb")
    is_silent(ranks_on(tmp_path, two, *ONLY), 2, ["net.mesh"])
    assert lost_in_bulk(tmp_path) > 10, "the first look saw it"


def test_a_host_behind_a_full_link_is_far(three: list[Host], tmp_path: Path) -> None:
    with three[2].full_link(three[1]):
        finished = ranks_on(tmp_path, three, *ONLY, master=three[0].address, served=True, deadline_s=90)
    found_as("mesh_far", finished)
    far = next(finding["message"] for finding in finished.findings() if finding["code"] == "net.mesh.high_latency")
    slow = r"slow round trips with 2 of 2 other nodes .* ms at least.*; expected about .* as usual"
    assert re.search(slow, far), far


def test_of_two_hosts_that_which_sends_slowly_is_told(two: list[Host], tmp_path: Path) -> None:
    two[1].slow_down("100mbit")
    assert re.search(r"\b1[23](\.\d)? MB/s", found_as("mesh_slow_pair", ranks_on(tmp_path, two, *ONLY)))


def test_one_address_on_all_hosts_but_one_that_has_none(three: list[Host], tmp_path: Path) -> None:
    for host in three:
        host.second_interface("docker0", "172.17.0.1/16")
    environ = [{"GLOO_SOCKET_IFNAME": interface} for interface in ("docker0", "eth9", "docker0")]
    finished = ranks_on(tmp_path, three, "--only", "net.mesh,comm.init", environ=environ)
    told_as(finished, "mesh_same_address", "mesh_no_address")
    why = "net.mesh failed, and this check would fail for the same reason"
    assert finished.check("comm.init")["skipped"] == why, finished.told()


def test_pairs_for_which_there_is_no_time_are_told(three: list[Host], tmp_path: Path) -> None:
    three[2].slow_down("1mbit")
    found_as("mesh_no_time", ranks_on(tmp_path, three, *ONLY, deadline_s=12))


def worker_of(host: Host) -> tuple[int, int]:
    """(its pid, the port where it listens), as soon as it does; the others are about to connect."""
    end = time.monotonic() + 60
    found = None
    while not found and time.monotonic() < end:
        listed = host.run("ss", "-Htlnp", "src", host.address)
        found = re.search(rf":(?!{PORT} )(\d+) .*pid=(\d+)", listed)
    assert found
    return int(found[2]), int(found[1])


def in_mid_check(
    folder: Path, hosts: list[Host], deed: Callable[[], None], environ: Sequence[dict[str, str]] = ()
) -> Finished:
    waiter = threading.Thread(target=deed)
    waiter.start()
    finished = ranks_on(folder, hosts, *ONLY, environ=environ)
    waiter.join()
    return finished


def test_hosts_that_go_in_three_ways_while_all_meet(five: list[Host], tmp_path: Path) -> None:
    """The two that are left have done well with each other. On busy cores a meeting may be over before all three have
    been looked at: a connection that is dropped holds it up, and then the host that is stopped."""
    close(five[0], five[1], "DROP")

    def go() -> None:
        os.kill(worker_of(five[2])[0], signal.SIGSTOP)
        killed, _ = worker_of(five[1]), worker_of(five[3])
        five[3].run("ip", "link", "set", "eth0", "down")
        os.kill(killed[0], signal.SIGKILL)

    finished = in_mid_check(tmp_path, five, go)
    found = finished.findings()
    rows = {name: ELSEWHERE[name] for name in ("mesh_killed", "mesh_stopped", "mesh_cut_off")}
    told = {(f"{finding['severity']} {finding['code']}", finding["where"].get("node")) for finding in found}
    assert told == {(row.finds[0], row.culprit["node"]) for row in rows.values()}, finished.told()
    assert len(found) == 3 and finished.left_over == [], finished.told()


def test_five_hosts_are_sound_and_strangers_at_a_port_do_no_harm(five: list[Host], tmp_path: Path) -> None:
    """A hundred of them hold on until the check is over."""
    knocked: list[bytes] = []

    def knock() -> None:
        code = (
            "import socket\n"
            f"address = '{five[1].address}', int(input())\n"  # it is at the door before there is one
            "all = [socket.create_connection(address) for _ in range(100)]\n"
            "for one in all[::2]: one.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n' * 9)\n"
            "for one in all:\n"
            "    try: print(one.recv(1))\n"
            "    except ConnectionResetError: print(b'')"
        )
        command = five[0].command([sys.executable, "-c", code])
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as strangers:
            _, port = worker_of(five[1])
            knocked.append(strangers.communicate(f"{port}\n".encode())[0])

    finished = in_mid_check(tmp_path, five, knock, environ=[behind(host) for host in five])
    is_silent(finished, 5, ["net.mesh"])
    assert knocked[0].splitlines() == [b"b''"] * 100
    with gzip.open(tmp_path / "facts.jsonl.gz", "rt") as facts:
        assert facts.read().count("spine.leaf-1") == 5, "what Slurm says of the switches is known"
    summary = finished.check("net.mesh")["summary"]
    assert summary.startswith("20 ordered pairs of 5 nodes: round trip "), summary


@pytest.mark.more
@pytest.mark.parametrize("count", [2, 3])
def test_sound_hosts_with_busy_cores_are_not_slow(count: int, tmp_path: Path) -> None:
    """One of ten such runs blamed a pair when all its streams were timed in one go."""
    spin = [sys.executable, "-c", "while True: pass"]
    with cluster(count) as hosts, contextlib.ExitStack() as busy:
        for _ in range(2 * (os.cpu_count() or 1)):
            burner = busy.enter_context(subprocess.Popen(spin))
            busy.callback(burner.kill)
        for _ in range(3):
            is_silent(ranks_on(Path(mkdtemp(dir=tmp_path)), hosts, *ONLY), count, ["net.mesh"])
