"""Hosts on one machine: network namespaces joined by a bridge, each with its own name and /etc/hosts."""

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

_NUMBERS = itertools.count(1)

needs_hosts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
    reason="hosts made of network namespaces need root and iproute2",
)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@dataclass(frozen=True)
class Host:
    """One of them."""

    namespace: str
    name: str
    address: str

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command on this host, under its own host name."""
        script = f'hostname {self.name} && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", script, "sh", *words]

    def run(self, *words: str) -> None:
        subprocess.run(["ip", "netns", "exec", self.namespace, *words], check=True, capture_output=True, timeout=20)

    def slow_down(self, rate: str) -> None:
        """What this host sends leaves at this rate: "100mbit"."""
        self.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms")


@contextlib.contextmanager
def cluster(size: int) -> Iterator[list[Host]]:
    """Hosts "a", "b", ... at 10.77.0.1, .2, ...; all is removed at the end."""
    tag = f"pf{os.getpid()}-{next(_NUMBERS)}"
    switch = f"{tag}-sw"
    hosts = [Host(f"{tag}-{i}", f"host-{chr(97 + i)}", f"10.77.0.{i + 1}") for i in range(size)]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for index, host in enumerate(hosts):
            _plug_in(host, switch, index)
            _name(host, hosts)
        yield hosts
    finally:
        for namespace in (*(host.namespace for host in hosts), switch):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, timeout=20, check=False)
            shutil.rmtree(f"/etc/netns/{namespace}", ignore_errors=True)


def _plug_in(host: Host, switch: str, index: int) -> None:
    _ip("netns", "add", host.namespace)
    port = f"port{index}"
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
    _ip("-n", switch, "link", "set", port, "master", "br0", "up")
    _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", host.namespace, "link", "set", device, "up")


def _name(host: Host, hosts: Sequence[Host]) -> None:
    """Also IPv4-mapped addresses: the store's server looks every client up, and there is no DNS here."""
    folder = Path(f"/etc/netns/{host.namespace}")
    folder.mkdir(parents=True)
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for one in hosts:
        lines += [f"{one.address} {one.name}", f"::ffff:{one.address} {one.name}"]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
