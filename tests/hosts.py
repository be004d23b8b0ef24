"""Hosts on one machine: network namespaces joined by a bridge, each with its own name and /etc/hosts."""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

_NUMBERS = itertools.count(1)

needs_hosts = pytest.mark.skipif(
    os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("ip", "tc", "iptables")),
    reason="hosts made of network namespaces need root, iproute2 and iptables",
)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@dataclass(frozen=True)
class Host:
    """One of them. Its interface in the cluster's network is eth0."""

    namespace: str
    name: str
    address: str

    @property
    def folder(self) -> Path:
        """What this host has in /etc instead of the machine's files."""
        return Path("/etc/netns") / self.namespace

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command on this host, under its own host name."""
        script = f'hostname {self.name} && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", script, "sh", *words]

    def run(self, *words: str) -> str:
        """What the command prints."""
        command = ["ip", "netns", "exec", self.namespace, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout

    def pids(self) -> list[int]:
        """Of what runs on this host."""
        return [int(pid) for pid in subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, timeout=20, check=False
        ).stdout.split()]  # fmt: skip

    def slow_down(self, rate: str, interface: str = "eth0") -> None:
        """What this host sends leaves at this rate: "100mbit"."""
        burst = "256kb" if interface == "lo" else "64kb"  # a packet on lo may be as large as 64 KiB
        shape = ("tbf", "rate", rate, "burst", burst, "latency", "400ms")
        self.run("tc", "qdisc", "add", "dev", interface, "root", *shape)

    @contextlib.contextmanager
    def full_link(self, peer: "Host") -> Iterator[None]:
        """Others fill what leaves it: each packet waits for as long as the sender's own buffer lasts, about 100 ms."""
        queue = ("tbf", "rate", "10mbit", "burst", "16kb", "latency", "400ms")
        self.run("tc", "qdisc", "add", "dev", "eth0", "root", *queue)
        send = f"while True: s.sendto(bytes(1400), ({peer.address!r}, 9))"
        flood = f"import socket; s = socket.socket(type=socket.SOCK_DGRAM)\n{send}"
        with subprocess.Popen(self.command([sys.executable, "-c", flood])) as filler:
            try:
                yield
            finally:
                filler.kill()

    def slow_down_to(self, address: str, rate: str, interface: str = "eth0") -> None:
        """The same of what it sends to this address only: htb lets all else pass."""
        self.run("tc", "qdisc", "add", "dev", interface, "root", "handle", "1:", "htb")
        self.run("tc", "class", "add", "dev", interface, "parent", "1:", "classid", "1:2", "htb", "rate", rate)
        match = ("u32", "match", "ip", "dst", f"{address}/32", "flowid", "1:2")
        self.run("tc", "filter", "add", "dev", interface, "parent", "1:", "protocol", "ip", "prio", "1", *match)

    def more_cards(self, count: int) -> list[str]:
        """eth1, eth2, ...: of the same cluster, in networks of their own (10.78.0.0/24, ...). The addresses."""
        switch, number = self.namespace.rpartition("-")[0] + "-sw", int(self.namespace.rpartition("-")[2])
        addresses = [f"10.{77 + card}.0.{number + 1}" for card in range(1, count + 1)]
        for card, address in enumerate(addresses, 1):
            _cable(self.namespace, f"eth{card}", address, switch, f"port{number}-{card}")
        return addresses

    def etc(self, file: str, *lines: str) -> None:
        """The file as this host has it in /etc; for commands that start from now on, and also for the running ones
        if the file was there before."""
        (self.folder / file).write_text("".join(f"{line}\n" for line in lines))

    def firewall(self, *rule: str) -> None:
        """A rule of iptables: `host.firewall("INPUT", "-p", "tcp", "-s", other.address, "-j", "DROP")`."""
        self.run("iptables", "-A", *rule)

    def refuse(self, peer: "Host", ports: str, how: str) -> None:
        """TCP connections that this peer opens to `ports` ("32768:60999") of this host are dropped ("DROP"), rejected
        as by a firewall ("icmp-port-unreachable", "icmp-host-prohibited") or refused ("tcp-reset")."""
        target = ["DROP"] if how == "DROP" else ["REJECT", "--reject-with", how]
        self.firewall("INPUT", "-p", "tcp", "-s", peer.address, "--dport", ports, "--syn", "-j", *target)

    def swallow_large_packets(self) -> None:
        """A black hole for MTUs: what this host sends in packets above 1,300 bytes vanishes, and nobody is told."""
        self.firewall("OUTPUT", "-o", "eth0", "-m", "length", "--length", "1300:", "-j", "DROP")

    def second_interface(self, name: str, address: str) -> None:
        """One that leads nowhere, as docker0 does: `host.second_interface("docker0", "172.17.0.1/16")`."""
        _ip("-n", self.namespace, "link", "add", name, "type", "veth", "peer", "name", f"{name}-end")
        for device in (name, f"{name}-end"):
            _ip("-n", self.namespace, "link", "set", device, "up")
        _ip("-n", self.namespace, "addr", "add", address, "dev", name)

    def has_ipv6(self, number: int) -> str:
        """Gives eth0 the address fd00:77::<number>, and returns it."""
        self.run("ip", "-6", "addr", "add", f"fd00:77::{number}/64", "dev", "eth0", "nodad")
        return f"fd00:77::{number}"

    def has_no_dns(self, *options: str) -> None:
        """Its DNS server is a machine that nothing comes back from. `options`: of resolv.conf, as "timeout:1"."""
        self.etc("resolv.conf", "nameserver 10.77.0.200", " ".join(("options", *options)))
        self.run("ip", "neigh", "add", "10.77.0.200", "lladdr", "02:00:00:00:00:99", "dev", "eth0")


def behind_an_uplink(hosts: Sequence[Host], rate: str) -> None:
    """These hosts are on a switch of their own, and the link between it and the others' carries this much each way."""
    switch = hosts[0].namespace.rpartition("-")[0] + "-sw"
    _ip("-n", switch, "link", "add", "br1", "type", "bridge")
    _ip("-n", switch, "link", "set", "br1", "up")
    _ip("-n", switch, "link", "add", "up0", "type", "veth", "peer", "name", "up1")
    for host in hosts:
        port = host.namespace.rpartition("-")[2]
        _ip("-n", switch, "link", "set", f"port{port}", "master", "br1")
    for number in range(2):
        _ip("-n", switch, "link", "set", f"up{number}", "master", f"br{number}", "up")
        shape = ("tbf", "rate", rate, "burst", "64kb", "latency", "400ms")
        subprocess.run(
            ["ip", "netns", "exec", switch, "tc", "qdisc", "add", "dev", f"up{number}", "root", *shape],
            check=True, capture_output=True, timeout=20,
        )  # fmt: skip


def known(hosts: Sequence[Host], *, mapped: bool = True) -> list[str]:
    """The lines of /etc/hosts that `cluster` writes. `mapped`: also IPv4-mapped addresses, since the store's server
    looks every client up, and there is no DNS here."""
    lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{host.address} {host.name}" for host in hosts)]
    return lines + [f"::ffff:{host.address} {host.name}" for host in hosts if mapped]


@contextlib.contextmanager
def cluster(size: int) -> Iterator[list[Host]]:
    """Hosts "host-a", "host-b", ... at 10.77.0.1, .2, ...; all is removed at the end."""
    tag = f"pf{os.getpid()}-{next(_NUMBERS)}"
    switch = f"{tag}-sw"
    hosts = [Host(f"{tag}-{i}", f"host-{chr(97 + i)}", f"10.77.0.{i + 1}") for i in range(size)]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for index, host in enumerate(hosts):
            _plug_in(host, switch, index)
            host.folder.mkdir(parents=True)
            host.etc("hosts", *known(hosts))
        yield hosts
    finally:
        for namespace in (*(host.namespace for host in hosts), switch):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, timeout=20, check=False)
            shutil.rmtree(f"/etc/netns/{namespace}", ignore_errors=True)


def _plug_in(host: Host, switch: str, index: int) -> None:
    _ip("netns", "add", host.namespace)
    _ip("-n", host.namespace, "link", "set", "lo", "up")
    _cable(host.namespace, "eth0", host.address, switch, f"port{index}")


def _cable(namespace: str, interface: str, address: str, switch: str, port: str) -> None:
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", interface, "netns", namespace)
    _ip("-n", switch, "link", "set", port, "master", "br0", "up")
    _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", interface)
    _ip("-n", namespace, "link", "set", interface, "up")
