"""net.interface_errors on hosts of their own: a plugin makes the fault after net.interfaces has counted."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.hosts import Host, needs_hosts
from tests.on_hosts import found_as, ranks_on
from tests.running import Finished, environment
from tests.test_sound import is_silent

CHECKS = ("net.interfaces", "net.interface_errors")
PLUGIN = '''
"""Fault: made on the second node."""

import os, socket, subprocess

from preflight.check import Level, Plan, Scope

PLAN = Plan(Scope.NODE, Level.QUICK)


def sh(line):
    subprocess.run(line, shell=True, check=True, timeout=15)


def flood(address, port=9):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        for _ in range(3000):
            line.sendto(bytes(1000), (address, port))


def measure(ctx):
    if ctx.job.node_of(ctx.rank).node == "{on}":
        {fault}
    return {{}}


def judge(facts, run):
    return []
'''
pytestmark = [pytest.mark.hosts, needs_hosts]


def run_with(
    folder: Path, hosts: Sequence[Host], fault: str, *, on: str = "host-b", environ: Sequence[dict[str, str]] = ()
) -> Finished:
    plugin = folder / "fault.py"
    plugin.write_text(PLUGIN.format(fault=fault, on=on))
    only = ("--only", ",".join((*CHECKS, "plugin.fault")))
    return ranks_on(folder, hosts, "--plugin", str(plugin), *only, environ=environ)


def test_a_link_that_goes_down_for_a_moment(three: list[Host], tmp_path: Path) -> None:
    fault = "sh('ip link set eth0 down; ip link set eth0 up')"
    found_as("interface_flaps", run_with(tmp_path, three, fault))


def test_an_interface_that_vanishes(three: list[Host], tmp_path: Path) -> None:
    for host in three:
        host.more_cards(1)
    environ = [{"GLOO_SOCKET_IFNAME": "eth0,eth1"}] * 3
    found_as("interface_gone", run_with(tmp_path, three, "sh('ip link del eth1')", environ=environ))


def test_a_queue_that_is_too_short(three: list[Host], tmp_path: Path) -> None:
    fault = "sh('tc qdisc add dev eth0 root tbf rate 50mbit burst 3kb limit 3kb'); flood('10.77.0.1')"
    found_as("interface_queue_drops", run_with(tmp_path, three, fault))


ALTERED = """
import socket, struct, sys, time
to = socket.inet_aton(sys.argv[1])
line = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
while True:
    line.sendto(struct.pack("!HHIIBBHHH", 40000, 40001, 1, 1, 5 << 4, 16, 1000, 12345, 0) + bytes(64), (sys.argv[1], 0))
    time.sleep(0.002)  # from before the run to its end
"""


def test_packets_that_arrive_altered_name_the_one_host_that_counts_them(three: list[Host], tmp_path: Path) -> None:
    with subprocess.Popen(three[0].command([sys.executable, "-c", ALTERED, three[1].address])) as sender:
        try:
            finished = run_with(tmp_path, three, "pass")
        finally:
            sender.kill()
    found_as("interface_checksum", finished)


def test_an_interface_that_counts_errors_is_named(three: list[Host], tmp_path: Path) -> None:
    """No link of this machine can be made to count any: each answer of the kernel gets 50 more."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import time\n"
        "from preflight.sdk import netlink\n"
        "real = netlink.links\n"
        "def links():\n"
        "    errors = int(1000 * time.clock_gettime(time.CLOCK_BOOTTIME))\n"
        "    return [link._replace(counters={**link.counters, 'rx_errors': errors}) for link in real()]\n"
        "netlink.links = links\n"
    )
    path = os.pathsep.join((str(site), environment()["PYTHONPATH"]))
    finished = run_with(tmp_path, three, "pass", environ=[{}, {"PYTHONPATH": path}, {}])
    found_as("interface_damaged", finished)


def test_losses_of_tcp_are_worth_knowing(three: list[Host], tmp_path: Path) -> None:
    three[1].firewall(
        "INPUT", *["-p", "tcp", "-m", "statistic", "--mode", "random", "--probability", "0.03", "-j", "DROP"]
    )
    finished = ranks_on(tmp_path, three, "--only", ",".join((*CHECKS, "comm.init", "comm.all_reduce")))
    found_as("interface_retransmits", finished)


def test_sound_hosts(three: list[Host], tmp_path: Path) -> None:
    is_silent(ranks_on(tmp_path, three, "--only", ",".join(CHECKS)), 3, CHECKS)
