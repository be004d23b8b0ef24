"""The interfaces that the backend takes on each node, compared, and the words for them."""

import ipaddress
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, NotRequired, TypedDict

from preflight.check import Finding, Job, Run, Trait, traits, words
from preflight.checks.net.shared.links import Interface
from preflight.checks.net.shared.packet_counters import Counters
from preflight.nccl import hca_names, interface_rules
from preflight.nccl.interface_rules import Chosen
from preflight.sdk import tcp

TRANSPORT = ("NCCL_NET", "NCCL_IB_DISABLE")
VARIABLES = {"nccl": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}
CALLED = {"nccl": "NCCL", "gloo": "gloo"}
UNKNOWN: Interface = {"addresses": [], "state": "up", "mtu": None, "speed_mbps": None, "kind": ""}
INTERNAL = re.compile(r"docker|virbr|br-[0-9a-f]{12}$|podman\d|cni-podman|lxcbr|lxdbr|nerdctl|veth|vnet\d|cali")
"""Names that Docker, libvirt, Podman, LXC, containerd and Calico give to interfaces between a host and its own guests.
An overlay (flannel, Cilium) or a bridge over a real interface (br0) may well lead to the other hosts."""


class Facts(TypedDict):
    interfaces: dict[str, Interface]
    left_out: int
    """How many are not listed: virtual ones without an address, and those beyond links.MOST."""
    chosen: dict[str, list[Chosen] | None]
    """By backend; None if unknown because looking up the host's own name took too long."""
    settings: dict[str, str]
    """The values that NCCL and gloo get for variables that choose interfaces or turn RDMA off."""
    files: dict[str, str]
    """NCCL's configuration file, for each variable set in one."""
    route: str
    """The interface to MASTER_ADDR; "" if that is this host, or unknown."""
    host: str
    """An id that is equal on nodes that share their interfaces."""
    has_rdma: bool
    nccl: str
    """NCCL's version, whose rules apply; "" if unknown."""
    counters: NotRequired[Counters | None]
    """Of the interfaces that the backend takes; None where the kernel does not tell."""


def record(reading: Facts, _job: Job) -> Iterator[Trait]:
    for name, link in reading["interfaces"].items():
        of = {"MTU": link["mtu"], "Mbit/s": link["speed_mbps"], "state": link["state"]}
        yield from traits("link", {f"{name} {what}": value for what, value in of.items()})


class Choice(NamedTuple):
    """An address that the backend takes on a node."""

    name: str
    address: str
    link: Interface

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.address

    @property
    def is_link_local(self) -> bool:
        return ipaddress.ip_address(self.address).is_link_local

    @property
    def is_internal(self) -> bool:
        return INTERNAL.match(self.name) is not None

    @property
    def network(self) -> str:
        """The address's subnet, "10.0.0.0/24"."""
        found = [text for text in self.link["addresses"] if text.partition("/")[0] == self.address]
        return _network(found[0]) if found else self.address


class InterfaceTrouble(NamedTuple):
    """What is wrong on one node."""

    text: str
    interface: str | None = None
    variable: str | None = None
    """The variable to blame; None means the backend's list of interfaces, "" means no variable."""
    fix: str | None = None
    """Replaces the code's fix."""


class World:
    """All nodes of a run, and those without a finding so far (`left`)."""

    def __init__(self, facts: Mapping[int, Facts], run: Run, place: int = 0, backend: str = "") -> None:
        """`place`: which of the addresses to judge. NCCL's bootstrap uses the first; gloo connects the ranks over each
        in its list (connectFullMesh). `backend`: replaces the run's."""
        self.facts, self.run = facts, run
        self.backend = backend or run.job.backend
        self.called, self.variable = CALLED[self.backend], VARIABLES[self.backend]
        self.left = {
            rank: Choice(first["interface"], first["address"], _link(reading, first["interface"]))
            for rank, reading in facts.items()
            if (some := (reading["chosen"][self.backend] or [])[place:]) and (first := some[0])["interface"]
        }

    @cached_property
    def has_several_hosts(self) -> bool:
        return len({reading["host"] for reading in self.facts.values()}) > 1

    @cached_property
    def hosts_of(self) -> dict[str, set[str]]:
        """The hosts with each address, on any interface: one that is down still accepts its own host's connections."""
        found: dict[str, set[str]] = {}
        for reading in self.facts.values():
            for text in {text for link in reading["interfaces"].values() for text in link["addresses"]}:
                found.setdefault(text.partition("/")[0], set()).add(reading["host"])
        return found

    @cached_property
    def use(self) -> str:
        """The interface by which nodes reach the first node, if it has the same name on all."""
        names = {reading["route"] for reading in self.facts.values()} - {""}
        return names.pop() if len(names) == 1 else "INTERFACE"

    def is_set(self, rank: int) -> bool:
        """Whether the backend was told which interfaces to take; it ignores a single character."""
        return len(self.facts[rank]["settings"].get(self.variable, "")) > 1

    def uses_rdma(self, rank: int) -> bool:
        """Whether NCCL will send its data over RDMA. A network plugin ignores NCCL_IB_DISABLE."""
        reading = self.facts[rank]
        net = reading["settings"].get("NCCL_NET", "").upper()
        is_off = net == "SOCKET" if net not in ("", "IB") else not hca_names.uses_verbs(reading["settings"])
        return reading["has_rdma"] and not is_off

    def leave_out(self, ranks_: Iterable[int]) -> None:
        for rank in ranks_:
            self.left.pop(rank, None)

    def nodes(self, ranks_: Sequence[int], most: int = 3) -> str:
        return words.some((self.run.job.node_of(rank).node for rank in ranks_), most)

    def details(
        self, ranks_: Sequence[int], trouble: InterfaceTrouble | None = None, **evidence: Any
    ) -> dict[str, object]:
        """Details for a finding about these nodes: names a single node, and a variable that all have."""
        trouble = trouble or InterfaceTrouble("")
        asked = self.variable if ranks_ and all(map(self.is_set, ranks_)) else ""
        variable = (asked if trouble.variable is None else trouble.variable) or None
        files = {self.facts[rank]["files"].get(variable or "") for rank in ranks_}
        proof = {"variable": variable or self.variable, "use": self.use, **evidence}
        return {
            "node": self.run.job.node_of(ranks_[0]).node if len(ranks_) == 1 else None,
            "interface": trouble.interface,
            "variable": variable,
            "file": files.pop() if len(files) == 1 else None,
            "fix": trouble.fix,
            "evidence": {**proof, **({"interface": trouble.interface} if trouble.interface else {})},
        }

    def findings(self, found: Callable[..., Finding], troubles: Mapping[int, InterfaceTrouble]) -> Iterator[Finding]:
        """A finding per node, or one for all if all have the trouble. Removes these nodes from `left`."""
        if len(troubles) == len(self.facts) > 1:
            first = next(iter(troubles.values()))
            text = f"{first.text}; the same on all {len(troubles):,} nodes"
            yield found(text, **self.details(list(troubles), first))
        else:
            for rank, trouble in troubles.items():
                yield found(trouble.text, **self.details([rank], trouble))
        self.leave_out(troubles)

    def each(self, found: Callable[..., Finding], why: Callable[[int, Choice], str]) -> Iterator[Finding]:
        """Findings for the nodes for which `why` returns a text."""
        reasons = {rank: InterfaceTrouble(why(rank, choice), choice.name) for rank, choice in self.left.items()}
        yield from self.findings(found, {rank: reason for rank, reason in reasons.items() if reason.text})

    def at(self, rank: int) -> InterfaceTrouble:
        """A trouble without text: only the interface that this node takes."""
        return InterfaceTrouble("", self.left[rank].name)

    def mended(self, rank: int, other: str) -> InterfaceTrouble:
        """The same, with a fix for the interface that the node should take instead, if that is down."""
        is_down = bool(other) and self.facts[rank]["interfaces"][other]["state"] != "up"
        fix = f"On that node: ip link set {other} up; check its cable and switch port (ethtool {other})."
        return self.at(rank)._replace(fix=fix if is_down else None)

    def in_network(self, rank: int, networks: Container[str]) -> str:
        """A different interface of this node with an address in one of these networks, or ""."""
        for name, link in self.facts[rank]["interfaces"].items():
            found = [_network(text) for text in link["addresses"]]
            if any(network in networks and network != self.left[rank].network for network in found):
                return name
        return ""

    def is_in(self, rank: int, name: str, network: str) -> bool:
        """Whether the node's interface of this name has an address in the network."""
        return network in map(_network, self.facts[rank]["interfaces"].get(name, UNKNOWN)["addresses"])

    def state(self, rank: int, name: str) -> str:
        state = self.facts[rank]["interfaces"][name]["state"]
        return {"no carrier": "without a carrier"}.get(state, state)

    def also_taken(self, rank: int) -> Iterator[Choice]:
        """Further interfaces that NCCL considers as fast as the first (it assumes 10 Gb/s if unknown), and whose
        address another host also has."""
        first = self.left[rank].link["speed_mbps"] or 10_000
        for taken in (self.facts[rank]["chosen"][self.backend] or [])[1:]:
            choice = Choice(taken["interface"], taken["address"], _link(self.facts[rank], taken["interface"]))
            is_shared = len(self.hosts_of.get(choice.address, ())) > 1 and not choice.is_link_local
            if is_shared and (choice.link["speed_mbps"] or 10_000) >= first:
                yield choice

    def all_have_ipv6(self) -> bool:
        """Whether every node has IPv6 addresses besides link-local ones."""
        links = [self.facts[rank]["interfaces"].values() for rank in self.left]
        own = ([text for link in interfaces for text in link["addresses"]] for interfaces in links)
        return all(any(":" in text and not text.startswith(("fe80:", "::1/")) for text in texts) for texts in own)


def _link(reading: Facts, name: str) -> Interface:
    return reading["interfaces"].get(name.partition(":")[0], UNKNOWN)  # without an address's label


def _network(text: str) -> str:
    return str(ipaddress.ip_network(text, strict=False))


# Nothing to listen on


def why_none(reading: Facts, backend: str) -> InterfaceTrouble | None:
    """Why the backend gives up on this node; None if it does not, or that is unknown."""
    some, settings = reading["chosen"][backend], reading["settings"]
    if some is None:
        return None
    if backend == "gloo":
        return _gloo_gives_up(reading, some)
    if some:
        return None
    if "NCCL_COMM_ID" in settings:
        text = f"NCCL_COMM_ID is {settings['NCCL_COMM_ID']!r}, expected an address in a subnet of {_all(reading)}"
        return InterfaceTrouble(
            text, None, "NCCL_COMM_ID", "Unset NCCL_COMM_ID: torch passes on rank 0's address through its store."
        )
    names = settings.get("NCCL_SOCKET_IFNAME", "")
    if len(names) > 1:
        return _takes_none(reading, names, settings.get("NCCL_SOCKET_FAMILY", ""))
    family = {"AF_INET": "IPv4 ", "AF_INET6": "IPv6 "}.get(settings.get("NCCL_SOCKET_FAMILY", ""), "")
    text = f"NCCL can use none of {_all(reading)}, expected an interface that is up and has an {family}address"
    if family:
        return InterfaceTrouble(
            text, None, "NCCL_SOCKET_FAMILY", "Unset NCCL_SOCKET_FAMILY, or give an interface such an address."
        )
    return InterfaceTrouble(text, fix="On that node: ip -br addr; bring an interface up, and give it an address.")


def _takes_none(reading: Facts, names: str, family: str) -> InterfaceTrouble:
    taken = {name: link for name, link in reading["interfaces"].items() if interface_rules.takes(names, name)}
    begin = f"NCCL_SOCKET_IFNAME is {names!r}, which selects"
    if not taken:
        meant = "" if names.startswith("^") else _meant(names.removeprefix("="), reading)
        return InterfaceTrouble(f"{begin} no interface of this node, expected one of {_all(reading)}{meant}", None)
    states = words.some(f"{name} ({_state(link, family)})" for name, link in taken.items())
    return InterfaceTrouble(f"{begin} only {states}; expected one that is up and has an address", next(iter(taken)))


def _gloo_gives_up(reading: Facts, some: Sequence[Chosen]) -> InterfaceTrouble | None:
    names = reading["settings"].get("GLOO_SOCKET_IFNAME", "")
    if len(names) < 2:
        nowhere = [first["address"] for first in some if not first["interface"]]
        text = "gloo listens on {}, to which the host's own name resolves, but no interface has it; expected one of {}"
        fix = "Give the host's name its real address in its /etc/hosts, or set GLOO_SOCKET_IFNAME."
        return InterfaceTrouble(text.format(nowhere[0], _all(reading)), fix=fix) if nowhere else None
    found = {first["interface"] for first in some}
    for name in names.removesuffix(",").split(","):  # std::getline gives no empty word at the end
        if name not in found:
            begin = f"GLOO_SOCKET_IFNAME is {names!r}, and {name or 'an empty word'}"
            if name in reading["interfaces"]:
                return InterfaceTrouble(f"{begin} has no address; expected one of {_all(reading)}", name)
            return InterfaceTrouble(
                f"{begin} is not an interface of this node; expected one of {_all(reading)}{_meant(name, reading)}",
                None,
            )
    return None


def _meant(name: str, reading: Facts) -> str:
    import difflib  # not where the names are right

    near = difflib.get_close_matches(name, reading["interfaces"], n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _state(link: Interface, family: str) -> str:
    if link["state"] != "up":
        return link["state"]
    return {"AF_INET": "no IPv4 address", "AF_INET6": "no IPv6 address"}.get(family, "no address")


def _all(reading: Facts, most: int = 6) -> str:
    """Interfaces that have an address: "eth0 (10.0.0.1), ib0 (10.1.0.1, down)"."""
    shown = []
    for name, link in reading["interfaces"].items():
        address = link["addresses"][0].partition("/")[0] if link["addresses"] else ""
        if address and not tcp.is_loopback(address):
            shown.append(f"{name} ({address})" if link["state"] == "up" else f"{name} ({address}, {link['state']})")
    return words.some(shown, most) or "only loopback"
