"""Which ports of a node NCCL uses, and findings that cover several ports or nodes in one sentence."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypedDict

from preflight.check import Code, Finding, Run, Severity, words
from preflight.checks.net.shared.hca import ETHERNET, INFINIBAND, MELLANOX, Hca, Port
from preflight.checks.net.shared.hca_peers import Tie, Value
from preflight.nccl import hca_names

SHOWN = 2
"""How many names a sentence has."""


class Facts(TypedDict):
    hcas: list[Hca]
    silent: dict[str, str]
    """{device that did not answer: its vendor}."""
    settings: dict[str, str]
    """NCCL's settings, from the environment and its files."""


@dataclass(frozen=True, eq=False)
class Use:
    """A port, and whether NCCL uses it."""

    rank: int
    hca: Hca
    port: Port

    @cached_property
    def label(self) -> str:
        """The port's name in NCCL_IB_HCA."""
        return f"{self.hca['name']}:{self.port['port']}" if len(self.hca["ports"]) > 1 else self.hca["name"]

    @property
    def vendor(self) -> str:
        return self.hca["vendor"]

    @property
    def function(self) -> str:
        """Function and port number on the card: second ports often have no cable."""
        return f"{self.hca['bus'].rpartition('.')[2]}:{self.port['port']}"

    @property
    def is_first(self) -> bool:
        return self.function in ("0:1", ":1")

    @property
    def is_active(self) -> bool:
        return self.port["state"] == "ACTIVE"

    def has(self, value: str, any_layer: bool = False) -> Value[str]:
        """A value to compare with peers: ports with the same board and link layer."""
        kind = self.hca["kind"] if any_layer else f"{self.hca['kind']} {self.port['layer']}"
        return Value(self.rank, self.label, kind, self.function, value, self)


@dataclass(frozen=True, eq=False)
class NodePorts:
    """A node's ports, with the rank that measured."""

    rank: int
    facts: Facts

    @cached_property
    def selection(self) -> hca_names.Selection:
        return hca_names.parse(self.facts["settings"].get("NCCL_IB_HCA", ""))

    @cached_property
    def ports(self) -> list[Use]:
        return [Use(self.rank, hca, port) for hca in self.facts["hcas"] for port in hca["ports"]]

    @cached_property
    def suited(self) -> list[Use]:
        """Ports whose link layer NCCL supports (ncclIbInitDevices), in any state. Not EFA's, which have a plugin."""
        return [use for use in self.ports if use.port["layer"] in (INFINIBAND, ETHERNET)]

    @cached_property
    def wanted(self) -> list[Use]:
        """Ports that NCCL_IB_HCA allows."""
        return [use for use in self.suited if self.selection.takes(use.hca["name"], use.port["port"])]

    @cached_property
    def taken(self) -> list[Use]:
        """Ports that NCCL uses, not considering its limit."""
        return [use for use in self.wanted if use.is_active and use.hca["opens"] is not False]

    @cached_property
    def boards(self) -> Counter[tuple[str, str]]:
        return Counter((use.hca["kind"], use.port["layer"]) for use in self.wanted)

    def is_aside(self, use: Use) -> bool:
        """Whether it is an Ethernet port beside more ports of another kind, as for a front end or storage: NCCL uses
        it, but the job's traffic hardly needs it."""
        own = use.hca["kind"], use.port["layer"]
        return own[1] == ETHERNET and any(number > self.boards[own] for number in self.boards.values())

    @property
    def devices(self) -> list[str]:
        """Names of all devices, including those that did not answer."""
        return [*(hca["name"] for hca in self.facts["hcas"]), *self.facts["silent"]]

    @property
    def uses_verbs(self) -> bool:
        return hca_names.uses_verbs(self.facts["settings"])

    def names(self, label: str) -> bool:
        """Whether NCCL_IB_HCA names exactly this device."""
        name = label.partition(":")[0]
        return not self.selection.exclude and any(entry.name == name for entry in self.selection.entries)


def nodes(facts: Mapping[int, Facts]) -> list[NodePorts]:
    return [NodePorts(rank, reading) for rank, reading in facts.items()]


def weighed(severity: Severity, node: NodePorts, vendor: str, run: Run, alone: Severity = Severity.WARN) -> Severity:
    """The severity, lowered on gloo, which uses no RDMA; to `alone` on one node, where nothing crosses the network; and
    for other vendors' cards, which never fail."""
    if run.job.backend != "nccl" or not node.uses_verbs:
        return Severity.INFO
    if len(run.job.nodes) < 2 and severity is not Severity.INFO:
        severity = alone
    return Severity.WARN if severity is Severity.FAIL and vendor != MELLANOX else severity


# Findings


class PortTrouble(NamedTuple):
    """A trouble of one device: "mlx5_3 is DOWN, expected ACTIVE"."""

    code: Code
    severity: Severity
    rank: int
    label: str
    what: str
    expected: str
    fix: str | None = None
    more: tuple[tuple[str, Any], ...] = ()
    """Further keys for the finding's `where`."""


def findings(troubles: Iterable[PortTrouble], run: Run, of: int) -> Iterator[Finding]:
    """One finding for all devices of a node with the same trouble, or one for all `of` nodes, which names none."""
    by_node: dict[tuple[Any, ...], list[str]] = {}
    for trouble in troubles:
        key = (trouble.code, trouble.severity, trouble.rank, trouble.what, trouble.expected, trouble.fix, trouble.more)
        by_node.setdefault(key, []).append(trouble.label)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for (code, severity, rank, *rest), labels in by_node.items():
        alike.setdefault((code, severity, *rest, tuple(dict.fromkeys(labels))), []).append(rank)
    for (code, severity, what, expected, fix, more, labels), ranks in alike.items():
        everywhere = of > 1 and len(ranks) == of
        is_ = "is" if len(labels) == 1 else "are"
        text = f"{words.some(labels, SHOWN)} {is_} {what}{_everywhere(of) if everywhere else ''}, expected {expected}"
        device = labels[0].partition(":")[0]
        evidence = {"device": device, "port": int(labels[0].partition(":")[2] or 1), "devices": list(labels)}
        where = dict(more) | ({"device": device} if len(labels) == 1 else {})
        for rank in ranks[:1] if everywhere else ranks:
            node = None if everywhere else run.job.node_of(rank).node
            yield code.finding(severity, text, evidence=evidence, fix=fix, node=node, **where)


def _everywhere(of: int) -> str:
    return " on both nodes" if of == 2 else f" on all {of:,} nodes"


def tied(
    code: Code,
    worst: Severity,
    ties: Sequence[Tie[str]],
    noun: str,
    of: Mapping[int, NodePorts],
    run: Run,
    fix: str | None = None,
) -> Iterator[Finding]:
    """Findings that name both sides, since either may be wrong."""
    alike: dict[tuple[Severity, str], list[str]] = {}
    for tie in ties:
        severity = weighed(worst, of[tie.port.rank], tie.port.about.vendor, run)
        alike.setdefault((severity, sides(tie.votes.ranks_of, run)), []).append(tie.port.label)
    for (severity, value), labels in alike.items():
        text = f"the {noun} of {words.some(labels, SHOWN)} is {value}, expected the same on all nodes"
        device = labels[0].partition(":")[0]
        only = device if len(labels) == 1 else None
        yield code.finding(severity, text, evidence={"device": device, "devices": labels}, fix=fix, device=only)


def sides(ranks_of: Mapping[Any, Sequence[int]], run: Run) -> str:
    """ "400 on node-0, 200 on node-1 and node-2"."""
    names = {value: [run.job.node_of(rank).node for rank in ranks] for value, ranks in ranks_of.items()}
    return words.some((f"{value} on {words.some(nodes, SHOWN)}" for value, nodes in names.items()), last=", ")
