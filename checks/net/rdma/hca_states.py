"""Ports that are not ACTIVE. Between DOWN and ACTIVE there is a direction: a port that is up is never called odd."""

from collections.abc import Iterator, Mapping, Sequence

from preflight.check import Code, Finding, Run, Severity
from preflight.checks.net.shared.hca import INFINIBAND
from preflight.checks.net.shared.hca_counters import WENT_DOWN
from preflight.checks.net.shared.hca_peers import Tie, compare_ports, differs_from_siblings
from preflight.checks.net.shared.port_selection import Node, Trouble, Use, tied, weighed

DOWN = Code(
    "A port that NCCL would use is not ACTIVE.",
    fix="There: ibstat {device}; mlxlink -d {device}. Polling: see the cable, its transceivers and the switch port. "
    "Disabled: switch it on (ip link set dev INTERFACE up). Else drain the node.",
)
FIX_WAITS = "There: ibstat {device}; sminfo. The link is up, but no subnet manager has set it up: see that it runs."
FIX_TIED = (
    "Where it is not ACTIVE: ibstat {device}; mlxlink -d {device}; see the switch that these nodes share. If it is not "
    "meant to be up, leave it out with NCCL_IB_HCA on all nodes."
)
FIX_EVERYWHERE = (
    "See the switch that all of these go to, and on one node mlxlink -d {device}. If it is not cabled, it costs "
    "nothing."
)
ACTIVE, POLLING = "ACTIVE", "Polling"
FAIL, WARN, INFO = Severity.FAIL, Severity.WARN, Severity.INFO


def not_active(of: Mapping[int, Node], run: Run) -> tuple[list[Trouble], list[Tie[str]]]:
    """(what is down, of what nobody knows whether it should be up). What is down on all nodes is meant so, but for a
    port that waits for its subnet manager, and one that NCCL_IB_HCA asks for. What is down on most nodes may be meant
    so there: of these only those are named that were up before."""
    known = [one for node in of.values() for one in node.wanted if one.port["state"]]
    down: dict[Use, Trouble] = {}
    undecided: list[Tie[str]] = []
    for item in compare_ports((one.has(one.port["state"]) for one in known), good=ACTIVE):
        if isinstance(item, Tie):
            undecided += [item] if ACTIVE in item.votes.ranks_of else []
        elif item.usual == ACTIVE:
            down[item.one.about] = _down(item.one.about, of, run, item.as_on, FAIL if item.has_twin else WARN)
    unlike = {item.one.label for item in undecided}
    for one in known:
        why = "" if one.is_active or one in down else _why(one, of[one.rank], unlike)
        if why:
            down[one] = _down(one, of, run, why, FAIL if one.label in unlike else WARN)
    told = {one.label for one in down}
    return list(down.values()), [item for item in undecided if item.one.label not in told]


def _why(one: Use, node: Node, unlike: set[str]) -> str:
    """Why it should be up; "" where nothing says so."""
    if _waits(one):
        return "by its subnet manager"
    if node.names(one.hca["name"]):
        return "as NCCL_IB_HCA names it"
    return "as before, and as on other nodes" if one.label in unlike and _fell(one) else ""


def _waits(one: Use) -> bool:
    return one.port["layer"] == INFINIBAND and one.port["physical"] == "LinkUp"


def _fell(one: Use) -> bool:
    """It looks for a link, and has had one since the card was switched on: a port without a cable counts none."""
    return one.port["physical"] == POLLING and one.port["counters"].get(WENT_DOWN, 0) > 0


def _down(one: Use, of: Mapping[int, Node], run: Run, why: str, worst: Severity) -> Trouble:
    node = of[one.rank]
    severity = weighed(WARN if node.is_aside(one) else worst, node, one.vendor, run)
    return Trouble(
        DOWN, severity, one.rank, one.label, _state(one), f"ACTIVE {why}", FIX_WAITS if _waits(one) else None
    )


def _state(one: Use) -> str:
    state, physical = one.port["state"], one.port["physical"]
    return f"{state} ({physical})" if physical else state


def both_sides(undecided: Sequence[Tie[str]], of: Mapping[int, Node], run: Run) -> Iterator[Finding]:
    for worst, aside in ((FAIL, False), (WARN, True)):
        ties = [item for item in undecided if of[item.one.rank].is_aside(item.one.about) is aside]
        yield from tied(DOWN, worst, ties, "state", of, run, FIX_TIED)


def down_everywhere(of: Mapping[int, Node], told: Sequence[Trouble], run: Run) -> Iterator[Trouble]:
    """Down on all nodes, while most of its siblings are up: a dead rail, or a spare port. Only one that was up before
    is surely no spare one; a card's second port is mostly without a cable."""
    known = {(one.label, one.rank) for one in told}
    ports = [one for node in of.values() if node.uses_verbs for one in node.wanted if one.port["state"]]
    items = differs_from_siblings(one.has(one.port["state"]) for one in ports if run.job.backend == "nccl")
    uses = [item.one.about for item in items if item.usual == ACTIVE]
    fell = {one.label for one in uses if _fell(one) and one.is_first}
    for one in uses:
        if one.port["physical"] == POLLING and (one.label, one.rank) not in known:
            severity = weighed(WARN if one.label in fell else INFO, of[one.rank], one.vendor, run)
            expected = f"ACTIVE as most siblings of its board{', and as before' if one.label in fell else ''}"
            yield Trouble(DOWN, severity, one.rank, one.label, _state(one), expected, FIX_EVERYWHERE)
