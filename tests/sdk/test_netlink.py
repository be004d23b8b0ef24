"""What the kernel says of links: held against iproute2, and against messages of links that this machine cannot make."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from preflight.checks.net.shared import packet_counters
from preflight.sdk import netlink
from preflight.sdk.netlink import ATTRIBUTE, HEADER, LINK, NetworkLink
from tests.hosts import Host, needs_hosts
from tests.running import ROOT


@pytest.mark.skipif(not shutil.which("ip"), reason="iproute2 says what is right")
def test_the_same_links_as_ip_link() -> None:
    shown = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, check=True, timeout=20).stdout)
    found = netlink.links()
    expected = {each["ifindex"]: each["ifname"] for each in shown}
    both = {link.number: link.name for link in found if link.number in expected}  # other tests add and remove some
    assert both and both.items() <= expected.items()
    (loopback,) = (link for link in found if link.name == "lo")
    assert loopback.counters["rx_packets"] == loopback.counters["tx_packets"], "what lo sends it receives"


FLOOD = """
import json, socket, sys
sys.path.insert(0, "{path}")
from preflight.sdk import netlink
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(500):
    line.sendto(bytes(1000), ("{address}", 9))
print(json.dumps(netlink.queue_drops()))
"""


@pytest.mark.hosts
@needs_hosts
def test_the_drops_of_a_queue_are_those_of_tc(two: list[Host]) -> None:
    two[1].run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "1mbit", "burst", "3kb", "limit", "3kb")
    printed = two[1].run(sys.executable, "-c", FLOOD.format(address=two[0].address, path=str(ROOT)))
    (shown,) = json.loads(two[1].run("tc", "-s", "-j", "qdisc", "show", "dev", "eth0", "root"))
    (drops,) = (each for each in json.loads(printed).values() if each.get("queue_drops"))
    assert drops == {"queue_drops": shown["drops"]} and shown["drops"] > 400


def _attribute(kind: int, data: bytes) -> bytes:
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(data), kind) + data + bytes(-len(data) % 4)


def _message(number: int, name: str, *fields: bytes) -> bytes:
    body = LINK.pack(0, 1, number, 0, 0) + _attribute(netlink.IFNAME, name.encode() + b"\0") + b"".join(fields)
    return HEADER.pack(HEADER.size + len(body), 16, 2, 1, 0) + body


def _kind(name: bytes) -> bytes:
    return _attribute(netlink.INFO, _attribute(netlink.KIND, name))


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, value.to_bytes(4, "little"))


STATS = b"".join(number.to_bytes(8, "little") for number in range(1, 25))
MESSAGES = b"".join((
    _message(2, "bond0", _kind(b"bond"), _attribute(netlink.STATS64, STATS)),
    _message(3, "eth0", _number(netlink.MASTER, 2), _attribute(netlink.STATS64, STATS), _number(netlink.WENT_DOWN, 4)),
    _message(4, "bond0.7", _kind(b"vlan"), _number(netlink.LOWER, 2), _attribute(netlink.STATS64, STATS)),
    _message(5, "br0", _kind(b"bridge"), _attribute(netlink.STATS64, STATS)),
    _message(6, "veth1", _kind(b"veth"), _number(netlink.LOWER, 3), _number(netlink.MASTER, 5)),
))  # fmt: skip


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[NetworkLink]]:
    found = [netlink._link(body) for _, body in netlink._messages(MESSAGES)]
    monkeypatch.setattr(netlink, "links", lambda: found)
    monkeypatch.setattr(netlink, "queue_drops", lambda: {3: {"queue_drops": 9}})
    yield found


def test_messages_are_read_field_by_field(made: list[NetworkLink]) -> None:
    assert [(link.name, link.kind, link.lower, link.master) for link in made] == [
        ("bond0", "bond", 0, 0), ("eth0", "", 0, 2), ("bond0.7", "vlan", 2, 0), ("br0", "bridge", 0, 0),
        ("veth1", "veth", 0, 5),
    ]  # fmt: skip
    assert made[1].counters == {**{name: place for place, name in enumerate(netlink.STATS, 1)}, "went_down": 4}
    assert made[4].counters == {}, "a kernel that does not count"


def test_what_carries_an_interface_counts_with_it(made: list[NetworkLink]) -> None:
    found = packet_counters.counted({"bond0.7"})["interfaces"]
    assert found.keys() == {"bond0.7", "bond0", "eth0"}
    assert found["eth0"]["queue_drops"] == 9
    assert list(packet_counters.counted({"br0"})["interfaces"]) == ["br0"], "its ports lead to containers"
    assert packet_counters.counted({"veth1"})["interfaces"] == {}
