"""How each node's GPUs and network cards are wired, merged from the facts of its ranks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from preflight.check import Run, grouped
from preflight.checks.gpu.shared.cards import INVENTORY, Card, by_node, cards, looked_at
from preflight.checks.gpu.shared.nvml_survey import GpuLook
from preflight.checks.gpu.shared.readings import GpuPlace, NvLink, Peer
from preflight.checks.gpu.topology.isolation import Isolation
from preflight.checks.gpu.topology.paths import NEARNESS, Cpu, Device, nearness

NVLINK = "gpu.nvlink"
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvidia-smi's words for NVML's levels (nvml.h, nvmlGpuTopologyLevel_t); GPUs of one board meet at its switch."""
UNKNOWN = "?"
Placed = list[tuple[Card, GpuPlace]]


class Facts(TypedDict):
    look: GpuLook
    gpus: dict[str, Device]
    """All GPUs of the node, by bus id; empty if this rank looks at none."""
    nics: dict[str, Device]
    """By name."""
    cpus: str
    """The CPUs that this process may run on: "0-55,112-167"."""
    bound: bool
    """Whether they are fewer than the node has."""
    cpu: Cpu
    isolation: NotRequired[Isolation | None]
    """Of the node's cards with a display; None if it has none, or if this rank looks at no GPU."""


@dataclass(frozen=True)
class Layout:
    """The GPUs of one node, and its RDMA devices."""

    node: str
    cards: tuple[Card, ...]
    places: tuple[GpuPlace, ...]
    nics: tuple[str, ...]
    near: tuple[tuple[str, ...], ...]
    """How near devices are over PCIe: a row per GPU, a column per GPU and then per NIC; "X" is itself."""
    links: tuple[tuple[int, ...], ...]
    """Active NVLinks from each GPU to each other, directly or through switches."""
    switched: bool
    """Whether NVLinks go to switches."""
    numa: tuple[int, ...]
    """NUMA node of each GPU and NIC, from sysfs; -1 is unknown."""
    nic_near: tuple[tuple[str, ...], ...]
    """How near NICs are to NICs."""
    whole: bool
    """Whether no GPU of the node is hidden from the job or does not answer."""
    cpus: tuple[str, ...]
    """CPUs of each GPU's NUMA node, from sysfs; "" is unknown."""
    p2p_within: tuple[str, ...]
    """The distances at which NCCL uses P2P by default between GPUs without NVLinks."""

    @property
    def pairs(self) -> Iterator[tuple[int, int]]:
        """Positions of any two GPUs, each pair once."""
        count = len(self.cards)
        return ((gpu, other) for gpu in range(count) for other in range(gpu + 1, count))

    def peer(self, gpu: int, other: int) -> Peer | None:
        """How one reaches the other; None if they were not queried together."""
        return self.places[gpu]["peers"].get(self.cards[other].uuid)

    def linked(self, gpu: int, other: int) -> bool:
        return self.links[gpu][other] > 0 and self.links[other][gpu] > 0

    def nearest_nic(self, gpu: int) -> str:
        """Distance to the nearest NIC, one of NEARNESS; "" without NICs."""
        words = [word for word in self.near[gpu][len(self.cards) :] if word in NEARNESS]
        return min(words, key=NEARNESS.index, default="")

    @property
    def labels(self) -> list[str]:
        """The GPUs' names: "GPU0". If each rank sees one GPU, all call it number 0, so they are numbered by bus."""
        numbers = [card.gpu for card in self.cards]
        unique = len(set(numbers)) == len(numbers)
        return [f"GPU{number}" for number in (numbers if unique else range(len(numbers)))]


def layouts(facts: Mapping[int, Facts], run: Run) -> list[Layout]:
    """One per node that has GPUs that answer."""
    known = cards(run.facts(INVENTORY), run)
    placed = [(card, place) for card, place in looked_at(facts, run, known) if card.bus]  # else its place is unknown
    links = dict(looked_at(run.facts(NVLINK), run, known))
    devices = by_node({rank: measured for rank, measured in facts.items() if measured["gpus"] or measured["nics"]}, run)
    of_node = grouped(placed, lambda pair: pair[0].node)
    return [_layout(node, found, links, devices.get(node)) for node, found in of_node.items()]


def _layout(node: str, known: Placed, links: Mapping[Card, NvLink], devices: Facts | None) -> Layout:
    if len({card.gpu for card, _ in known}) < len(known):
        known = sorted(known, key=lambda pair: pair[0].bus)
    gpus, nics = (devices["gpus"], devices["nics"]) if devices else ({}, {})
    spots = [_spot(gpus.get(card.bus)) for card, _ in known]
    nic_spots = [_spot(device) for device in nics.values()]
    counted, switched = _links(known, links)
    return Layout(
        node=node,
        cards=tuple(card for card, _ in known),
        places=tuple(place for _, place in known),
        nics=tuple(nics),
        near=tuple(
            (*_to_gpus(known, spots, number), *(_near(spot, nic) for nic in nic_spots))
            for number, spot in enumerate(spots)
        ),
        links=counted,
        switched=switched,
        numa=tuple(numa for _, numa in (*spots, *nic_spots)),
        nic_near=tuple(tuple("X" if nic is other else _near(nic, other) for other in nic_spots) for nic in nic_spots),
        whole=len(known) >= len(gpus),
        cpus=tuple(device["cpus"] if (device := gpus.get(card.bus)) else "" for card, _ in known),
        p2p_within=_p2p_within(len(gpus), devices["cpu"]) if devices else (),
    )


def _p2p_within(gpus: int, cpu: Cpu) -> tuple[str, ...]:
    """By the rules of NCCL's ncclTopoCheckP2p (src/graph/paths.cc): within PCIe switches, and anywhere between two GPUs
    with AMD processors. What a virtual machine shows of switches and P2P is made up."""
    if cpu["virtual"]:
        return ()
    return NEARNESS if cpu["vendor"] == "AuthenticAMD" and gpus <= 2 else ("PIX", "PXB")


_Spot = tuple[tuple[str, ...], int]


def _spot(device: Device | None) -> _Spot:
    return (tuple(device["path"]), device["numa"]) if device else ((), -1)


def _near(spot: _Spot, other: _Spot) -> str:
    return nearness(spot[0], other[0], spot[1] == other[1]) if spot[0] and other[0] else UNKNOWN


def _to_gpus(known: Placed, spots: list[_Spot], number: int) -> Iterator[str]:
    """Distances from NVML; from sysfs for GPUs that no rank sees together."""
    peers = known[number][1]["peers"]
    for other, (card, _) in enumerate(known):
        peer = peers.get(card.uuid)
        level = peer["ancestor"] if peer else None
        word = _ANCESTORS.get(level) if level is not None else None
        yield "X" if other == number else word or _near(spots[number], spots[other])


# NVLink


def _links(known: Placed, links: Mapping[Card, NvLink]) -> tuple[tuple[tuple[int, ...], ...], bool]:
    buses = [card.bus for card, _ in known]
    ends = [_ends(links[card], buses) if card in links else {} for card, _ in known]
    count = range(len(known))
    rows = []
    for gpu in count:
        peers = [known[gpu][1]["peers"].get(known[other][0].uuid) for other in count]
        rows.append(
            tuple(
                0 if gpu == other else _between(ends[gpu], ends[other], buses[other], peers[other]) for other in count
            )
        )
    return tuple(rows), any(SWITCH in end for end in ends)


SWITCH, HIDDEN = "switch", "hidden"


def _ends(links: NvLink, buses: list[str]) -> dict[str, int]:
    """Active links by destination: a GPU's bus id, SWITCH, or HIDDEN (mostly a virtual machine's NVSwitch)."""
    found: dict[str, int] = {}
    for link in links["links"] or ():
        if link["active"]:
            bus = link["remote"] if link["remote"] in buses or link["remote_type"] in ("gpu", "npu") else None
            end = SWITCH if link["remote_type"] == "switch" else bus or HIDDEN
            found[end] = found.get(end, 0) + 1
    return found


def _between(ends: Mapping[str, int], other: Mapping[str, int], bus: str, peer: Peer | None) -> int:
    """Links from a GPU to another. What hidden ones connect is only known from P2P."""
    if direct := ends.get(bus, 0):
        return direct
    if other.get(SWITCH):
        return ends.get(SWITCH, 0)
    return ends.get(HIDDEN, 0) if peer and peer["nvlink"] == 0 and other.get(HIDDEN) else 0


def kind(layout: Layout) -> str:
    """The node in a few words: "NVSwitch (8 GPUs, 18 links each)"."""
    count = len(layout.cards)
    gpus = f"{count} GPU{'' if count == 1 else 's'}"
    most = max((max(row, default=0) for row in layout.links), default=0)
    if layout.switched:
        return f"NVSwitch ({gpus}, {most} links each)" if most else f"NVSwitch ({gpus})"
    if not most:
        return f"PCIe ({gpus})"
    groups = {_group(layout, number) for number in range(count)}
    if any(not layout.linked(gpu, other) for group in groups for gpu in group for other in group if gpu != other):
        return f"cube mesh ({gpus}, {max(map(sum, layout.links))} links each)"
    if len(groups) > 1 or count == 2:
        return f"NVLink bridges ({gpus}, {most} links per pair)"
    return f"NVLink, all to all ({gpus}, {most} links per pair)"


def _group(layout: Layout, number: int) -> frozenset[int]:
    """All GPUs that NVLinks lead to, directly or through others."""
    found, new = {number}, {number}
    while new:
        new = {other for gpu in new for other in range(len(layout.cards)) if layout.linked(gpu, other)} - found
        found |= new
    return frozenset(found)


def farther(word: str, usual: str) -> bool:
    """Whether a distance is larger than the usual one."""
    order: list[str] = [*NEARNESS, ""]
    return word in order and usual in order and order.index(word) > order.index(usual)
