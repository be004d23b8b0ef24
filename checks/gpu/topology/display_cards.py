"""What stands between cards with a display (PCI class 0x0300: GeForce, RTX A6000, RTX PRO 6000) that the driver lets
reach each other: an IOMMU that translates, PCIe switches that redirect, a small BAR1.

With most such cards nothing needs P2P, and then none of this is wrong: so the driver's answer is asked first.
Data-center GPUs (0x0302) are node.kernel's.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from preflight.check import Code, Finding, grouped, ranges, words
from preflight.checks.gpu.topology.isolation import Isolation
from preflight.checks.gpu.topology.outliers import GpuPair

IOMMU = Code(
    "An IOMMU translates the traffic between cards that reach each other's memory (P2P).",
    fix="Boot with iommu=pt on the kernel's command line, or turn the IOMMU (VT-d, AMD-Vi) off in the BIOS. Until "
    "then: export NCCL_P2P_DISABLE=1",
    see=("comm.paths",),
)
ACS = Code(
    "A PCIe switch redirects the traffic between cards that reach each other's memory (P2P) to the CPU (ACS).",
    fix="Turn ACS off in the BIOS, or at every boot for each port: setpci -s {device} ECAP_ACS+0x6.w=0000",
    see=("comm.paths",),
)
SMALL_BAR = Code(
    "A card's BAR1 is smaller than it can be: Resizable BAR or Above 4G Decoding is off.",
    fix="In the BIOS: Above 4G Decoding and Resizable BAR (Smart Access Memory) on, CSM off. See lspci -vv -s {bus} | "
    "grep -A3 Resizable.",
)
PATCHED = Code(
    "GeForce cards reach each other over PCIe (P2P): NVIDIA's own driver does not let them.",
    fix="Before you trust it: preflight --only comm,gpu.compute compares values. To go without: NCCL_P2P_DISABLE=1.",
    see=("comm", "gpu.compute"),
)

NAMED = 4


def findings(pairs: Iterable[GpuPair], known: Mapping[str, Isolation]) -> Iterator[Finding]:
    """`pairs`: those whose P2P is known. `known`: by node."""
    granted = [pair for pair in pairs if pair.works and not pair.linked]
    for node, isolation in known.items():
        own = [pair for pair in granted if pair.layout.node == node and {*_buses(pair)} <= {*isolation["above"]}]
        if isolation["bare_metal"]:
            yield from _translated(node, own, isolation)
            yield from _redirected(node, own, isolation)
        yield from _patched(node, [pair for pair in own if pair.geforce])
        yield from _small_bars(node, own, isolation)


def _buses(pair: GpuPair) -> tuple[str, str]:
    cards = pair.layout.cards
    return cards[pair.gpu].bus, cards[pair.other].bus


def _translated(node: str, granted: Sequence[GpuPair], isolation: Isolation) -> Iterator[Finding]:
    bad = [pair for pair in granted if not {*_buses(pair)}.isdisjoint(isolation["translated"])]
    if bad:
        text = f"the driver grants P2P between {_named(bad)}, and an IOMMU translates for them: a first collective may "
        text += "hang, or sum wrongly; expected no translation (identity) on bare metal"
        yield IOMMU.warn(text, node=node, evidence={"devices": isolation["translated"]})


def _redirected(node: str, granted: Sequence[GpuPair], isolation: Isolation) -> Iterator[Finding]:
    """Where two cards meet at the host bridge, their traffic goes there anyway."""
    ports = isolation["redirecting"] or []
    below = [pair for pair in granted if pair.layout.near[pair.gpu][pair.other] in ("PIX", "PXB")]
    above = {port for pair in below for bus in _buses(pair) for port in isolation["above"][bus]}
    if bad := [port for port in ports if port in above]:
        counted = ranges.count(len(bad), "PCIe switch port")
        text = f"the driver grants P2P between {_named(below)}, and ACS redirects it at {counted} above them "
        text += f"({words.some(bad, NAMED)}); expected none"
        yield ACS.warn(text, node=node, device=bad[0], evidence={"ports": bad})


def _named(pairs: Sequence[GpuPair]) -> str:
    first, *others = pairs
    labels = first.layout.labels
    more = f" and {ranges.count(len(others), 'other pair')}" if others else ""
    return f"{labels[first.gpu]} and {labels[first.other]}{more}"


def _patched(node: str, granted: Sequence[GpuPair]) -> Iterator[Finding]:
    if granted:
        model = granted[0].layout.cards[granted[0].gpu].name
        text = f"the driver grants P2P over PCIe between {_named(granted)} ({model}), as modified kernel modules do; "
        yield PATCHED.info(f"{text}expected none from NVIDIA's own", node=node)


def _small_bars(node: str, granted: Sequence[GpuPair], isolation: Isolation) -> Iterator[Finding]:
    """A risk only where P2P goes through BAR1: the other card then reaches a part of the memory alone."""
    through = {bus for pair in granted if pair.geforce for bus in _buses(pair)}
    bar1 = isolation["bar1"]
    able = {bus: size for bus, size in isolation["bar1_able"].items() if bus in bar1 and bar1[bus] < size}
    for (own, most), buses in grouped(able, lambda bus: (bar1[bus], able[bus])).items():
        used = [bus for bus in buses if bus in through]
        text = f"BAR1 is {words.size(own)} at {words.some(buses, NAMED)}, expected {words.size(most)}, which the card "
        text += "offers" + (": the driver's P2P goes through it" if used else "")
        yield (SMALL_BAR.warn if used else SMALL_BAR.info)(text, node=node, evidence={"bus": buses[0]})
