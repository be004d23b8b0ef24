"""HCAs that differ from the same HCAs elsewhere in link layer, rate, PCIe link or firmware."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from preflight.check import Action, Code, Finding, Run, Severity, Vote, vote, words
from preflight.checks.net.shared.hca import MELLANOX
from preflight.checks.net.shared.hca_peers import Tie, compare_ports, differs_from_siblings, numbered_otherwise
from preflight.checks.net.shared.port_selection import SHOWN, NodePorts, PortTrouble, Use, findings, tied, weighed

LINK_LAYER = Code(
    "A port is InfiniBand where the other nodes' is Ethernet, or vice versa.",
    fix="There: mlxconfig -d {device} q | grep LINK_TYPE; set it as on the other nodes, and reset the card.",
)
SLOW = Code(
    "A port has a lower rate than the same ports elsewhere.",
    fix="There: ibstat {device}; mlxlink -d {device}. Reseat or replace cable or transceiver; check the switch port.",
    action=Action.REPLACE,
)
PCIE = Code(
    "An HCA's PCIe link is slower than that of the same HCAs elsewhere.",
    fix="There: lspci -vv -s $(basename $(readlink -f /sys/class/infiniband/{device}/device)) | grep LnkSta. Reseat "
    "the card or its riser; compare BIOS settings.",
    action=Action.REPLACE,
)
FIRMWARE = Code(
    "HCAs of the same board model have different firmware.",
    fix="There: cat /sys/class/infiniband/{device}/fw_ver; bring all to one version with mlxfwmanager.",
)

FIX_EVERYWHERE = "If it should be as fast as they are: check its switch, and on one node mlxlink -d {device}."


def differing(of: Mapping[int, NodePorts], run: Run) -> Iterator[Finding]:
    """Compares NVIDIA's cards. Ports that NCCL does not use may differ."""
    wanted = [use for node in of.values() for use in node.wanted if use.vendor == MELLANOX]
    taken = [use for node in of.values() for use in node.taken if use.vendor == MELLANOX]
    rates = [(use, f"{use.port['rate']:g} Gb/s") for use in taken if use.port["rate"]]
    lanes = [(use, use.hca["pcie"]) for use in taken if use.hca["pcie"]]
    layers = [(use, use.port["layer"]) for use in wanted]
    yield from _found(LINK_LAYER, Severity.FAIL, "link layer", layers, of, run)
    yield from _found(SLOW, Severity.WARN, "rate", rates, of, run)
    yield from _found(PCIE, Severity.WARN, "PCIe link", lanes, of, run)
    yield from _slow_everywhere(rates, of, run)
    yield from _firmware(list(of.values()), run)


def _found(
    code: Code, worst: Severity, noun: str, values: Iterable[tuple[Use, str]], of: Mapping[int, NodePorts], run: Run
) -> Iterator[Finding]:
    """A node's cards may have two link layers. A port that is faster than most is not at fault."""
    layers = code is LINK_LAYER
    troubles, ties = [], []
    known = [use.has(value, layers) for use, value in values]
    alike = numbered_otherwise(known)
    for item in compare_ports(known, by_siblings=not layers):
        if isinstance(item, Tie):
            voters = ((rank, value) for value, ranks in item.votes.ranks_of.items() for rank in ranks)
            ties += [] if all((rank, item.port.kind, value) in alike for rank, value in voters) else [item]
        elif item.has_twin and (item.port.rank, item.port.kind, item.port.value) in alike:
            continue
        elif layers or speed(item.port.value) < speed(item.usual):
            use: Use = item.port.about
            of_host = code is SLOW and use.hca["virtual"] and of[use.rank].is_aside(use)
            severity = weighed(Severity.INFO if of_host else worst, of[use.rank], use.vendor, run)
            troubles.append(
                PortTrouble(code, severity, use.rank, use.label, f"at {item.port.value}", f"{item.usual} {item.as_on}")
            )
    yield from findings(troubles, run, len(of))
    yield from tied(code, worst, ties, noun, of, run)


def _slow_everywhere(rates: Iterable[tuple[Use, str]], of: Mapping[int, NodePorts], run: Run) -> Iterator[Finding]:
    """Ports slower than their siblings on all nodes: mostly intended, as for storage, unless the switch is wrong."""
    used = (use.has(rate) for use, rate in rates if run.job.backend == "nccl" and of[use.rank].uses_verbs)
    slow = [item for item in differs_from_siblings(used) if speed(item.port.value) < speed(item.usual)]
    troubles = (
        PortTrouble(
            SLOW,
            Severity.INFO,
            item.port.rank,
            item.port.label,
            f"at {item.port.value}",
            f"{item.usual} as most of its siblings",
            FIX_EVERYWHERE,
        )
        for item in slow
    )
    yield from findings(troubles, run, len(of))


def speed(text: str) -> float:
    """A number to compare speeds by, from "400 Gb/s" or "32.0 GT/s x16"."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", text)]
    return numbers[0] * (numbers[1] if len(numbers) > 1 else 1)


def _firmware(nodes: Sequence[NodePorts], run: Run) -> Iterator[Finding]:
    """Compares the firmware of all cards with the same board. Virtual functions have their host's, and cards that NCCL
    does not use hardly matter: these are compared separately, as info."""
    boards: dict[tuple[str, str, bool], list[tuple[NodePorts, str, str]]] = {}
    for node in nodes:
        taken = {use.hca["name"] for use in node.taken}
        for card in node.facts["hcas"]:
            if card["vendor"] == MELLANOX and card["firmware"]:
                matters = card["name"] in taken and not card["virtual"]
                layer = card["ports"][0]["layer"] if card["ports"] else ""
                cards = boards.setdefault((card["kind"], layer, matters), [])
                cards.append((node, card["name"], card["firmware"]))
    troubles: list[PortTrouble] = []
    for (board, _, matters), cards in boards.items():
        worst = Severity.WARN if matters else Severity.INFO
        votes = vote((at, version) for at, (_, _, version) in enumerate(cards))
        troubles += _odd_firmware(board, cards, votes, worst, run)
        if not votes.unanimous and not votes.decided:
            yield _two_firmwares(board, cards, votes, worst, run)
    yield from findings(troubles, run, len(nodes))


def _odd_firmware(
    board: str, cards: Sequence[tuple[NodePorts, str, str]], votes: Vote[str], worst: Severity, run: Run
) -> Iterator[PortTrouble]:
    for at, version in votes.odd():
        node, name, _ = cards[at]
        expected = f"{votes.usual} as on {votes.share('HCA')} of its board ({board})"
        severity = weighed(worst, node, MELLANOX, run)
        yield PortTrouble(FIRMWARE, severity, node.rank, name, f"on firmware {version}", expected)


def _two_firmwares(
    board: str, cards: Sequence[tuple[NodePorts, str, str]], votes: Vote[str], worst: Severity, run: Run
) -> Finding:
    whom = {
        version: words.some(dict.fromkeys(run.job.node_of(cards[at][0].rank).node for at in places), SHOWN)
        for version, places in votes.ranks_of.items()
    }
    text = f"HCAs of board {board} have firmware {', '.join(f'{firmware} on {who}' for firmware, who in whom.items())}"
    severity = weighed(worst, cards[0][0], MELLANOX, run)
    return FIRMWARE.finding(severity, f"{text}; expected one version", evidence={"device": cards[0][1]})
