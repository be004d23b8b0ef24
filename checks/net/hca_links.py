"""Links of HCAs that are unlike those of the same HCAs elsewhere: link layer, rate, PCIe, and firmware."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from preflight.check import Code, Finding, Run, Severity, vote
from preflight.checks.net.hca import MELLANOX
from preflight.checks.net.hca_peers import Tie, compared
from preflight.checks.net.hca_use import Node, Trouble, Use, findings, listed, tied, weighed

LINK_LAYER = Code(
    "A port is InfiniBand where the others' is Ethernet, or the other way round.",
    fix="There: mlxconfig -d {device} q | grep LINK_TYPE; set it as on the other nodes, and reset the card.",
)
SLOW = Code(
    "A port has a lower rate than the same ports elsewhere.",
    fix="There: ibstat {device}; mlxlink -d {device}. Reseat or replace the cable or transceiver; see the switch port.",
)
PCIE = Code(
    "An HCA's PCIe link is slower than that of the same HCAs elsewhere.",
    fix="There: lspci -vv | grep -A 60 Mellanox | grep LnkSta. Reseat the card or its riser; compare BIOS settings.",
)
FIRMWARE = Code(
    "HCAs of one board have unlike firmware.",
    fix="There: cat /sys/class/infiniband/{device}/fw_ver; bring all to one version with mlxfwmanager.",
)


def unlike(of: Mapping[int, Node], run: Run) -> Iterator[Finding]:
    """Of NVIDIA's cards. Ports that NCCL does not take may be as they like."""
    wanted = [one for node in of.values() for one in node.wanted if one.vendor == MELLANOX]
    taken = [one for node in of.values() for one in node.taken if one.vendor == MELLANOX]
    rates = [(one, f"{one.port['rate']:g} Gb/s") for one in taken if one.port["rate"]]
    lanes = [(one, one.hca["pcie"]) for one in taken if one.hca["pcie"]]
    layers = [(one, one.port["layer"]) for one in wanted]
    yield from _found(LINK_LAYER, Severity.FAIL, "link layer", layers, of, run)
    yield from _found(SLOW, Severity.WARN, "rate", rates, of, run)
    yield from _found(PCIE, Severity.WARN, "PCIe link", lanes, of, run)
    yield from _firmware(list(of.values()), run)


def _found(
    code: Code, worst: Severity, noun: str, values: Iterable[tuple[Use, str]], of: Mapping[int, Node], run: Run
) -> Iterator[Finding]:
    """A node's cards may be of two link layers; but where one is faster than most, that is no fault of it."""
    layers = code is LINK_LAYER
    told, ties = [], []
    for item in compared((one.has(value, layers) for one, value in values), by_siblings=not layers):
        if isinstance(item, Tie):
            ties.append(item)
        elif layers or speed(item.one.value) < speed(item.usual):
            one: Use = item.one.about
            severity = weighed(worst, of[one.rank], one.vendor, run)
            told.append(
                Trouble(code, severity, one.rank, one.label, f"at {item.one.value}", f"{item.usual} {item.as_on}")
            )
    yield from findings(told, run, len(of))
    yield from tied(code, worst, ties, noun, of, run)


def speed(text: str) -> float:
    """ "400 Gb/s", "32.0 GT/s x16"."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", text)]
    return numbers[0] * (numbers[1] if len(numbers) > 1 else 1)


def _firmware(nodes: Sequence[Node], run: Run) -> Iterator[Finding]:
    """All of a board's in the job are compared with each other."""
    boards: dict[str, list[tuple[Node, str, str]]] = {}
    for node in nodes:
        for card in node.facts["hcas"]:
            if card["vendor"] == MELLANOX and card["firmware"]:
                boards.setdefault(card["kind"], []).append((node, card["name"], card["firmware"]))
    told = []
    for board, cards in boards.items():
        votes = vote((at, version) for at, (_, _, version) in enumerate(cards))
        for at, version in votes.odd():
            node, name, _ = cards[at]
            expected = f"{votes.usual} as on {votes.share('HCA')} of its board ({board})"
            severity = weighed(Severity.WARN, node, MELLANOX, run)
            told.append(Trouble(FIRMWARE, severity, node.rank, name, f"on firmware {version}", expected))
        if not votes.unanimous and not votes.decided:
            whom = {
                version: listed(list(dict.fromkeys(run.job.node_of(cards[at][0].rank).node for at in places)))
                for version, places in votes.ranks_of.items()
            }
            text = f"HCAs of board {board} have firmware {', '.join(f'{one} on {who}' for one, who in whom.items())}"
            severity = weighed(Severity.WARN, nodes[0], MELLANOX, run)
            yield FIRMWARE.finding(severity, f"{text}; expected one version", evidence={"device": cards[0][1]})
    yield from findings(told, run, len(nodes))
