"""Interfaces: the one that NCCL or gloo will listen on is up, has a unique address, and leads to the other nodes.

One rank per node lists the interfaces and their addresses, applies the rules by which NCCL and gloo choose
(interface_rules.py), and asks the kernel which interface leads to MASTER_ADDR. Judges the backend of the run. Only
what differs between nodes, or cannot work across hosts, is a fault; on a single host it is not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from preflight.check import Action, Code, Context, Finding, Level, Plan, Run, Scope, Severity, Skip, ranges, vote, words
from preflight.checks.net.interfaces import interface_table
from preflight.checks.net.interfaces.interface_table import (
    TRANSPORT,
    VARIABLES,
    Choice,
    Facts,
    InterfaceTrouble,
    World,
    why_none,
)
from preflight.checks.net.shared import links, packet_counters
from preflight.checks.net.shared.packet_counters import Counters
from preflight.nccl import config_files, interface_rules, version
from preflight.nccl.interface_rules import Chosen
from preflight.sdk import addresses, tcp
from preflight.sdk.addresses import Address

PLAN = Plan(Scope.NODE, Level.QUICK, deadline_s=20, estimate_s=0.1)

NONE = Code(
    "The backend finds no interface to listen on.",
    fix="On that node: ip -br addr; set {variable} to an interface that is up and has an address, or unset it.",
)
DOWN = Code(
    "The backend listens on an interface that is down.",
    fix="On that node: ip link set {interface} up; check its cable and switch port (ethtool {interface}), or set "
    "{variable}={use} on all nodes.",
)
LOOPBACK = Code(
    "The backend listens on loopback in a job with several hosts.",
    fix="Set {variable} to the interface that joins the nodes ({use}), on all of them: ip -br addr.",
)
SHARED = Code(
    "The backend listens on an address that another node also has.",
    fix="Set {variable} to the interface that joins the nodes ({use}), on all of them; if it already is, give "
    "each node its own address (ip -br addr).",
)
FAMILY = Code(
    "Nodes listen on addresses of different families, IPv4 and IPv6.",
    fix="On each node: ip -br addr show {interface}; fix the address that is missing (DHCP, static configuration).",
)
INTERNAL = Code(
    "The backend listens on a bridge of the host's own containers or virtual machines.",
    fix="Set {variable} to the interface that joins the nodes ({use}), on all of them: ip -br addr.",
)
LINK_LOCAL = Code(
    "The backend listens on a link-local address.",
    fix="On that node: ip -br addr; give {interface} an address (DHCP, static configuration), or set {variable}={use} "
    "on all nodes.",
)
DIFFERENT_NETWORK = Code(
    "A node listens in a different network than the other nodes.",
    fix="ip -br addr on each node; set {variable} to the interfaces of one network, on all of them.",
)
MTU_LIMIT = ", if the switch port carries it (else large packets are lost); in a pod, in the CNI's configuration."
MTU = Code(
    "The interface's MTU differs from the other nodes'.",
    fix="ip link show {interface} on each node; ip link set {interface} mtu {usual}, and in its configuration"
    + MTU_LIMIT,
)
SPEED = Code(
    "The interface is slower than the other nodes'.",
    fix="On that node: ethtool {interface}; check cable, transceiver and switch port.",
    action=Action.REPLACE,
)
ROUTE = Code(
    "The route to MASTER_ADDR uses a different interface than the backend.",
    fix="If the job hangs while connecting: {variable}={use} on all nodes.",
)
ONE_NETWORK = (
    "Give each interface its own network, or rules by source address (ip rule add from ADDRESS table ...) and "
    "sysctl net.ipv4.conf.all.arp_filter=1; else all goes over one of them, or is dropped (rp_filter)."
)
SECOND_INTERFACE = Code(
    "NCCL also uses an interface whose address other nodes have, too.",
    fix="Set NCCL_SOCKET_IFNAME={use} on all nodes.",
)

SETTINGS = ("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_COMM_ID", "GLOO_SOCKET_IFNAME", *TRANSPORT)
LONGEST = 200
"""The most characters of a value to keep."""


def measure(ctx: Context) -> Facts:
    ctx.doing("listing the interfaces")
    try:
        entries = addresses.listed()
    except OSError as error:  # a container may not be allowed netlink sockets
        raise Skip(f"the interfaces cannot be listed: {error.strerror}") from error
    in_files = config_files.read(ctx.environ)["settings"]
    added = {name: setting for name, setting in in_files.items() if name.startswith("NCCL_")}
    settings = {name: setting["value"] for name, setting in added.items()} | dict(ctx.environ)
    ctx.doing("looking up MASTER_ADDR and the host's own name")
    taken, route = _looked_up(ctx, entries)
    is_known = bool(taken["gloo"]) or len(settings.get("GLOO_SOCKET_IFNAME", "")) > 1
    chosen = [word for name in VARIABLES.values() for word in settings.get(name, "").lstrip("^=").split(",")]
    named = [*chosen, *(address["interface"].partition(":")[0] for some in taken.values() for address in some)]
    interfaces, left_out = links.read(entries, named)
    facts: Facts = {
        "interfaces": interfaces,
        "left_out": left_out,
        "chosen": {"nccl": taken["nccl"], "gloo": taken["gloo"] if is_known else None},
        "settings": {name: settings[name][:LONGEST] for name in SETTINGS if name in settings},
        "files": {name: added[name]["origin"] for name in SETTINGS if name in added},
        "route": route,
        "host": links.host(entries),
        "has_rdma": links.has_rdma(),
        "nccl": version.installed(),
        "counters": _counters(taken[ctx.job.backend]),
    }
    if ctx.job.backend == "gloo" and not is_known:
        why = f"looking up the host's own name, by which gloo listens, took over {interface_rules.PATIENCE_S:g} s"
        raise Skip(f"{why} (time getent hosts $(hostname))", facts)
    return facts


def _counters(taken: Sequence[Chosen]) -> Counters | None:
    """For net.interface_errors, which compares them with those at the end of the run."""
    try:
        return packet_counters.counted({address["interface"].partition(":")[0] for address in taken})
    except OSError:
        return None


def _looked_up(ctx: Context, entries: Sequence[Address]) -> tuple[dict[str, list[Chosen]], str]:
    """(what each backend takes, the interface to MASTER_ADDR), looked up in parallel: a name server may be slow."""
    calls: dict[str, Callable[[], Any]] = {
        backend: partial(interface_rules.by, backend, ctx.environ) for backend in VARIABLES
    }
    calls["route"] = partial(_interface_to_master, ctx.endpoint, entries)
    answers = tcp.in_time(calls, 2 * interface_rules.PATIENCE_S)  # each has its own limit
    return {backend: answers.get(backend, []) for backend in VARIABLES}, answers.get("route", "")


def _interface_to_master(endpoint: tuple[str, int] | None, entries: Sequence[Address]) -> str:
    if endpoint is None:
        return ""
    name, port = endpoint
    asked = tcp.in_time({"": partial(tcp.resolve, name, port)}, interface_rules.PATIENCE_S)
    _, targets, _ = asked.get("", (0.0, {}, ""))
    for address, (family, place) in targets.items():
        source = links.towards(family, place)
        if source:
            is_here = address.partition("%")[0] == source or tcp.is_loopback(source)
            return "" if is_here else interface_rules.interface_of(entries, source)
    return ""


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    found = [*_of_backend(facts, run)]
    yield from found
    if run.job.backend == "nccl":
        yield from _gloo_beside(World(facts, run))
    else:
        subjects = [_about(finding) for finding in found]
        beside = _nccl_beside(World(facts, run, backend="nccl"))
        yield from (finding for finding in beside if _about(finding) not in subjects)


def _about(finding: Finding) -> tuple[Code, str | None, str | None]:
    """What identifies a finding: if both backends are told to use an interface, its fault is reported once."""
    return finding.code, finding.where.get("node"), finding.where.get("interface")


def _of_backend(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    first = World(facts, run)
    yield from _none(first)
    if first.has_several_hosts:
        yield from _of_several_hosts(first)
        lists = [reading["chosen"]["gloo"] or [] for reading in facts.values() if run.job.backend == "gloo"]
        for place in range(1, max(map(len, lists), default=0)):
            yield from _of_several_hosts(World(facts, run, place))


def _of_several_hosts(world: World) -> Iterator[Finding]:
    """Judges in steps; a node found at fault in one is left out of the next."""
    for find in (_down, _loopback, _shared, _family, _internal, _link_local, _other_network):
        yield from find(world)
    for find in (_mtu, _speed, _other_route, _also):
        yield from find(world)


record = interface_table.record


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    world = World(facts, run)
    if not world.left:
        return f"{world.called} finds no interface"
    choices_ = list(world.left.values())
    names = list(dict.fromkeys(choice.name for choice in choices_))
    mtus = sorted({choice.link["mtu"] for choice in choices_ if choice.link["mtu"]})
    speeds = sorted({choice.link["speed_mbps"] for choice in choices_ if choice.link["speed_mbps"]})
    of = f" on {ranges.count(len(choices_), 'node')}" if len(facts) > 1 else f" ({choices_[0].address})"
    parts = [f"{world.called} takes {words.some(names, 3)}{of}"]
    parts += [f"MTU {' or '.join(map(str, mtus[:3]))}"] if mtus else []
    parts += [" or ".join(map(words.link_rate, speeds[:3]))] if speeds else []
    return ", ".join(parts)


# On each node


def _none(world: World) -> Iterator[Finding]:
    """No interface to listen on, which stops even a single host."""
    why = {rank: why_none(reading, world.backend) for rank, reading in world.facts.items()}
    yield from world.findings(NONE.fail, {rank: trouble for rank, trouble in why.items() if trouble})


def _gloo_beside(world: World) -> Iterator[Finding]:
    """Judges gloo in a run on NCCL: many such jobs also have a gloo group."""
    for rank, reading in world.facts.items():
        trouble = why_none(reading, "gloo") if "GLOO_SOCKET_IFNAME" in reading["settings"] else None
        if trouble:
            name = "GLOO_SOCKET_IFNAME"
            where = {"node": world.run.job.node_of(rank).node, "variable": name, "evidence": {"variable": name}}
            yield NONE.info(trouble.text, **where)


def _nccl_beside(world: World) -> Iterator[Finding]:
    """Judges NCCL in a run on gloo, if variables tell NCCL what to use: then a job on NCCL is planned."""
    asked = [rank for rank in world.facts if world.is_set(rank)]
    world.leave_out([rank for rank in world.facts if rank not in asked])
    why = {rank: why_none(world.facts[rank], "nccl") for rank in asked}
    found = [*world.findings(NONE.warn, {rank: trouble for rank, trouble in why.items() if trouble})]
    for find in (_down, _loopback, _shared, _internal, _link_local) if world.has_several_hosts else ():
        found += find(world)
    for each in found:
        yield replace(each, severity=Severity.WARN, message=f"{each.message} (NCCL is not used in this run)")


def _down(world: World) -> Iterator[Finding]:
    """Interfaces that are down: their address accepts connections, but only from this host. NCCL avoids them since
    2.28."""

    def why(rank: int, choice: Choice) -> str:
        state = {"down": "is down", "no carrier": "has no carrier"}.get(choice.link["state"])
        called = f"NCCL {world.facts[rank]['nccl']}".rstrip() if world.backend == "nccl" else world.called
        return f"{called} takes {choice}, which {state}; expected an interface that is up" if state else ""

    yield from world.each(DOWN.fail, why)


def _loopback(world: World) -> Iterator[Finding]:
    """Loopback addresses; net.rendezvous reports those that gloo takes by the host's own name."""
    lost = [rank for rank, choice in world.left.items() if tcp.is_loopback(choice.address)]
    asked = {rank: world.left[rank] for rank in lost if world.backend == "nccl" or world.is_set(rank)}
    text = f"{world.called} takes {{}}, expected an interface that other hosts reach"
    troubles = {rank: InterfaceTrouble(text.format(choice), choice.name) for rank, choice in asked.items()}
    yield from world.findings(LOOPBACK.fail, troubles)
    world.leave_out(lost)


def _shared(world: World) -> Iterator[Finding]:
    """Addresses on several hosts: who connects reaches itself, or the wrong node."""
    takers: dict[tuple[str, str], list[int]] = {}
    for rank, choice in world.left.items():
        if len(world.hosts_of.get(choice.address, ())) > 1 and not (choice.is_ipv6 and choice.is_link_local):
            takers.setdefault((choice.name, choice.address), []).append(rank)
    hosts = len({reading["host"] for reading in world.facts.values()})
    for (name, address), ranks_ in takers.items():
        having = len(world.hosts_of[address])
        owners = f"all {hosts:,} hosts" if having == hosts else ranges.count(having, "host")
        text = f"{world.called} takes {name} ({address}) on {world.nodes(ranks_)}, an address that {owners} have; "
        text += "expected one that no other host has"
        yield SHARED.fail(text, **world.details(ranks_, InterfaceTrouble("", name)))
    world.leave_out([rank for ranks_ in takers.values() for rank in ranks_])


def _internal(world: World) -> Iterator[Finding]:
    text = f"{world.called} takes {{}}, which joins this host with its own containers or virtual machines; expected an "
    text += "interface that other hosts reach"
    yield from world.each(INTERNAL.warn, lambda _, choice: text.format(choice) if choice.is_internal else "")


def _link_local(world: World) -> Iterator[Finding]:
    text = f"{world.called} takes {{}}, a link-local address; expected one that is valid beyond its own link"
    yield from world.each(LINK_LOCAL.warn, lambda _, choice: text.format(choice) if choice.is_link_local else "")


# Between nodes


def _family(world: World) -> Iterator[Finding]:
    """gloo refuses a pair of different families (Device::isInitiator in gloo/transport/tcp/device.cc); NCCL connects
    if both hosts have both."""
    votes = vote({rank: "IPv6" if choice.is_ipv6 else "IPv4" for rank, choice in world.left.items()})
    if votes.unanimous:
        return
    found = FAMILY.fail if world.backend == "gloo" or not world.all_have_ipv6() else FAMILY.warn
    odd = dict(votes.odd())
    for rank in odd:
        choice = world.left[rank]
        text = f"{world.called} takes {choice}, expected an {votes.usual} address as on {votes.share('node')}"
        yield found(text, **world.details([rank], world.at(rank)))
    if not votes.decided:
        sides = " and ".join(f"{family} on {world.nodes(ranks_)}" for family, ranks_ in votes.ranks_of.items())
        text = f"{world.called} takes addresses of {sides}; expected one family on all nodes"
        yield found(text, **world.details([*world.left], world.at(next(iter(world.left)))))
    world.leave_out(odd if votes.decided else [*world.left])


def _other_network(world: World) -> Iterator[Finding]:
    """Several networks are normal if routers join them; such nodes are still compared. A node that takes Ethernet
    beside InfiniBand, or ignores its own address in the others' network, is a fault."""
    votes = vote({rank: choice.network for rank, choice in world.left.items()})
    routed = []
    for rank, _ in votes.odd():
        choice, usual = world.left[rank], world.left[votes.ranks_of[votes.usual][0]]
        beside = world.in_network(rank, {votes.usual})
        if beside or (choice.link["kind"] == "infiniband") != (usual.link["kind"] == "infiniband"):
            text = f"{world.called} takes {choice}, expected one in {votes.usual} as on {votes.share('node')}"
            why = (
                f"; its {beside} is in that, and is {world.state(rank, beside)}" if beside else f" ({usual.name} there)"
            )
            yield DIFFERENT_NETWORK.warn(text + why, **world.details([rank], world.mended(rank, beside)))
            world.leave_out([rank])
        else:
            routed.append(rank)
    if routed:
        networks = words.some(dict.fromkeys(world.left[rank].network for rank in routed), 3)
        text = f"{world.called} takes {networks} on {world.nodes(routed)}, expected {votes.usual}"
        text += f" as on {votes.share('node')}"
        yield DIFFERENT_NETWORK.info(text, **world.details(routed, world.at(routed[0])))
    if not votes.decided and (able := [rank for rank in world.left if world.in_network(rank, votes.ranks_of)]):
        sides = words.some((f"{name} on {world.nodes(ranks_)}" for name, ranks_ in votes.ranks_of.items()), last=", ")
        text = f"{world.called} takes {sides}; expected one network, as {world.nodes(able)} could have"
        yield DIFFERENT_NETWORK.warn(text, **world.details([*world.left], world.at(able[0])))


def _mtu(world: World) -> Iterator[Finding]:
    votes = vote((rank, choice.link["mtu"]) for rank, choice in world.left.items() if choice.link["mtu"])
    for rank, mtu in votes.odd():
        choice = world.left[rank]
        text = f"the MTU of {choice} is {mtu:,}, expected {votes.usual:,} as on {votes.share('node')}"
        yield MTU.warn(text, **world.details([rank], world.at(rank), usual=votes.usual))
    if not votes.unanimous and not votes.decided:
        sides = words.some((f"{mtu:,} on {world.nodes(ranks_)}" for mtu, ranks_ in votes.ranks_of.items()), last=", ")
        text = f"the MTU of what {world.called} takes is {sides}; expected the same on all nodes"
        fix = "ip link show {interface} on each node; ip link set {interface} mtu MTU, the same on all" + MTU_LIMIT
        yield MTU.warn(text, **world.details([*world.left], world.at(next(iter(world.left)))._replace(fix=fix)))


def _speed(world: World) -> Iterator[Finding]:
    """Only info if NCCL uses RDMA: then little goes over its sockets."""
    votes = vote((rank, choice.link["speed_mbps"]) for rank, choice in world.left.items() if choice.link["speed_mbps"])
    for rank, speed in votes.odd():
        choice, usual = world.left[rank], votes.usual
        if speed and usual and speed < usual:
            most = f"{words.link_rate(usual)} as on {votes.share('node')}"
            text = f"{choice} runs at {words.link_rate(speed)}, expected {most}"
            is_felt = world.backend == "gloo" or not world.uses_rdma(rank)
            found = SPEED.warn if is_felt else SPEED.info
            yield found(text, **world.details([rank], world.at(rank)))


def _other_route(world: World) -> Iterator[Finding]:
    """Normal if requested, or if it is InfiniBand, unless both interfaces are in one network: then the kernel sends
    over the first of them, whatever address a socket has (ip-sysctl.rst: arp_filter, rp_filter)."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for rank, choice in world.left.items():
        route = world.facts[rank]["route"]
        network = choice.network if world.is_in(rank, route, choice.network) else ""
        is_meant = world.is_set(rank) or choice.link["kind"] == "infiniband"
        if route not in ("", choice.name) and (network or not is_meant):
            found.setdefault((choice.name, route, network), []).append(rank)
    for (name, route, network), ranks_ in found.items():
        text = f"{world.called} takes {name} on {world.nodes(ranks_)}, but the route to MASTER_ADDR uses {route}"
        text += f", which is in the same network {network}" if network else ""
        trouble = InterfaceTrouble("", name, fix=ONE_NETWORK if network else None)
        yield ROUTE.info(f"{text}; expected one interface for both", **world.details(ranks_, trouble, use=route))


def _also(world: World) -> Iterator[Finding]:
    """NCCL's sockets carry data over all interfaces found that are as fast as the first (ncclTopoGetLocal in
    src/graph/topo.cc), not just over one."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank in world.left if world.backend == "nccl" else ():
        if not world.uses_rdma(rank):
            for choice in world.also_taken(rank):
                found.setdefault((choice.name, choice.address), []).append(rank)
    for (name, address), ranks_ in found.items():
        text = f"NCCL also takes {name} ({address}) on {world.nodes(ranks_)}, an address that another host has"
        yield SECOND_INTERFACE.info(
            f"{text}; expected only interfaces that join the nodes", **world.details(ranks_, InterfaceTrouble("", name))
        )
