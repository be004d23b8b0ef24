"""Interface errors: since the run started, no interface of the backend has lost its link, damaged or dropped packets.

Runs last: compares what net.interfaces counted at the start with the counters after the collectives have used the
interfaces. Counts also the legs of a bond and the card under a VLAN.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypedDict

from preflight.check import (
    Action,
    After,
    Code,
    Context,
    Finding,
    Level,
    NotApplicable,
    Plan,
    Run,
    Scope,
    Severity,
    Skip,
    option,
    ranges,
    words,
)
from preflight.checks.net.shared import packet_counters
from preflight.checks.net.shared.packet_counters import BACKLOG, CHECKSUMS, MOST, PROCESSED, Counters
from preflight.sdk import addresses

INTERFACES = "net.interfaces"
PLAN = Plan(Scope.NODE, Level.STANDARD, deadline_s=20, estimate_s=0.1, after={INTERFACES: After.READS}, last=True)
DROPPED_SHARE = option(float, 0.01, "warn if an interface drops this share of its packets during the run")
"""A tenth of it is worth knowing: at 0.1 percent one TCP connection carries at most 4.5 Gbit/s over round trips of
0.1 ms with an MTU of 1500 (Mathis et al., 1997)."""
WORTH_KNOWING = 0.1
LEAST = 100
"""So few packets say nothing about a share."""

WENT_DOWN = Code(
    "An interface lost its link during the run.",
    fix="On {node}: dmesg -T | grep {interface}; ethtool {interface}; reseat or replace the cable or transceiver, "
    "check the switch port. Drain the node until the link stays up.",
    action=Action.REPLACE,
)
DAMAGED = Code(
    "Packets were damaged or lost by a link: its interface's error counters rose.",
    fix="On {node}: ip -s -s link show {interface} and ethtool -S {interface}; reseat or replace the cable or "
    "transceiver, check the switch port's counters. Drain the node if they keep rising.",
    action=Action.REPLACE,
)
CHECKSUM = Code(
    "Packets with wrong checksums arrived: something on the way, or the sender's card, alters data.",
    fix="On the nodes: nstat -az TcpInCsumErrors UdpInCsumErrors, ethtool -S {interface}; ethtool -K {interface} rx "
    "off tx off shows whether a card's offload is at fault; check cables and switch ports. TCP's checksum lets about "
    "1 of 65,536 altered packets pass.",
    action=Action.NONE,
)
DROPPED = Code(
    "A node drops packets that it sends or has received.",
    fix="On {node}: {look}",
)
RETRANSMITS = Code(
    "TCP sent a large share of its segments again.",
    fix="Look for the pairs that lose packets (--only net.mesh); on the nodes: nstat -az | grep -i -e retrans -e drop, "
    "ip -s -s link show {interface}; look at drops on switches.",
    action=Action.NONE,
    see=("net.mesh",),
)

SURE = 3
"""So many wrong packets are no accident."""
BIT_ERROR_RATE = 1e-12
"""What IEEE 802.3 allows; with error correction sound links have far fewer."""
LINK_ERRORS = ("rx_errors", "tx_errors")
"""The sums of all kinds (Documentation/networking/statistics.rst of the kernel)."""


class Loss(NamedTuple):
    """A place where a host drops packets, and how to look at it."""

    place: str
    counters: tuple[str, ...]
    """Of these drivers count one packet in several: the largest counts. `rx_dropped` is none of them: it rises on sound
    hosts with each packet of a protocol that nobody there speaks."""
    packets: str
    look: str


LOSSES = (
    Loss("in its receive ring", ("rx_missed_errors", "rx_fifo_errors", "rx_over_errors"), "rx_packets",
         "ethtool -g {interface} and ethtool -G {interface} rx MAXIMUM; spread its interrupts over more cores "
         "(grep {interface} /proc/interrupts)."),
    Loss("by a rule for what it receives", ("ingress_drops",), "rx_packets",
         "tc -s qdisc show dev {interface}; tc -s filter show dev {interface} ingress; remove the policer."),
    Loss("in its queue to send", ("queue_drops", "tx_dropped"), "tx_packets",
         "tc -s qdisc show dev {interface}; lengthen the queue, or remove the limit or the loss that is set there."),
)  # fmt: skip
OF_CORES = Loss(
    "in its cores' backlogs", (BACKLOG,), PROCESSED,
    "sysctl -w net.core.netdev_max_backlog=10000; spread received packets over more cores (RPS, RSS).",
)  # fmt: skip


class Facts(TypedDict):
    counters: Counters


def measure(ctx: Context) -> Facts:
    if len(ctx.job.nodes) < 2:
        raise NotApplicable("one node: no packet of the job leaves it")
    ctx.doing("asking the kernel for the counters of interfaces")
    try:
        names = {entry.interface.partition(":")[0] for entry in addresses.listed() if entry.text}
        return {"counters": packet_counters.counted(names)}
    except OSError as error:  # a container may not be allowed netlink sockets
        raise Skip(f"the kernel does not tell the counters of interfaces: {error.strerror or error}") from error


class NodeRise(NamedTuple):
    """How a node's counters rose during the run."""

    node: str
    interfaces: dict[str, dict[str, int]]
    gone: list[str]
    """Interfaces that are no longer there."""
    host: dict[str, int]

    @property
    def first(self) -> str:
        """The interface of the backend's first connections."""
        return next(iter(self.interfaces), "")


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    rises = _rises(facts, run)
    for rank in facts.keys() - rises.keys():
        text = "what its interfaces had counted at the start of the run is unknown: see net.interfaces"
        yield DAMAGED.not_measured(text, node=run.job.node_of(rank).node)
    for rise in rises.values():
        yield from _of_links(rise)
        yield from _dropped(rise, run[DROPPED_SHARE])
    yield from _checksums(rises)
    yield from _retransmits(rises, run)


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    rises = _rises(facts, run).values()
    names = list(dict.fromkeys(name for rise in rises for name in rise.interfaces))
    segments, again = (sum(rise.host.get(f"Tcp {name}", 0) for rise in rises) for name in ("OutSegs", "RetransSegs"))
    shown = f"{words.some(names, 3)} on {ranges.count(len(rises), 'node')} compared with the start of the run"
    return f"{shown}, {again / segments:.2%} of {segments:,} TCP segments sent again" if segments else shown


def _rises(facts: Mapping[int, Facts], run: Run) -> dict[int, NodeRise]:
    """By rank, where both looks are known."""
    found = {}
    for rank, reading in run.facts(INTERFACES).items():
        before: Counters | None = reading.get("counters")
        if rank not in facts or not before or not before["interfaces"]:
            continue
        after = facts[rank]["counters"]
        there = {name: counters for name, counters in before["interfaces"].items() if name in after["interfaces"]}
        rose = {name: packet_counters.risen(before, after["interfaces"][name]) for name, before in there.items()}
        gone = [name for name in before["interfaces"] if name not in there and len(after["interfaces"]) < MOST]
        host = packet_counters.risen(before["host"], after["host"])
        found[rank] = NodeRise(run.job.node_of(rank).node, rose, gone, host)
    return found


def _of_links(rise: NodeRise) -> Iterator[Finding]:
    for name in rise.gone:
        text = f"{name} is gone after the run, expected it as at its start"
        yield WENT_DOWN.warn(text, node=rise.node, interface=name)
    for name, rose in rise.interfaces.items():
        where = {"node": rise.node, "interface": name}
        if times := rose.get("went_down"):
            text = f"{name} lost its link {ranges.count(times, 'time')} during the run, expected never"
            yield WENT_DOWN.warn(text, **where)
        errors = {counter: rose[counter] for counter in LINK_ERRORS if counter in rose}
        allowed = SURE + 8 * BIT_ERROR_RATE * (rose.get("rx_bytes", 0) + rose.get("tx_bytes", 0))
        if sum(errors.values()) > allowed:
            kinds = {counter: count for counter, count in rose.items() if counter.endswith("_errors")}
            yield DAMAGED.warn(f"{name} counted {_listed(kinds)} during the run, expected none", **where)


def _dropped(rise: NodeRise, limit: float) -> Iterator[Finding]:
    places: list[tuple[Loss, str, dict[str, int]]] = []
    places += [(loss, name, rose) for name, rose in rise.interfaces.items() for loss in LOSSES]
    for loss, name, rose in (*places, (OF_CORES, "", rise.host)):
        dropped = max(rose.get(counter, 0) for counter in loss.counters)
        of = dropped + rose.get(loss.packets, 0)
        share = dropped / max(1, of)
        if dropped >= LEAST and share >= WORTH_KNOWING * limit:
            place = f"{loss.place} of {name}" if name else loss.place
            text = f"{rise.node} dropped {dropped:,} of {of:,} packets ({share:.2%}) {place}"
            severity = Severity.WARN if share >= limit else Severity.INFO
            look = loss.look.format(interface=name or rise.first)
            text += f", expected less than {WORTH_KNOWING * limit:.2%}"
            yield DROPPED.finding(severity, text, node=rise.node, interface=name or None, evidence={"look": look})


def _checksums(rises: Mapping[int, NodeRise]) -> Iterator[Finding]:
    """Whoever counts them is the victim of anything on the way: named only where it is the only one of several."""
    wrong = {rank: {name: rise.host[name] for name in CHECKSUMS if name in rise.host} for rank, rise in rises.items()}
    bad = {rank: _listed(counts) for rank, counts in wrong.items() if sum(counts.values()) >= SURE}
    if bad:
        text = f"packets with wrong checksums arrived during the run ({_by_node(bad, rises)}), expected none"
        node = rises[min(bad)].node if len(bad) == 1 and len(rises) > 2 else None
        yield CHECKSUM.warn(text, node=node, **_noticed(bad, rises))


def _retransmits(rises: Mapping[int, NodeRise], run: Run) -> Iterator[Finding]:
    """Names no node: whoever sends again is the victim of a loss anywhere on the way."""
    limit, bad = run[DROPPED_SHARE], {}
    for rank, rise in rises.items():
        segments, again = rise.host.get("Tcp OutSegs", 0), rise.host.get("Tcp RetransSegs", 0)
        if again >= LEAST and again >= limit * segments:
            bad[rank] = f"{again:,} of {segments:,} segments ({again / max(1, segments):.1%})"
    if bad:
        text = f"TCP sent segments again during the run ({_by_node(bad, rises)}), expected less than {limit:.1%}"
        yield RETRANSMITS.info(text, **_noticed(bad, rises))


def _by_node(bad: Mapping[int, str], rises: Mapping[int, NodeRise]) -> str:
    return words.clauses((f"{rises[rank].node}: {text}" for rank, text in bad.items()), 3)


def _noticed(bad: Mapping[int, str], rises: Mapping[int, NodeRise]) -> dict[str, object]:
    return {"noticed_by": tuple(bad), "evidence": {"interface": rises[min(bad)].first}}


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
