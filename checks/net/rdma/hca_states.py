"""Ports that are not ACTIVE. A port that is up is never called odd, even if most others are down."""

from collections.abc import Iterator, Mapping, Sequence

from preflight.check import Action, Code, Finding, Run, Severity, compare
from preflight.checks.net.shared.hca import INFINIBAND
from preflight.checks.net.shared.hca_counters import WENT_DOWN
from preflight.checks.net.shared.hca_peers import Tie, compare_ports, differs_from_siblings
from preflight.checks.net.shared.port_selection import NodePorts, PortTrouble, Use, tied, weighed

DOWN = Code(
    "A port that NCCL would use is not ACTIVE.",
    fix="There: ibstat {device}; mlxlink -d {device}. Polling: check the cable, its transceivers and the switch port. "
    "Disabled: enable it (ip link set dev INTERFACE up). Else drain the node.",
    action=Action.REPLACE,
)
FIX_WAITS = "There: ibstat {device}; sminfo. The link is up, but no subnet manager configured it: check that one runs."
FIX_TIED = (
    "Where it is not ACTIVE: ibstat {device}; mlxlink -d {device}; check the switch that these nodes share. If it is "
    "not meant to be up, leave it out with NCCL_IB_HCA on all nodes."
)
FIX_EVERYWHERE = (
    "Check the switch that all of these connect to, and on one node mlxlink -d {device}. If it is not cabled, it costs "
    "nothing."
)
ACTIVE, POLLING = "ACTIVE", "Polling"
FAIL, WARN, INFO = Severity.FAIL, Severity.WARN, Severity.INFO


def not_active(of: Mapping[int, NodePorts], run: Run) -> tuple[list[PortTrouble], list[Tie[str]]]:
    """(ports that are down, ties that leave open whether they should be up). A port down on all nodes is intended,
    except one that waits for its subnet manager, or that NCCL_IB_HCA asks for. A port down on most nodes may be
    intended: of these, only those that were up before are named."""
    known = [use for node in of.values() for use in node.wanted if use.port["state"]]
    dead = _dead_alone(known) if len(run.job.nodes) == 1 else set()
    down: dict[Use, PortTrouble] = {}
    undecided: list[Tie[str]] = []
    for item in compare_ports((use.has(use.port["state"]) for use in known), good=ACTIVE):
        if isinstance(item, Tie):
            undecided += [item] if ACTIVE in item.votes.ranks_of else []
        elif item.usual == ACTIVE:
            use = item.port.about
            worst, alone = FAIL if item.has_twin or use in dead else WARN, FAIL if use in dead else WARN
            down[use] = _down(use, of, run, item.as_on, worst, alone)
    differing = {item.port.label for item in undecided}
    for use in known:
        why = "" if use.is_active or use in down else _why(use, of[use.rank], differing)
        if why:
            down[use] = _down(use, of, run, why, FAIL if use.label in differing else WARN)
    named = {use.label for use in down}
    return list(down.values()), [item for item in undecided if item.port.label not in named]


def _why(use: Use, node: NodePorts, differing: set[str]) -> str:
    """Why the port should be up; "" if nothing says so."""
    if _waits(use):
        return "by its subnet manager"
    if node.names(use.hca["name"]):
        return "as NCCL_IB_HCA names it"
    return "as before, and as on other nodes" if use.label in differing and _fell(use) else ""


def _waits(use: Use) -> bool:
    return use.port["layer"] == INFINIBAND and use.port["physical"] == "LinkUp"


def _fell(use: Use) -> bool:
    """Whether the port lost a link that it had since power-on: a port without a cable counts no link-down events."""
    return use.port["physical"] == POLLING and use.port["counters"].get(WENT_DOWN, 0) > 0


def _dead_alone(known: Sequence[Use]) -> set[Use]:
    """Ports without a link, though a cable is looked for, while more than three of four siblings in their node are up:
    nobody cables seven of eight. That is sure without another node."""
    ports = compare(((use, use.is_active) for use in known), _kind)
    few = (group for group in ports.values() if group.votes.decided and group.votes.usual)
    odd = [[use for use, _ in group.odd()] for group in few if 4 * len([*group.odd()]) < len(group.values)]
    return {use for uses in odd for use in uses if use.port["physical"] == POLLING}


def _kind(use: Use) -> tuple[int, str, str]:
    return use.rank, use.has("").kind, use.function


def _down(
    use: Use, of: Mapping[int, NodePorts], run: Run, why: str, worst: Severity, alone: Severity = WARN
) -> PortTrouble:
    node = of[use.rank]
    severity = weighed(
        WARN if node.is_aside(use) else worst, node, use.vendor, run, WARN if node.is_aside(use) else alone
    )
    return PortTrouble(
        DOWN, severity, use.rank, use.label, _state(use), f"ACTIVE {why}", FIX_WAITS if _waits(use) else None
    )


def _state(use: Use) -> str:
    state, physical = use.port["state"], use.port["physical"]
    return f"{state} ({physical})" if physical else state


def both_sides(undecided: Sequence[Tie[str]], of: Mapping[int, NodePorts], run: Run) -> Iterator[Finding]:
    for worst, aside in ((FAIL, False), (WARN, True)):
        ties = [item for item in undecided if of[item.port.rank].is_aside(item.port.about) is aside]
        yield from tied(DOWN, worst, ties, "state", of, run, FIX_TIED)


def down_everywhere(of: Mapping[int, NodePorts], named: Sequence[PortTrouble], run: Run) -> Iterator[PortTrouble]:
    """Ports down on all nodes while most of their siblings are up: a dead rail, or spare ports. Only a port that was up
    before is surely not a spare; a card's second port mostly has no cable."""
    known = {(use.label, use.rank) for use in named}
    ports = [use for node in of.values() if node.uses_verbs for use in node.wanted if use.port["state"]]
    items = differs_from_siblings(use.has(use.port["state"]) for use in ports if run.job.backend == "nccl")
    uses = [item.port.about for item in items if item.usual == ACTIVE]
    fell = {use.label for use in uses if _fell(use) and use.is_first}
    for use in uses:
        if use.port["physical"] == POLLING and (use.label, use.rank) not in known:
            severity = weighed(WARN if use.label in fell else INFO, of[use.rank], use.vendor, run)
            expected = f"ACTIVE as most of its siblings{', and as before' if use.label in fell else ''}"
            yield PortTrouble(DOWN, severity, use.rank, use.label, _state(use), expected, FIX_EVERYWHERE)
