"""Nodes with different numbers of ports, in total or of those that NCCL uses."""

from collections.abc import Iterator, Mapping, Sequence

from preflight.check import Action, Code, Finding, Run, Severity, ranges, vote, words
from preflight.checks.net.shared.port_selection import SHOWN, NodePorts, Use, sides, weighed
from preflight.nccl import hca_names

MISSING = Code(
    "A node has fewer RDMA devices than the others.",
    fix="There: ls /sys/class/infiniband; lspci | grep -i -e infiniband -e mellanox; dmesg | grep mlx5. Give a "
    "container all devices; else drain the node.",
    action=Action.REPLACE,
)
UNEQUAL = Code(
    "NCCL would use different numbers of ports on the nodes.",
    fix="Set NCCL_IB_HCA to ports that all nodes have, such as '=mlx5_0,mlx5_1'. NCCL 2.30 ignores the mismatch by "
    "default and may hang (nccl issue 2428); with NCCL_IGNORE_NET_MISMATCH=0 it fails at the start.",
)
FIX_SETTING = "Set {variable} to the same value on all nodes, also in nccl.conf: where RDMA is off, NCCL uses sockets."
SWITCHES = ("NCCL_IB_DISABLE", "NCCL_NET", hca_names.EXTERNAL_OFF)
"""Variables that turn off the whole transport."""
HCAS = "NCCL_IB_HCA"
FAIL, WARN, INFO = Severity.FAIL, Severity.WARN, Severity.INFO


def takes(node: NodePorts) -> int:
    return min(len(node.taken), hca_names.MOST) if node.uses_verbs else 0


def missing(of: Mapping[int, NodePorts], run: Run) -> tuple[list[Finding], set[int]]:
    """(findings, the nodes they name). More cards than usual are no fault here: see `unequal`. Missing cards that NCCL
    does not use are info, except EFA's, which a plugin uses. If most have none, those may not be the healthy ones."""
    votes = vote((rank, len(node.devices)) for rank, node in of.items())
    most = max(of.values(), key=lambda node: len(node.devices))
    differing = len({len(node.taken) for node in of.values()}) > 1
    worst = FAIL if differing else WARN if len(most.suited) < len(most.ports) else INFO
    severity = weighed(worst, most, most.ports[0].vendor if most.ports else "", run)
    most_have_none = votes.usual == 0 and not votes.unanimous and severity is not INFO
    if not votes.decided or most_have_none:
        text = f"the number of RDMA devices is {sides(votes.ranks_of, run)}, expected the same on all nodes"
        return [MISSING.finding(severity, text)], set(of)
    usual = of[votes.ranks_of[votes.usual][0]].devices
    fewer = {rank: number for rank, number in votes.odd() if number < votes.usual}
    expected = f"expected {votes.usual} as on {votes.share('node')}"
    return [_fewer(of[rank], usual, severity, expected, run) for rank in fewer], set(fewer)


def _fewer(node: NodePorts, usual: Sequence[str], severity: Severity, expected: str, run: Run) -> Finding:
    present = set(node.devices)
    gone = [name for name in usual if name not in present]
    known = present and len(gone) == len(usual) - len(present)
    which = f"; {words.some(gone, SHOWN)} {'is' if len(gone) == 1 else 'are'} missing" if known else ""
    text = f"{ranges.count(len(present), 'RDMA device')} there, {expected}{which}"
    device = gone[0] if known and len(gone) == 1 else None
    return MISSING.finding(severity, text, node=run.job.node_of(node.rank).node, device=device)


def unequal(of: Mapping[int, NodePorts], run: Run) -> Iterator[Finding]:
    """`of`: the nodes without a device that explains the difference. Names a node that uses fewer ports than most; one
    that uses more may not be at fault, so both sides are reported."""
    votes = vote((rank, takes(node)) for rank, node in of.items())
    if votes.unanimous:
        return
    usual = of[votes.ranks_of[votes.usual][0]]
    fewer = [rank for rank, number in votes.odd() if number < votes.usual]
    for rank in fewer:
        expected = f"expected {votes.usual} as on {votes.share('node')}"
        yield _takes_fewer(of[rank], usual, expected, run)
    rest = {number: ranks for number, ranks in votes.ranks_of.items() if not set(ranks) & set(fewer)}
    if len(rest) > 1:
        yield _both_sides(of, rest, run)


def _takes_fewer(node: NodePorts, usual: NodePorts, expected: str, run: Run) -> Finding:
    variable, differ = _cause(node, usual), _differ(node, usual)
    why = f" (they differ in {words.some((port.label for port in differ), SHOWN)})" if differ else ""
    if variable:
        setting, others = _setting(node, variable), _setting(usual, variable)
        why = f" ({variable} is {setting} there, {others} on {run.job.node_of(usual.rank).node})"
    text = f"NCCL uses {ranges.count(takes(node), 'port')}, {expected}{why}"
    return _finding(text, node, usual, variable, run, run.job.node_of(node.rank).node)


def _both_sides(of: Mapping[int, NodePorts], ranks_of: Mapping[int, Sequence[int]], run: Run) -> Finding:
    some, others = (of[ranks[0]] for ranks in list(ranks_of.values())[:2])
    variable, differ = _cause(some, others), _differ(some, others)
    why = f" (they differ in {words.some((port.label for port in differ), SHOWN)})" if differ else ""
    if variable:
        set_to: dict[str, list[int]] = {}
        for rank in sorted(rank for ranks in ranks_of.values() for rank in ranks):
            set_to.setdefault(_setting(of[rank], variable), []).append(rank)
        why = f" ({variable} is {sides(set_to, run)})"
    text = f"the number of ports that NCCL uses is {sides(ranks_of, run)}{why}, expected the same on all nodes"
    return _finding(text, some, others, variable, run)


def _finding(
    text: str, first: NodePorts, other: NodePorts, variable: str | None, run: Run, node: str | None = None
) -> Finding:
    """Milder if the two differ only in ports that are not for the job's traffic (`is_aside`)."""
    differ = _differ(first, other)
    using = max(first, other, key=takes)
    aside = differ and all(first.is_aside(port) or other.is_aside(port) for port in differ)
    severity = weighed(WARN if aside else FAIL, using, using.taken[0].vendor if using.taken else "", run)
    device = differ[0].label if len(differ) == 1 else None
    fix = FIX_SETTING if variable in SWITCHES else None
    return UNEQUAL.finding(severity, text, fix=fix, node=node, device=device, variable=variable)


def _differ(node: NodePorts, other: NodePorts) -> list[Use]:
    """Ports that NCCL uses on only one of them."""
    labels = {port.label for port in node.taken} ^ {port.label for port in other.taken}
    return sorted((port for port in (*node.taken, *other.taken) if port.label in labels), key=lambda port: port.label)


def _cause(node: NodePorts, other: NodePorts) -> str | None:
    """The variable that makes them differ, or None."""
    names = (HCAS,) if node.uses_verbs == other.uses_verbs else SWITCHES
    own, others = node.facts["settings"], other.facts["settings"]
    return next((name for name in names if own.get(name) != others.get(name)), None)


def _setting(node: NodePorts, variable: str) -> str:
    value = node.facts["settings"].get(variable)
    return "not set" if value is None else repr(value)
