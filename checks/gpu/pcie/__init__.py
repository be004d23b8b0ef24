"""PCIe: each GPU's link, and that of the switch above it, has the lanes and generation that both ends support.

A link that trained at fewer lanes (dirt, a loose card or riser) costs bandwidth permanently. The generation is judged
only at full speed (P0): a GPU that saves power drops to 1. What a slot lacks by design is reported if most siblings
have more. Counters start when the driver is loaded; gpu.released reports what rises during the run.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

from preflight.check import (
    Action,
    After,
    Code,
    Context,
    Finding,
    Job,
    Level,
    Plan,
    Run,
    Scope,
    Trait,
    grouped,
    plots,
    ranges,
    traits,
)
from preflight.checks.gpu.pcie import slots
from preflight.checks.gpu.pcie.slots import PcieEnd
from preflight.checks.gpu.shared import nvml_errors, nvml_survey, plotted
from preflight.checks.gpu.shared.cards import INVENTORY, Card, Key, OddCard, by_node, compare_cards, looked_at
from preflight.checks.gpu.shared.nvml_survey import GpuLook
from preflight.checks.gpu.shared.pci import most_a_minute
from preflight.checks.gpu.shared.readings import Pcie
from preflight.checks.gpu.shared.unused_gpus import milder_elsewhere

PARTS = (nvml_errors,)
PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=60, estimate_s=0.2, after={INVENTORY: After.READS})

WIDTH = Code(
    "A GPU's PCIe link has fewer lanes than it supports.",
    fix="See lspci -vv -s {bus} | grep Lnk. Drain the node; reseat the card or its riser, and clean the contacts.",
    action=Action.REPLACE,
)
GENERATION = Code(
    "A GPU's PCIe link runs at a lower generation than it supports.",
    fix="See lspci -vv -s {bus} | grep Lnk and the slot's speed in the BIOS; reseat the card or its riser.",
    action=Action.REPLACE,
)
UPLINK = Code(
    "The PCIe switch above GPUs has a slower link to the host than it supports.",
    fix="See lspci -vv -s {device} | grep Lnk. Power the node off and on; else have the board or its cable replaced.",
    action=Action.REBOOT,
)
REPLAYS = Code(
    "A GPU's PCIe link replays many packets.",
    fix="See dmesg | grep -i aer. If the count keeps rising, drain the node; reseat the card or its riser.",
    action=Action.REPLACE,
    see=("node.kernel",),
)
ERRORS = Code(
    "A GPU's PCIe link has had uncorrectable errors.",
    fix="On {node}: dmesg | grep -i aer. Reseat the card.",
    action=Action.REPLACE,
    see=("node.kernel",),
)

FULL_SPEED = 0
SETTLE_S = 0.2
LONG_MINUTES, TIMES = 60, 100
"""A count is too high by itself if the limit allows it only in an hour, and the siblings have a hundredth of it."""
DISPLAY = "0x0300"
"""PCI class of display cards: their boards often share 16 lanes between two slots. Others are 0x0302."""


class Facts(TypedDict):
    look: GpuLook
    """Pcie by UUID."""
    paths: dict[str, list[PcieEnd]]
    """By UUID: the GPU and the bridges above it, up to the root port."""
    up_s: float
    """Since the node booted."""


def measure(ctx: Context) -> Facts:
    session = nvml_survey.session()
    look = session.look(ctx, "pcie")
    if any(_is_slow(pcie) for pcie in look["gpus"].values()):
        time.sleep(SETTLE_S)  # a GPU that has just woken up retrains its link
        look = session.look(ctx, "pcie")
    buses = {handle["uuid"]: handle["bus"] for handle in session.seen(ctx)["gpus"].values()}
    paths = {uuid: slots.path_of(buses[uuid]) for uuid in look["gpus"]}
    facts: Facts = {"look": look, "paths": paths, "up_s": time.clock_gettime(time.CLOCK_BOOTTIME)}
    return nvml_survey.complete(ctx, facts)


def _is_slow(pcie: Pcie) -> bool:
    return pcie["pstate"] == FULL_SPEED and (pcie["generation"] or 9) < (pcie["generation_max"] or 0)


class PcieLink(NamedTuple):
    """One property of a GPU's link: its lanes or its generation."""

    card: Card
    value: int
    able: int
    """What both ends support, as far as they say."""
    card_able: int
    may_be_less: bool
    """Whether it may be lower by design: the slot is unknown, or shares its lanes with another."""
    by_slot: bool
    """Whether it is all that the slot of a card with a display has: a slot of the chipset has four lanes."""
    evidence: Mapping[str, Any]

    @property
    def model(self) -> Key:
        """(node, model)."""
        return self.card.node, self.card.name


@milder_elsewhere
def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from nvml_errors.findings("gpu.pcie", facts, run)
    known, paths = looked_at(facts, run), _paths(facts, run)
    ends = [(card, pcie, paths[card.node, card.uuid]) for card, pcie in known]
    yield from _below(WIDTH, "{} lanes", [_lanes(*row) for row in ends if row[1]["width"]])
    for pstate in (FULL_SPEED, None):  # only compare within a state; GPUs that save power are not judged
        awake = [row for row in ends if row[1]["generation"] and row[1]["pstate"] == pstate]
        yield from _below(GENERATION, "generation {}", [_speed(*row) for row in awake])
    yield from _uplinks(ends)
    yield from _replays(known, {node: measured["up_s"] / 60 for node, measured in by_node(facts, run).items()})
    yield from _errors(known)


def record(reading: Facts, _job: Job) -> Iterator[Trait]:
    for uuid, pcie in reading["look"]["gpus"].items():
        awake = pcie["generation"] if pcie["pstate"] == FULL_SPEED else None
        yield from traits("link", {"PCIe lanes": pcie["width"], "PCIe generation": awake}, uuid)


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    """ "8 links, 16 lanes, generation 5"."""
    known = [pcie for _, pcie in looked_at(facts, run)]
    lanes = sorted({pcie["width"] for pcie in known if pcie["width"]})
    awake = sorted({pcie["generation"] for pcie in known if pcie["generation"] and pcie["pstate"] == FULL_SPEED})
    parts = [f"{' and '.join(map(str, lanes))} lanes"] if lanes else []
    parts += [f"generation {' and '.join(map(str, awake))}"] if awake else ["generation unknown: they save power"]
    return ", ".join([ranges.count(len(known), "link"), *parts]) if known else "no GPU was looked at"


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    known = looked_at(facts, run)
    links = [pcie for _, pcie in known]
    awake = [pcie["generation"] if pcie["pstate"] == FULL_SPEED else None for pcie in links]
    values = (
        ("lanes", "", [pcie["width"] for pcie in links], (WIDTH,)),
        ("generation at full speed", "", awake, (GENERATION,)),
        ("replays since the driver was loaded", "", [pcie["replays"] for pcie in links], (REPLAYS,)),
    )
    yield from plotted.strips("PCIe link of each GPU", known, judge(facts, run), values)


def _paths(facts: Mapping[int, Facts], run: Run) -> dict[Key, list[PcieEnd]]:
    by_rank = ((run.job.node_of(rank).node, measured["paths"]) for rank, measured in facts.items())
    return {(node, uuid): path for node, paths in by_rank for uuid, path in paths.items()}


def _lanes(card: Card, pcie: Pcie, path: Sequence[PcieEnd]) -> PcieLink:
    slot = path[1]["width_max"] if len(path) > 1 else None
    return _link(card, pcie, pcie["width"] or 0, (pcie["width_max"], path[0]["width_max"]), slot, path)


def _speed(card: Card, pcie: Pcie, path: Sequence[PcieEnd]) -> PcieLink:
    """The generation; NVML's maximum is that of card and slot together. A GPU without a known state may save power."""
    if pcie["pstate"] is None:
        return _link(card, pcie, pcie["generation"] or 0, (), None, path)
    ends = [*(end["generation_max"] for end in path[:2]), None]
    slot = min((number for number in (pcie["generation_max"], ends[1]) if number), default=None)
    return _link(card, pcie, pcie["generation"] or 0, (pcie["generation_gpu_max"], ends[0]), slot, path)


def _link(
    card: Card, pcie: Pcie, value: int, own: Iterable[int | None], slot: int | None, path: Sequence[PcieEnd]
) -> PcieLink:
    """If the slot supposedly supports less than the link has, a virtual machine made it up."""
    reported = [number for number in own if number] or [value]
    able = min([*reported, slot] if slot is not None and slot >= value else reported)
    evidence = {"bus": card.bus, "slot": path[1]["bus"] if len(path) > 1 else None, "slot_able": slot, **card.paper}
    display = path[0]["kind"].startswith(DISPLAY)
    may_be_less = display or bool(pcie["virtual"]) or len(path) < 2
    return PcieLink(card, value, able, max(reported), may_be_less, display and slot == value, evidence)


def _below(code: Code, unit: str, links: Sequence[PcieLink]) -> Iterator[Finding]:
    """Links with less than both ends support, or than most siblings have."""
    differing = compare_cards((link.card, link.value) for link in links).odd
    odd = {odd_card.card: odd_card for odd_card in differing if odd_card.value < odd_card.usual}
    best: dict[Key, int] = {}
    for link in links:
        best[link.model] = max(link.value, best.get(link.model, 0))
    named, narrow = set(), list[PcieLink]()
    for link in links:
        odd_card = odd.get(link.card)
        text = f"the PCIe link runs at {unit.format(link.value)}, expected "
        if link.value < link.able:
            by_design = link.may_be_less and best[link.model] == link.value
            text += f"{unit.format(link.able)}: {'the card supports' if by_design else 'both ends support'} that"
            named |= set() if by_design else {link.card.node}
            yield (code.info if by_design else code.warn)(text, evidence=link.evidence, **link.card.where)
        elif odd_card and not odd_card.whole_node:
            text += f"{unit.format(odd_card.usual)} as on {odd_card.share}"
            text += f"; its slot has {unit.format(link.value)}" if link.by_slot else ""
            yield (code.info if link.by_slot else code.warn)(text, evidence=link.evidence, **link.card.where)
        else:
            narrow += [link] if link.value < link.card_able and code is WIDTH else []
    yield from _whole_nodes(code, unit, [odd_card for odd_card in odd.values() if odd_card.card.node not in named])
    yield from _by_design(narrow)


def _whole_nodes(code: Code, unit: str, found: Iterable[OddCard[int]]) -> Iterator[Finding]:
    for odd in found:
        if odd.whole_node:
            text = f"the GPUs' PCIe links run at {unit.format(odd.value)}, expected {unit.format(odd.usual)}"
            yield code.warn(f"{text} as on {odd.share}", evidence={"bus": odd.card.bus}, node=odd.card.node)


def _by_design(narrow: Iterable[PcieLink]) -> Iterator[Finding]:
    """Slots with fewer lanes than their cards, one finding per node and model."""
    for links in grouped(narrow, lambda link: link.model).values():
        lanes = sorted({link.value for link in links})
        of = f"the slots of {_gpus(link.card.gpu for link in links)} have {' or '.join(map(str, lanes))} lanes"
        text = f"{of}, expected {links[0].card_able} for the cards' full speed"
        yield WIDTH.info(text, evidence=links[0].evidence, node=links[0].card.node)


def _gpus(numbers: Iterable[int]) -> str:
    listed = set(numbers)
    return f"GPU{'' if len(listed) == 1 else 's'} {ranges.to_text(listed)}"


def _uplinks(ends: Iterable[tuple[Card, Pcie, Sequence[PcieEnd]]]) -> Iterator[Finding]:
    """Links of switches to the host. Above a GPU, a switch is two bridges (downstream port, upstream port); then comes
    the port it is connected to."""
    found: dict[Key, tuple[PcieEnd, PcieEnd, list[int]]] = {}
    for card, _, path in ends:
        for up, over in zip(path[2::2], path[3::2], strict=True) if len(path) % 2 == 0 else ():
            found.setdefault((card.node, up["bus"]), (up, over, []))[2].append(card.gpu)
    yield from _slow_uplinks("width", "{} lanes", found)
    yield from _slow_uplinks("generation", "generation {}", found)


def _slow_uplinks(
    respect: Literal["width", "generation"], unit: str, found: Mapping[Key, tuple[PcieEnd, PcieEnd, list[int]]]
) -> Iterator[Finding]:
    """A fault only if another such link is faster: the board's design is unknown."""
    most: Literal["width_max", "generation_max"] = f"{respect}_max"  # type: ignore[assignment]
    best: dict[str, int] = {}
    for up, _, _ in found.values():
        best[up["kind"]] = max(up[respect] or 0, best.get(up["kind"], 0))
    for (node, bus), (up, over, gpus) in found.items():
        value, able = up[respect], min(up[most] or 0, over[most] or 0)
        if value and value < able:
            text = f"the link of the PCIe switch above {_gpus(gpus)} runs at {unit.format(value)}"
            text += f", expected {unit.format(able)}: both ends support that"
            say = UPLINK.warn if value < best[up["kind"]] else UPLINK.info
            yield say(text, evidence={"port": over["bus"]}, node=node, device=bus)


# Counters


def _replays(known: Sequence[tuple[Card, Pcie]], minutes: Mapping[str, float]) -> Iterator[Finding]:
    """Too many replays. The driver was loaded after boot, so the true rate is rather higher."""
    import statistics  # not where there is no GPU

    for (card, pcie), others in _with_siblings([(card, pcie, pcie["replays"]) for card, pcie in known]):
        most, count = most_a_minute(pcie), pcie["replays"]
        if most is None or count is None or count <= most * LONG_MINUTES:
            continue
        text, up = f"{count:,} PCIe replays since the driver was loaded, expected", minutes[card.node]
        evidence = card.evidence
        if count > most * up:
            text = f"{text} at most {most:.0f} per minute, in {up:,.0f} minutes since the node booted"
            yield REPLAYS.warn(text, evidence=evidence, **card.where)
        elif others and count > TIMES * statistics.median(others):
            text = f"{text} about {statistics.median(others):,.0f} as on its siblings"
            yield REPLAYS.warn(text, evidence=evidence, **card.where)


def _errors(known: Sequence[tuple[Card, Pcie]]) -> Iterator[Finding]:
    """Uncorrectable errors. If all GPUs have them, a bus reset may be the cause; non-fatal ones also come from harmless
    requests to a device."""
    for name in ("fatal", "non_fatal"):
        counts = [(card, pcie, pcie["errors"].get(name)) for card, pcie in known]
        for (card, pcie), others in _with_siblings(counts):
            odd = 2 * sum(map(bool, others)) <= len(others)
            if pcie["errors"].get(name) and (odd or name == "fatal"):
                count = ranges.count(pcie["errors"][name], f"{name.replace('_', '-')} PCIe error")
                evidence = {**card.evidence, **pcie["errors"]}
                say = ERRORS.warn if odd and name == "fatal" else ERRORS.info
                yield say(f"{count} since the driver was loaded, expected none", evidence=evidence, **card.where)


def _with_siblings(counts: Sequence[tuple[Card, Pcie, int | None]]) -> Iterator[tuple[tuple[Card, Pcie], list[int]]]:
    """Each GPU with the counts of the others of its model on its node."""
    for alike in grouped(counts, lambda row: (row[0].node, row[0].name)).values():
        for card, pcie, _ in alike:
            yield (card, pcie), [count for other, _, count in alike if count is not None and other is not card]
