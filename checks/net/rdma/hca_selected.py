"""Which of the nodes' ports NCCL_IB_HCA selects."""

from collections.abc import Iterator, Sequence

from preflight.check import Code, Run, Severity
from preflight.checks.net.shared.hca import MELLANOX
from preflight.checks.net.shared.port_selection import NodePorts, PortTrouble, weighed
from preflight.nccl import hca_names
from preflight.nccl.hca_names import Entry

NO_PORT_SELECTED = Code(
    "NCCL_IB_HCA selects no port.",
    fix="Compare NCCL_IB_HCA with ls /sys/class/infiniband there: where it selects nothing, NCCL uses sockets.",
)
UNMATCHED = Code(
    "NCCL_IB_HCA names a device or port that no node has.",
    fix="Compare NCCL_IB_HCA with ls /sys/class/infiniband on a node, and remove the name.",
)
TOO_MANY = Code(
    "NCCL uses no more than 32 ports.", fix="Set NCCL_IB_HCA to those that it should use, with an = before them."
)


def selects_nothing(all_: Sequence[NodePorts], run: Run) -> Iterator[PortTrouble]:
    worst = Severity.FAIL if any(node.wanted for node in all_) else Severity.WARN
    for node in all_:
        if node.suited and not node.wanted:
            value = node.facts["settings"]["NCCL_IB_HCA"]
            what, more = f"left out by NCCL_IB_HCA={value!r}", (("variable", "NCCL_IB_HCA"),)
            for port in node.suited:
                severity = weighed(worst, node, port.vendor, run)
                yield PortTrouble(
                    NO_PORT_SELECTED, severity, node.rank, port.label, what, "some of them taken", more=more
                )


def unmatched(all_: Sequence[NodePorts], run: Run) -> Iterator[PortTrouble]:
    """Only checks names with a number, for one device: `mlx5,irdma` may be a list for several kinds of machines."""
    matched: dict[str, set[str]] = {}
    asked: dict[str, list[NodePorts]] = {}
    for node in all_:
        if node.wanted and not node.selection.exclude:
            value = node.facts["settings"].get("NCCL_IB_HCA", "")
            asked.setdefault(value, []).append(node)
            ports = [(use.hca["name"], use.port["port"]) for use in node.suited]
            for entry in node.selection.entries:
                if any(entry.matches(*port, node.selection.exact) for port in ports):
                    matched.setdefault(value, set()).add(entry.text)
    for value, asking in asked.items():
        left = [entry for entry in asking[0].selection.entries if entry.text not in matched.get(value, ())]
        for entry in (entry for entry in left if entry.name[-1:].isdigit()):
            for node in asking:
                worst = Severity.INFO if _longer(entry, node) else Severity.WARN
                severity = weighed(worst, node, MELLANOX, run, alone=Severity.INFO)
                what, more = "not there, but named by NCCL_IB_HCA", (("variable", "NCCL_IB_HCA"),)
                yield PortTrouble(
                    UNMATCHED, severity, node.rank, entry.text, what, "only names that match a device", more=more
                )


def _longer(entry: Entry, node: NodePorts) -> bool:
    """Whether the list is for larger machines: the number exceeds those present, and no similar port is left out in its
    place."""
    kinds = {use.hca["kind"] for use in node.wanted}
    left_out = any(use.hca["kind"] in kinds for use in node.suited if use not in node.wanted)
    stem, number = _numbered(entry.name)
    numbers = [at for name, at in map(_numbered, node.devices) if name == stem]
    return not left_out and bool(numbers) and number > max(numbers)


def _numbered(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or -1)


def too_many(all_: Sequence[NodePorts]) -> Iterator[PortTrouble]:
    for node in all_:
        for use in node.taken[hca_names.MOST :]:
            what = f"beyond the {hca_names.MOST} ports that NCCL uses"
            yield PortTrouble(TOO_MANY, Severity.INFO, node.rank, use.label, what, f"at most {hca_names.MOST}")
