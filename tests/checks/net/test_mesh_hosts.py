"""net.mesh on hosts of their own: firewalls, links, addresses and processes are really sick."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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
        mine = [one for one in found if f"{one['severity']} {one['code']}" in row.finds]
        assert len(mine) == 1 and row.is_told_by(mine) and mine[0]["noticed_by"] == row.noticed_by, finished.told()


def test_five_hosts_are_sound(five: list[Host], tmp_path: Path) -> None:
    finished = ranks_on(tmp_path, five, *ONLY)
    is_silent(finished, 5, ["net.mesh"])
    summary = finished.check("net.mesh")["summary"]
    assert summary.startswith("20 ordered pairs of 5 nodes: round trip "), summary


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
    told_as(ranks_on(tmp_path, four, *ONLY), "mesh_filtered_pair", "mesh_prohibited_pair", "mesh_refused_pair")


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


def test_of_two_hosts_that_which_sends_slowly_is_told(two: list[Host], tmp_path: Path) -> None:
    two[1].slow_down("100mbit")
    assert "12 MB/s" in found_as("mesh_slow_pair", ranks_on(tmp_path, two, *ONLY)).replace("13 MB/s", "12 MB/s")


def test_a_host_behind_a_full_link_is_far(three: list[Host], tmp_path: Path) -> None:
    """What its other process sends fills the queue as far as its buffer goes (some 50 ms); nothing is lost."""
    queue = ["tbf", "rate", "20mbit", "burst", "16kb", "latency", "300ms"]
    three[2].run("tc", "qdisc", "add", "dev", "eth0", "root", *queue)
    flood = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM)\nwhile True: s.sendto(bytes(1400), ('10.77.0.2', 9))"
    )
    with subprocess.Popen(three[2].command([sys.executable, "-c", flood])) as filler:
        try:
            finished = ranks_on(tmp_path, three, *ONLY)
        finally:
            filler.kill()
    found_as("mesh_far_node", finished)


def test_a_black_hole_for_large_packets_names_its_host(three: list[Host], tmp_path: Path) -> None:
    three[1].swallow_large_packets()
    message = found_as("mesh_mtu", ranks_on(tmp_path, three, *ONLY))
    assert "cannot send large messages to 2 of 2 other nodes" in message and "is 1500" in message, message


def test_halves_are_told_by_their_switches(four: list[Host], tmp_path: Path) -> None:
    for host in four[:2]:
        for other in four[2:]:
            close(host, other, "DROP")
            close(other, host, "DROP")
    pattern = {"SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
    addresses = [f"spine.leaf-{number // 2}.{host.name}" for number, host in enumerate(four)]
    environ = [{"SLURM_TOPOLOGY_ADDR": address, **pattern} for address in addresses]
    message = found_as("mesh_halves", ranks_on(tmp_path, four, *ONLY, environ=environ))
    assert "between host-a, host-b (behind leaf-0) and host-c, host-d (behind leaf-1)" in message, message


def test_one_address_on_all_hosts(three: list[Host], tmp_path: Path) -> None:
    for host in three:
        host.second_interface("docker0", "172.17.0.1/16")
    finished = ranks_on(tmp_path, three, *ONLY, environ=[{"GLOO_SOCKET_IFNAME": "docker0"}] * 3)
    found_as("mesh_same_address", finished)


def test_a_host_without_the_interface_is_told_and_the_others_meet(three: list[Host], tmp_path: Path) -> None:
    finished = ranks_on(tmp_path, three, *ONLY, environ=[{}, {"GLOO_SOCKET_IFNAME": "eth9"}, {}])
    found_as("mesh_no_address", finished)


def test_pairs_for_which_there_is_no_time_are_told(three: list[Host], tmp_path: Path) -> None:
    three[2].slow_down("1mbit")
    found_as("mesh_no_time", ranks_on(tmp_path, three, *ONLY, deadline_s=12))


def in_mid_check(folder: Path, hosts: list[Host], deed: Callable[[int, int], None]) -> Finished:
    """`deed(pid, port)` is done as soon as host-b's worker listens; the others are about to connect."""

    def when_it_listens() -> None:
        end = time.monotonic() + 60
        found = None
        while not found and time.monotonic() < end:
            listed = hosts[1].run("ss", "-Htlnp", "src", hosts[1].address)
            found = re.search(r":(\d+) .*pid=(\d+)", listed)
        assert found
        deed(int(found[2]), int(found[1]))

    waiter = threading.Thread(target=when_it_listens)
    waiter.start()
    finished = ranks_on(folder, hosts, *ONLY)
    waiter.join()
    return finished


def test_a_worker_that_is_killed(three: list[Host], tmp_path: Path) -> None:
    found_as("mesh_killed", in_mid_check(tmp_path, three, lambda pid, _: os.kill(pid, signal.SIGKILL)))


def test_a_worker_that_is_stopped(three: list[Host], tmp_path: Path) -> None:
    """The others may be through with it before it is ended, or not."""
    finished = in_mid_check(tmp_path, three, lambda pid, _: os.kill(pid, signal.SIGSTOP))
    found = finished.findings()
    assert ELSEWHERE["mesh_stopped"].is_told_by(found) and len(found) == 1, finished.told()


def test_a_host_that_is_cut_off(three: list[Host], tmp_path: Path) -> None:
    def cut_off(*_: int) -> None:
        three[1].run("ip", "link", "set", "eth0", "down")

    found_as("mesh_cut_off", in_mid_check(tmp_path, three, cut_off))


def test_three_hosts_are_sound_and_strangers_at_a_port_do_no_harm(three: list[Host], tmp_path: Path) -> None:
    """A hundred of them hold on until the check is over."""
    knocked: list[bytes] = []

    def knock(_: int, port: int) -> None:
        code = (
            "import socket, sys\n"
            f"all = [socket.create_connection(('{three[1].address}', {port})) for _ in range(100)]\n"
            "for one in all[::2]: one.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n' * 9)\n"
            "for one in all:\n"
            "    try: print(one.recv(1))\n"
            "    except ConnectionResetError: print(b'')"
        )
        knocked.append(subprocess.run(three[0].command([sys.executable, "-c", code]), capture_output=True).stdout)

    is_silent(in_mid_check(tmp_path, three, knock), 3, ["net.mesh"])
    assert knocked[0].splitlines() == [b"b''"] * 100
