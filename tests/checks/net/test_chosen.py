"""The rules by which NCCL and gloo choose, on made-up hosts; what the kernel says is compared with `ip` elsewhere
(test_interfaces_hosts.py)."""

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from preflight.nccl import config_files, interface_rules
from preflight.nccl import version as nccl_version
from preflight.sdk import addresses
from preflight.sdk.addresses import Address

ON, OFF, NO_CARRIER = addresses.UP | addresses.RUNNING, 0, addresses.UP


def host(*lines: str) -> list[Address]:
    """As getifaddrs lists it: what has no address, IPv4, IPv6. A line: "eth0 10.0.0.1/24", "eth1 down 10.1.0.1/24"."""
    found = []
    for line in lines:
        name, *state, text = line.split()
        flags = {"down": OFF, "no-carrier": NO_CARRIER}[state[0]] if state else ON
        plain, _, prefix = text.partition("/")
        family = socket.AF_INET6 if ":" in plain else socket.AF_INET
        found.append(Address(name, flags, family, plain, int(prefix or 24)))
    links = {of_rank.interface: Address(of_rank.interface, of_rank.flags, socket.AF_PACKET, "", 0) for of_rank in found}
    return [*links.values(), *sorted(found, key=lambda entry: entry.family)]


def nccl(entries: list[Address], names: str | None = None, **more: str) -> str:
    settings = {**({} if names is None else {"NCCL_SOCKET_IFNAME": names}), **more}
    taken = interface_rules.by_nccl(entries, settings, {"there": "10.1.0.9"}.get)
    return " ".join(f"{entry['interface']}={entry['address']}" for entry in taken)


PLAIN = host("lo 127.0.0.1/8", "eth0 10.0.0.1", "lo ::1/128", "eth0 fe80::1/64")
DOCKER = host("lo 127.0.0.1/8", "docker0 172.17.0.1/16", "virbr0 192.168.122.1", "eth0 10.0.0.1")
BOTH = host("lo 127.0.0.1/8", "eth0 10.0.0.1", "ib0 10.1.0.1", "ib1 10.2.0.1", "ibmgmt down 10.3.0.1")
ONLY_LAST = host("lo 127.0.0.1/8", "docker0 172.17.0.1/16", "virbr0 192.168.122.1", "eth0 down 10.0.0.1")


@pytest.mark.parametrize(
    ("entries", "taken"),
    [
        (PLAIN, "eth0=10.0.0.1"),
        (DOCKER, "eth0=10.0.0.1"),
        (BOTH, "ib0=10.1.0.1 ib1=10.2.0.1"),
        (ONLY_LAST, "docker0=172.17.0.1"),
        (host("lo 127.0.0.1/8", "virbr0 192.168.122.1"), "lo=127.0.0.1"),
        (host("virbr0 192.168.122.1"), "virbr0=192.168.122.1"),
        (host("lo ::1/128"), ""),
        (host("eth0 no-carrier 10.0.0.1"), ""),
        (host("eth0 fd00::1/64", "eth0 fe80::1/64"), "eth0=fd00::1"),
        (host("eth0 fd00::1/64", "eth1 10.0.0.1"), "eth1=10.0.0.1 eth0=fd00::1"),  # IPv4 is listed first
        (host("eth0 10.0.0.1", "eth0 10.0.0.2", "eth0:vip 10.0.0.9"), "eth0=10.0.0.1 eth0:vip=10.0.0.9"),
        (host("bond0 10.0.0.1", "bond0.7 10.7.0.1", "c1 fe80::1/64"), "bond0=10.0.0.1 bond0.7=10.7.0.1 c1=fe80::1"),
    ],
)  # fmt: skip
def test_what_nccl_takes_by_itself(entries: list[Address], taken: str) -> None:
    assert nccl(entries) == nccl(entries, "") == nccl(entries, "e") == taken  # a single character is not heard


OLD = [
    (ONLY_LAST, None, "virbr0=192.168.122.1 eth0=10.0.0.1"),
    (ONLY_LAST, "docker0", "docker0=172.17.0.1"),
    (host("eno1 no-carrier 10.9.0.1", "eth0 10.0.0.1"), None, "eno1=10.9.0.1 eth0=10.0.0.1"),
    (host("eno1 down 10.9.0.1", "eth0 10.0.0.1"), "^eth", "eno1=10.9.0.1"),
    (host("eth0 10.0.0.1", "ib0 down 10.1.0.1"), None, "ib0=10.1.0.1"),
    (host("lo 127.0.0.1/8", "docker0 172.17.0.1/16"), None, "docker0=172.17.0.1"),
]


@pytest.mark.parametrize("version", ["2.18.1", "2.27.7"])
@pytest.mark.parametrize(("entries", "names", "taken"), OLD)
def test_what_nccl_took_before_2_28(entries: list[Address], names: str | None, taken: str, version: str) -> None:
    settings = {} if names is None else {"NCCL_SOCKET_IFNAME": names}
    old, new, unknown = (
        [card["interface"] for card in interface_rules.by_nccl(entries, settings, lambda _: None, known)]
        for known in (version, "2.28.3", "")
    )
    assert old == [word.partition("=")[0] for word in taken.split()]
    assert (
        new
        == unknown
        == [entry["interface"] for entry in interface_rules.by_nccl(entries, settings, lambda _: None, "3.0")]
    )


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        ("eth", "eth0=10.0.0.1"),
        ("eth0", "eth0=10.0.0.1"),
        ("=eth", ""),
        ("=eth0", "eth0=10.0.0.1"),
        ("ib", "ib0=10.1.0.1 ib1=10.2.0.1"),
        ("ib1,eth", "eth0=10.0.0.1 ib1=10.2.0.1"),  # in the order of the host
        ("^ib", "lo=127.0.0.1 eth0=10.0.0.1"),
        ("^ib,lo", "eth0=10.0.0.1"),
        ("^=ib0,lo", "eth0=10.0.0.1 ib1=10.2.0.1"),
        ("^=ib,lo", "eth0=10.0.0.1 ib0=10.1.0.1 ib1=10.2.0.1"),
        ("=ib0,=ib1", "ib0=10.1.0.1"),  # the = stands before the whole list
        ("eth9", ""),
        ("ibmgmt", ""),
        ("eth0:1", "eth0=10.0.0.1"),
        (",eth0,", "eth0=10.0.0.1"),
        ("lo", "lo=127.0.0.1"),
        ("eth0, ib0", "eth0=10.0.0.1"),
        ("^=", ""),
        ("=,", "lo=127.0.0.1 eth0=10.0.0.1 ib0=10.1.0.1 ib1=10.2.0.1"),
    ],
)  # fmt: skip
def test_what_nccl_takes_when_told(names: str, taken: str) -> None:
    assert nccl(BOTH, names) == taken


def test_nccl_takes_sixteen_at_most() -> None:
    many = host(*(f"eth{number} 10.0.{number}.1" for number in range(20)))
    assert len(nccl(many).split()) == 16


@pytest.mark.parametrize(("family", "taken"), [("AF_INET6", "eth0=fe80::1"), ("AF_INET", "eth0=10.0.0.1"),
                                               ("ipv6", "eth0=10.0.0.1")])  # fmt: skip
def test_nccl_may_be_held_to_one_family(family: str, taken: str) -> None:
    assert nccl(PLAIN, NCCL_SOCKET_FAMILY=family) == taken


@pytest.mark.parametrize(
    ("meeting", "names", "taken"),
    [
        ("10.3.0.7:5000", None, "ibmgmt=10.3.0.1 ib0=10.1.0.1 ib1=10.2.0.1"),  # also where it is down
        ("10.0.0.7:5000", "ib0", "eth0=10.0.0.1 ib0=10.1.0.1"),
        ("there:5000", "=eth0", "ib0=10.1.0.1 eth0=10.0.0.1"),
        ("10.9.0.7:5000", None, ""),
        ("nobody:5000", None, ""),
        ("", None, ""),
    ],
)
def test_nccl_meets_in_the_subnet_of_its_comm_id(meeting: str, names: str | None, taken: str) -> None:
    assert nccl(BOTH, names, NCCL_COMM_ID=meeting) == taken


def test_without_infiniband_the_comm_id_chooses_for_the_data_too() -> None:
    two = host("lo 127.0.0.1/8", "eth0 10.0.0.1", "eth1 fd00::1/64")
    assert nccl(two, NCCL_COMM_ID="[fd00::9]:5000") == "eth1=fd00::1"


def gloo(entries: list[Address], names: str | None, own: str | None = "10.0.0.1") -> str:
    environ = {} if names is None else {"GLOO_SOCKET_IFNAME": names}
    return " ".join(
        f"{entry['interface']}={entry['address']}" for entry in interface_rules.by_gloo(entries, environ, lambda: own)
    )


@pytest.mark.parametrize(
    ("names", "own", "taken"),
    [
        (None, "10.0.0.1", "eth0=10.0.0.1"),
        (None, "127.0.1.1", "lo=127.0.1.1"),
        (None, "fe80::1%eth0", "=fe80::1"),
        (None, "10.9.9.9", "=10.9.9.9"),
        (None, None, ""),
        ("", "10.0.0.1", "eth0=10.0.0.1"),
        ("e", "10.0.0.1", "eth0=10.0.0.1"),
        ("ib1", None, "ib1=10.2.0.1"),
        ("ib", None, ""),
        ("=ib0", None, ""),
        ("ib1,eth0", None, "ib1=10.2.0.1 eth0=10.0.0.1"),  # in the order of the list
        ("eth9,eth0", None, "eth0=10.0.0.1"),
        ("ibmgmt", None, "ibmgmt=10.3.0.1"),  # also where it is down
    ],
)
def test_what_gloo_takes(names: str | None, own: str | None, taken: str) -> None:
    assert gloo(BOTH, names, own) == taken


def test_gloo_takes_the_first_address_of_an_interface() -> None:
    assert gloo(host("eth0 10.0.0.1", "eth0 10.0.0.2", "eth0 fd00::1/64"), "eth0") == "eth0=10.0.0.1"
    assert gloo(host("eth0 fd00::1/64", "eth0 fe80::1/64"), "eth0") == "eth0=fd00::1"


# What this machine and NCCL's files say


def test_loopback_is_there_and_running() -> None:
    entries = addresses.listed()
    assert Address("lo", entries[0].flags, socket.AF_INET, "127.0.0.1", 8) in entries
    assert entries[0].interface == "lo" and entries[0].flags & ON == ON
    assert interface_rules.by("gloo", {"GLOO_SOCKET_IFNAME": "lo"}) == [{"interface": "lo", "address": "127.0.0.1"}]
    assert interface_rules.by("nccl", {"NCCL_SOCKET_IFNAME": "=lo"}) == [{"interface": "lo", "address": "127.0.0.1"}]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".nccl.conf").write_text(
        "# NCCL_SOCKET_IFNAME=a\nNCCL_SOCKET_IFNAME=eth0\r\nNCCL_SOCKET_IFNAME=eth1\nNCCL_DEBUG\nNCCL_COMM_ID=there:1\n"
    )
    (tmp_path / "system").write_text("NCCL_SOCKET_IFNAME=eth2\nNCCL_SOCKET_FAMILY=AF_INET\n")
    return tmp_path


def added(environ: dict[str, str], home: Path) -> dict[str, str]:
    found = config_files.read(environ, system=str(home / "system"))["settings"]
    return {name: setting["value"] for name, setting in found.items()}


def test_the_first_line_of_nccls_files_wins(home: Path) -> None:
    found = added({"HOME": str(home), "NCCL_COMM_ID": "here:1"}, home)
    assert found == {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_FAMILY": "AF_INET"}


@pytest.mark.parametrize("path", ["none", "", "."])
def test_a_named_file_takes_the_place_of_the_users(path: str, home: Path) -> None:
    environ = {"HOME": str(home), "NCCL_CONF_FILE": str(home / path) if path else ""}
    assert added(environ, home)["NCCL_SOCKET_IFNAME"] == ("eth2" if path else "eth0")


def test_without_a_home_there_is_no_file_of_the_user(home: Path) -> None:
    assert added({}, home)["NCCL_SOCKET_IFNAME"] == "eth2"


@pytest.mark.parametrize(("nccl", "name"), [("2.29.7", "other"), ("2.30.3", "eth0"), ("", "eth0")])
def test_before_2_30_the_users_file_was_in_the_home_of_the_password_file(
    nccl: str, name: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = home / "other"
    other.mkdir()
    (other / ".nccl.conf").write_text("NCCL_SOCKET_IFNAME=other\n")
    monkeypatch.setattr(nccl_version, "installed", lambda: nccl)
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_dir=str(other)))
    assert added({"HOME": str(home)}, home)["NCCL_SOCKET_IFNAME"] == name


@pytest.mark.parametrize(
    ("asked", "version"),
    [
        (["filelock", "nvidia-nccl-cu12==2.27.5; platform_system == 'Linux'"], "2.27.5"),
        (["nvidia-nccl-cu13>=2"], "2.28.3"),
        (["filelock"], ""),  # NVIDIA's own build
        (None, ""),
        (["nvidia-nccl-cu11==2.1"], ""),  # not there all the same
    ],
)
def test_the_version_of_nccl_is_that_of_the_wheel_that_torch_asks_for(
    asked: list[str] | None, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia_nccl_cu12-2.27.5", "nvidia_nccl_cu13-2.28.3"):
        (tmp_path / f"{name}.dist-info").mkdir()
    if asked is not None:
        (tmp_path / "torch-2.9.0+cu126.dist-info").mkdir()
        headers = ["Name: torch", *(f"Requires-Dist: {name}" for name in asked)]
        (tmp_path / "torch-2.9.0+cu126.dist-info" / "METADATA").write_text("\n".join(headers))
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert nccl_version.installed.__wrapped__() == version


def test_nccls_files_count_for_the_choice(home: Path) -> None:
    (home / "mine").write_text("NCCL_SOCKET_IFNAME==lo\n")
    assert interface_rules.by("nccl", {"NCCL_CONF_FILE": str(home / "mine")}) == [
        {"interface": "lo", "address": "127.0.0.1"}
    ]
