"""Topology: GPUs reach each other, their network card and their rank's CPUs as their siblings do.

Reads from NVML how near any two GPUs of a node are, which reach each other's memory (P2P) and which CPUs are near; from
sysfs where RDMA network cards are. The matrix is that of `nvidia-smi topo -m`. GPUs connected by NVLink must have P2P;
others are compared with pairs that are as near. A virtual machine hides much of this, and is only compared with its
siblings. Ranks that are bound to CPUs should run near their GPU.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from preflight.check import Action, After, Code, Context, Finding, Level, Plan, Run, Scope, grouped, plots, ranges, vote
from preflight.checks.gpu.shared import nvml_errors, nvml_survey
from preflight.checks.gpu.shared.cards import INVENTORY, Card, by_node, cards, device_of, looked_at
from preflight.checks.gpu.shared.readings import Fabric, GpuPlace
from preflight.checks.gpu.shared.unused_gpus import milder_elsewhere
from preflight.checks.gpu.topology import display_cards, isolation, outliers, paths, plotted, topo_drawing
from preflight.checks.gpu.topology.isolation import Isolation
from preflight.checks.gpu.topology.outliers import Cell, DifferingPairs, FarNic, GpuPair
from preflight.checks.gpu.topology.topo_facts import NVLINK, Facts, Layout, kind, layouts

PARTS = (nvml_errors, display_cards)
READS = dict.fromkeys((INVENTORY, NVLINK), After.READS)
PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=60, estimate_s=0.2, after=READS)
CHECK = "gpu.topology"

_P2P_FIX = (
    "There: nvidia-smi topo -p2p r. ACS, the IOMMU (see node.kernel) or NVreg_RegistryDwords may turn P2P off; else "
    "reset the GPUs: nvidia-smi -r. Until then NCCL uses host memory."
)
NO_P2P = Code(
    "Two GPUs cannot reach each other's memory (P2P), though GPUs linked alike or as near can.",
    fix=_P2P_FIX,
    see=("node.kernel",),
)
ONE_WAY = Code(
    "P2P works from one GPU to another, but not back.",
    fix=_P2P_FIX,
    see=("node.kernel",),
)
NVLINK_UNUSED = Code(
    "P2P between two GPUs does not use their NVLinks.",
    fix="On {node}: nvidia-smi topo -p2p n; nvidia-smi nvlink -s. Reset the GPUs (nvidia-smi -r), else drain the node.",
    action=Action.RESET_GPU,
)
LAYOUT = Code(
    "GPUs are farther from each other than on the other nodes.",
    fix="Compare nvidia-smi topo -m and lspci -tv with another node: a card in another slot, other BIOS settings.",
)
FAR_NIC = Code(
    "A GPU is farther from its network card than its siblings.",
    fix="There: ls -l /sys/class/infiniband; lspci -tv. A network card is missing, lacks a driver, or was moved.",
    action=Action.REPLACE,
)
FAR_CPUS = Code(
    "A rank is bound to CPUs outside its GPU's NUMA node.",
    fix="Bind each rank near its GPU: numactl --cpunodebind={numa} --membind={numa}, or srun --gpu-bind=closest.",
)


AFFINITY = Code(
    "The CPUs that the driver reports as near a GPU are not those of its NUMA node.",
    fix="On {node}: nvidia-smi topo -m; cat /sys/bus/pci/devices/{bus}/numa_node. Reload the driver, or check the "
    "BIOS's NUMA settings; until then bind ranks by hand (numactl).",
)


def measure(ctx: Context) -> Facts:
    look = nvml_survey.session().look(ctx, "place")
    cpus = os.sched_getaffinity(0)
    facts: Facts = {
        "look": look,
        "gpus": paths.gpus() if look["gpus"] else {},
        "nics": paths.nics() if look["gpus"] else {},
        "cpus": ranges.to_text(cpus),
        "bound": len(cpus) < (os.cpu_count() or 1),
        "cpu": paths.cpu(),
        "isolation": isolation.read() if look["gpus"] else None,
    }
    return nvml_survey.complete(ctx, facts)


@milder_elsewhere
def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from nvml_errors.findings(CHECK, facts, run)
    wired = layouts(facts, run)
    pairs = outliers.pairs(wired, _without_p2p(run))
    yield from _p2p(pairs)
    yield from display_cards.findings(pairs, _isolations(facts, run))
    found, ties = outliers.other_layout(wired)
    yield from _findings_of(LAYOUT.warn, found, "the PCIe path {between} is {text}, {expected}")
    yield from (LAYOUT.warn(f"{tie}; expected the same") for tie in ties)
    far = outliers.far_nics(wired)
    yield from _nics(far)
    yield from (FAR_NIC.warn(f"{tie}; expected the same") for tie in outliers.nic_ties(wired, far))
    yield from _affinity(wired)
    if run.job.backend == "nccl" and run.job.launcher != "local":
        yield from _cpus(facts, wired, run)


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    wired = layouts(facts, run)
    if not wired:
        return "no GPU was looked at"
    kinds = vote(enumerate(map(kind, wired)))
    parts = [name if kinds.unanimous else f"{len(nodes)} x {name}" for name, nodes in kinds.ranks_of.items()]
    works = [pair.works for pair in outliers.pairs(wired)]
    parts += [f"P2P between {sum(works):,} of {ranges.count(len(works), 'pair')}"] if works else []
    nics = sum(len(layout.nics) for layout in wired)
    parts.append(ranges.count(nics, "RDMA device") if nics else "no RDMA device")
    return "; ".join(parts)


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    wired = layouts(facts, run)
    wrong = _wrong(wired, run)
    yield from topo_drawing.tables(wired, wrong)
    yield from plotted.wirings(wired, wrong)


def _wrong(wired: list[Layout], run: Run) -> dict[str, dict[Cell, str]]:
    """By node, the matrix cells that findings name."""
    pairs = outliers.pairs(wired, _without_p2p(run))
    wrong: dict[str, dict[Cell, str]] = {layout.node: {} for layout in wired}
    for differing in (*outliers.no_p2p(pairs)[0], *outliers.one_way(pairs), *outliers.nvlink_unused(pairs)):
        wrong[differing.layout.node] |= dict.fromkeys(differing.cells, "")
    for differing in outliers.other_layout(wired)[0]:
        wrong[differing.layout.node] |= dict.fromkeys(differing.cells, differing.text)
    for far in outliers.far_nics(wired):
        wrong[far.layout.node] |= {far.cell: ""} if far.cell else {}
    return wrong


# P2P


def _without_p2p(run: Run) -> set[str]:
    """UUIDs of GPUs in MIG mode, which lack P2P, and of those whose fabric is not ready, which gpu.nvlink reports."""
    known = cards(run.facts(INVENTORY), run)
    identities = looked_at(run.facts(INVENTORY), run, known)
    sliced = {card.uuid for card, identity in identities if identity["mig"] and identity["mig"]["current"]}
    fabrics = ((card.uuid, nvlink["fabric"]) for card, nvlink in looked_at(run.facts(NVLINK), run, known))
    return sliced | {uuid for uuid, fabric in fabrics if fabric and _is_not_ready(fabric)}


def _is_not_ready(fabric: Fabric) -> bool:
    return fabric["state"] in (1, 2) or (fabric["state"] == 3 and fabric["status"] != 0)


def _isolations(facts: Mapping[int, Facts], run: Run) -> dict[str, Isolation]:
    """By node."""
    return by_node({rank: known for rank, measured in facts.items() if (known := measured.get("isolation"))}, run)


def _p2p(pairs: list[GpuPair]) -> Iterator[Finding]:
    missing, ties = outliers.no_p2p(pairs)
    yield from _findings_of(NO_P2P.warn, missing, "no P2P {between}: {text}; {expected}", pairs)
    yield from (NO_P2P.warn(f"{tie}; expected the same", node=node) for node, tie in ties)
    yield from _findings_of(
        ONE_WAY.warn, outliers.one_way(pairs), "P2P {between} works only from {text}; {expected}", pairs
    )
    yield from _findings_of(
        NVLINK_UNUSED.warn, outliers.nvlink_unused(pairs), "P2P {between} is {text}; {expected}", pairs
    )


def _findings_of(
    say: Callable[..., Finding], found: Iterable[DifferingPairs], text: str, pairs: Iterable[GpuPair] = ()
) -> Iterator[Finding]:
    known = {(pair.layout.node, pair.cell): pair for pair in pairs} if found else {}
    for differing in found:
        for where, between, cells in differing.culprits():
            first = cells[0]
            pair = known.get((differing.layout.node, first))
            evidence = {
                "pairs": len(cells),
                "near": differing.layout.near[first[0]][first[1]],
                "buses": [differing.layout.cards[place].bus for place in first],
                "serials": [differing.layout.cards[place].serial for place in first],
                **({"forth": pair.forth, "back": pair.back} if pair else {}),
            }
            message = text.format(between=between, text=differing.text, expected=differing.expected)
            yield say(message, evidence=evidence, **where)


# Layout


def _nics(found: list[FarNic]) -> Iterator[Finding]:
    """A finding per GPU, or one for a node whose GPUs are all far from a NIC."""
    for node, fars in grouped(found, lambda far: far.layout.node).items():
        gpus = fars[0].layout.cards
        whole = 1 < len(fars) == len(gpus)
        for far in fars[:1] if whole else fars:
            who = f"all {len(gpus)} GPUs" if whole else f"GPU {gpus[far.gpu].gpu}"
            is_at = f"the nearest RDMA device of {who} is {far.word} away" if far.word else f"no RDMA device for {who}"
            where = {"node": node} if whole else gpus[far.gpu].where
            nics = {"rdma_devices": list(far.layout.nics)}
            yield FAR_NIC.warn(f"{is_at}, expected {far.usual} as on {far.share}", evidence=nics, **where)


# CPUs


def _affinity(wired: list[Layout]) -> Iterator[Finding]:
    for layout in wired:
        for odd in outliers.odd_cpus(layout):
            card, numa = layout.cards[odd.gpu], layout.numa[odd.gpu]
            text = f"the driver reports CPUs {odd.own} as near GPU {card.gpu}, expected some of {odd.of_node}, "
            text += f"those of its NUMA node {numa}, as on {odd.share}"
            yield AFFINITY.warn(text, evidence={"bus": card.bus, "numa": numa}, **card.where)


def _cpus(facts: Mapping[int, Facts], wired: list[Layout], run: Run) -> Iterator[Finding]:
    places: dict[tuple[str, str | None], tuple[Card, GpuPlace, int]] = {
        (layout.node, card.uuid): (card, place, layout.numa[number])
        for layout in wired
        for number, (card, place) in enumerate(zip(layout.cards, layout.places, strict=True))
    }
    inventory = run.facts(INVENTORY)
    for rank, measured in facts.items():
        known = places.get((run.job.node_of(rank).node, device_of(inventory[rank]) if rank in inventory else None))
        if not measured["bound"] or known is None:
            continue
        card, place, numa = known
        if place["cpus"] and outliers.numbers(measured["cpus"]).isdisjoint(place["cpus"]):
            near = ranges.to_text(place["cpus"])
            text = f"bound to CPUs {measured['cpus']}, expected some of {near}, which are near its GPU {card.gpu}"
            where = {key: value for key, value in card.where.items() if key != "node"}
            node = {"numa": ranges.to_text(place["memory_nodes"] or [max(numa, 0)])}
            yield FAR_CPUS.warn(text, evidence={**node, "near": near}, **where, **run.job.where(rank))
