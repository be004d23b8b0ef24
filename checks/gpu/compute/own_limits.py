"""A device without enough siblings is held against what its own memory and its own PCIe link can do.

A sound H100 copies 55 of the 63 GB/s of 16 lanes of generation 5 and moves 2,973 of the 3,352 GB/s of its memory, cards
of generation 3 and 4 reach 0.78 to 0.85 of theirs, a T4 0.75 of its memory's. What is far below is sick; two cards of a
desktop share its memory, and a card on the other socket loses a third.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from preflight.check import Action, Code, Finding, Run
from preflight.checks.gpu.compute.workload_facts import Facts
from preflight.checks.gpu.shared.pci import GIGATRANSFERS
from preflight.checks.gpu.shared.readings import Health, Pcie

BELOW_OWN = Code(
    "A GPU's memory or PCIe link is far slower than its own clock, width and generation allow.",
    fix="Look for what else uses it (nvidia-smi), and at its clocks and link under load: nvidia-smi -q -d CLOCK,"
    "PERFORMANCE; lspci -vv | grep LnkSta. For copies also: ranks bound to the CPUs of the GPU's NUMA node, other work "
    "on the host's memory.",
    action=Action.REPLACE,
    see=("gpu.health", "gpu.pcie", "gpu.topology"),
)
DEVICE_COPY, COPIES = "device copy", ("H2D copy", "D2H copy")
WARN_SHARE = {DEVICE_COPY: 0.6} | dict.fromkeys(COPIES, 0.4)
FAIL_SHARE = {DEVICE_COPY: 0.3} | dict.fromkeys(COPIES, 0.15)
DOUBLE = 2
"""Transfers per clock that NVML reports, for HBM and GDDR alike: 2,619 MHz x 2 x 5,120 bits / 8 are an H100's 3,352
GB/s, 10,501 MHz x 2 x 384 bits / 8 an RTX 4090's 1,008 GB/s (data sheets)."""


class OwnLimit(NamedTuple):
    gb_per_s: float
    of: str
    """For the message: "16 lanes of generation 5"."""


def of_memory(health: Health) -> OwnLimit | None:
    clock, bits = health["clocks"]["memory_max"], health.get("memory_bus_bits")
    if not clock or not bits:
        return None
    return OwnLimit(clock * 1e6 * DOUBLE * bits / 8 / 1e9, f"{bits:,} bits at {clock:,} MHz")


def of_link(pcie: Pcie, sharing: int) -> OwnLimit | None:
    """None in a virtual machine, whose links are made up. `sharing`: GPUs behind the same port of the host. Until
    generation 2 a byte takes 10 bits, then 8.125 (PCI Express Base Specification)."""
    width, generation = pcie["width"], pcie["generation_max"] or pcie["generation"]
    if pcie["virtual"] is not False or not width or generation not in GIGATRANSFERS:
        return None
    bits = 10 if generation < 3 else 8.125
    of = f"{width} lanes of generation {generation}" + (f", which {sharing} GPUs share" if sharing > 1 else "")
    return OwnLimit(width * GIGATRANSFERS[generation] / bits / sharing, of)


def findings(alike: Mapping[int, Facts], limits: Mapping[int, Mapping[str, OwnLimit]], run: Run) -> Iterator[Finding]:
    """`alike`: fewer devices of a kind than can be compared. `limits`: by rank and name of the speed."""
    for rank, measured in alike.items():
        for name, limit in limits.get(rank, {}).items():
            speed = measured["speeds"].get(name)
            if speed is None or speed >= WARN_SHARE[name] * limit.gb_per_s:
                continue
            text = f"{name} runs at {speed:.3g} GB/s, {speed / limit.gb_per_s:.2f} of the {limit.gb_per_s:,.0f} GB/s "
            text += f"of its own {limit.of}, expected at least {WARN_SHARE[name]:g}"
            say = BELOW_OWN.fail if speed < FAIL_SHARE[name] * limit.gb_per_s else BELOW_OWN.warn
            yield say(text, uuid=measured["uuid"], **run.job.where(rank))


def of_ranks(
    facts: Mapping[int, Facts], pcie: Mapping[int, Any], health: Mapping[int, Any], run: Run
) -> dict[int, dict[str, OwnLimit]]:
    """`pcie`, `health`: the facts of gpu.pcie and gpu.health, of which one rank may have read all its node's GPUs."""
    links, memories = _by_card(pcie, run), _by_card(health, run)
    found: dict[int, dict[str, OwnLimit]] = {}
    ports = {
        (run.job.node_of(rank).node, uuid): path[-1]["bus"] if len(path) > 1 else uuid
        for rank, reading in pcie.items()
        for uuid, path in reading["paths"].items()
    }
    for rank, measured in facts.items():
        key = run.job.node_of(rank).node, measured["uuid"] or ""
        sharing = sum(1 for other, port in ports.items() if other[0] == key[0] and port == ports.get(key))
        link = of_link(links[key], sharing) if key in links else None
        memory = of_memory(memories[key]) if key in memories else None
        found[rank] = dict.fromkeys(COPIES, link) if link else {}
        found[rank] |= {DEVICE_COPY: memory} if memory else {}
    return found


def _by_card(facts: Mapping[int, Any], run: Run) -> dict[tuple[str, str], Any]:
    """By node and UUID."""
    return {
        (run.job.node_of(rank).node, uuid): values
        for rank, reading in facts.items()
        for uuid, values in reading["look"]["gpus"].items()
    }
