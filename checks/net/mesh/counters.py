"""What the kernel counts of damaged and dropped packets on the interface of net.mesh, before and after its traffic."""

from collections.abc import Iterator, Mapping

from preflight.check import Action, Code, Finding, Run, read, words
from preflight.checks.net.mesh.pair_tables import Nodes
from preflight.checks.net.mesh.sent import SURE

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
LINK_ERRORS = ("rx errs", "tx errs")
"""Of /proc/net/dev (Documentation/networking/statistics.rst of the kernel), the sums of all kinds: on a sound link none
rises in seconds.
Drops and overruns do, where a host is busy or a queue short: they are only kept."""
BIT_ERROR_RATE = 1e-12
"""What IEEE 802.3 allows; with error correction sound links have far fewer."""
CHECKSUMS = (("snmp", "Tcp", "InCsumErrors"), ("snmp", "Udp", "InCsumErrors"))
DROPS = tuple(("netstat", "TcpExt", name) for name in ("TCPBacklogDrop", "PruneCalled", "RcvPruned"))
"""(file, protocol, counter) of /proc/net: what a host itself dropped whose processes did not read in time."""
_COLUMNS = (
    "rx bytes", "rx packets", "rx errs", "rx drop", "rx fifo", "rx frame", "rx compressed", "rx multicast",
    "tx bytes", "tx packets", "tx errs", "tx drop", "tx fifo", "tx colls", "tx carrier", "tx compressed",
)  # fmt: skip


def counted(interface: str, root: str = "") -> dict[str, int]:
    """The counters of this interface and of TCP and UDP, in this network namespace; those that the kernel has not are
    left out."""
    found: dict[str, int] = {}
    for line in read(f"{root}/proc/net/dev").splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            found |= dict(zip(_COLUMNS, map(int, numbers.split()), strict=False))
    for file, protocol, counter in (*CHECKSUMS, *DROPS):
        value = _values(f"{root}/proc/net/{file}", protocol).get(counter, "")
        found |= {f"{protocol} {counter}": int(value)} if value.isdecimal() else {}
    return found


def _values(path: str, protocol: str) -> dict[str, str]:
    """A line of names and one of numbers for each protocol."""
    lines = [line.split() for line in read(path).splitlines() if line.startswith(f"{protocol}:")]
    return dict(zip(lines[0], lines[1], strict=False)) if len(lines) == 2 else {}


def risen(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By how much each has risen, without those that have not."""
    return {name: new - before[name] for name, new in after.items() if new > before.get(name, new)}


def findings(nodes: Nodes, run: Run) -> Iterator[Finding]:
    for rank, reading in nodes.items():
        rose = reading.get("rose", {})
        errors = {name: rose[name] for name in LINK_ERRORS if name in rose}
        allowed = SURE + 8 * BIT_ERROR_RATE * (rose.get("rx bytes", 0) + rose.get("tx bytes", 0))
        if sum(errors.values()) > allowed:
            where = {"node": run.job.node_of(rank).node, "interface": reading["interface"]}
            yield DAMAGED.warn(
                f"{reading['interface']} counted {_describe(errors)} in this check, expected none", **where
            )
    yield from _checksums(nodes, run)


def _checksums(nodes: Nodes, run: Run) -> Iterator[Finding]:
    """Whoever counts them is the victim of anything on the way: named only where it is the only one of several."""
    names = [f"{protocol} {counter}" for _, protocol, counter in CHECKSUMS]
    wrong = {
        rank: {name: reading["rose"][name] for name in names if name in reading.get("rose", {})}
        for rank, reading in nodes.items()
    }
    bad = {rank: counts for rank, counts in wrong.items() if sum(counts.values()) >= SURE}
    if bad:
        shown = (f"{run.job.node_of(rank).node}: {_describe(counts)}" for rank, counts in bad.items())
        listed = words.clauses(shown, 3)
        first = min(bad)
        node = run.job.node_of(first).node if len(bad) == 1 and len(nodes) > 2 else None
        evidence = {"interface": nodes[first]["interface"]}
        text = f"packets with wrong checksums arrived in this check ({listed}), expected none"
        yield CHECKSUM.warn(text, node=node, noticed_by=tuple(bad), evidence=evidence)


def _describe(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
