"""Which of a node's NVLinks should be up but are not, and where they lead.

The catalog says how many should be up; if it does not, or if boards are built in several ways, the number that most
siblings have. A link between two GPUs is down at both ends, but reported once.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from preflight.check import grouped
from preflight.checks.gpu.nvlink import catalog
from preflight.checks.gpu.shared.cards import Card, ComparedCards, compare_cards
from preflight.checks.gpu.shared.readings import NvLinkPort

NOWHERE = "0000:00:00.0"
"""NVML's other end if that is not a PCI device of this host."""
MANY = 3
"""A switch is blamed if at least this many GPUs, and more than half, lost links to it."""
MOST_LINKS = 64
"""More than any GPU has."""
MOST_ENDS = 8
"""The most ends of dead links to match with each other: 105 ways."""


class Wired(NamedTuple):
    card: Card
    links: Sequence[NvLinkPort]
    up: int
    """Includes links whose state could not be read: they are not known to be down."""
    ends: Mapping[str, int]
    """How many active links lead to each bus id."""
    at_gpus: bool
    """Whether any lead to GPUs."""


class Short(NamedTuple):
    """A GPU, or all GPUs of a node, with fewer links up than expected."""

    wired: Wired
    expected: int
    as_on: str
    """The number and its source, for a sentence: "18 as this card has"."""
    sure: bool
    """Whether the catalog says so, and the links are part of the board."""
    down: Sequence[int] = ()
    """The numbers of the missing links; empty if others are down by design, so they cannot be identified."""
    whole_node: bool = False

    @property
    def missing(self) -> int:
        return self.expected - self.wired.up


def wired(card: Card, links: Sequence[NvLinkPort]) -> Wired:
    active = [link for link in links if link["active"]]
    up = len([link for link in links if link["active"] is not False])
    ends = Counter(link["remote"] for link in active if link["remote"] and link["remote"] != NOWHERE)
    return Wired(card, links, up, ends, any(link["remote_type"] == "gpu" for link in active))


def short(gpus: Sequence[Wired]) -> tuple[list[Short], list[str], list[str]]:
    """(GPUs with too few links, ties, ties between cards with optional bridges)."""
    found: list[Short] = []
    left: list[tuple[Card, int]] = []
    part: list[tuple[Card, int]] = []
    bridged: list[tuple[Card, int]] = []
    for (_, name), alike in grouped(gpus, lambda gpu: (gpu.card.node, gpu.card.name)).items():
        product, meshed = catalog.known(name), any(gpu.at_gpus for gpu in alike)
        full, bridge = (product.links, product.bridge) if product else (None, False)
        if full is None or not (bridge or _must_be_full(alike, full, meshed)):
            (part if meshed else left).extend((gpu.card, gpu.up) for gpu in alike)
            continue
        partial = [gpu for gpu in alike if gpu.up < full and (gpu.up or not bridge)]
        found += [Short(gpu, full, f"{full} as this card has", not bridge) for gpu in partial]
        bridged += [(gpu.card, full if gpu.up else 0) for gpu in alike if bridge]
    of = {gpu.card: gpu for gpu in gpus}
    differing, differing_bridged = compare_cards(left), compare_cards(bridged)
    differing_part = compare_cards(part, alike=lambda card: f"{card.name}, number {card.gpu}")
    found += [*_odd(differing, of), *_odd(differing_bridged, of), *_odd(differing_part, of, each=True)]
    return _with_numbers(found, gpus), differing.ties, differing_bridged.ties


def _must_be_full(alike: Sequence[Wired], full: int, meshed: bool) -> bool:
    """Whether all links must be up: with NVSwitches always; between GPUs only if one GPU has all: a virtual machine may
    have a part of a board, where GPUs have different numbers by design. A single GPU needs no links."""
    if meshed:
        return any(gpu.up >= full for gpu in alike)
    return len(alike) > 1 or alike[0].up > 0


def _odd(differing: ComparedCards[int], of: Mapping[Card, Wired], each: bool = False) -> Iterator[Short]:
    """GPUs with fewer links than usual, for cards without a known number; more are no fault. `each`: GPUs were compared
    with those of the same number on other nodes."""
    for odd in differing.odd:
        if odd.value < odd.usual:
            whole_node = odd.whole_node and not each
            yield Short(of[odd.card], odd.usual, f"{odd.usual} as on {odd.share}", False, whole_node=whole_node)


def _with_numbers(found: Sequence[Short], gpus: Sequence[Wired]) -> list[Short]:
    """Adds the numbers of missing links. A link that is down on all sound cards of the model is down by design."""
    expected = {lacking.wired.card.name: lacking.expected for lacking in found}
    used: dict[str, set[int]] = {name: set() for name in expected}
    for gpu in gpus:
        if gpu.up >= expected.get(gpu.card.name, MOST_LINKS):
            used[gpu.card.name] |= {link["link"] for link in gpu.links if link["active"]}
    numbered = []
    for lacking in found:
        down = [link["link"] for link in lacking.wired.links if link["active"] is False]
        sound = used[lacking.wired.card.name]
        down = [link for link in down if link in sound] if sound else down
        numbered.append(lacking._replace(down=down if len(down) == lacking.missing else ()))
    return numbered


# Where the missing links lead


class ShortPair(NamedTuple):
    """Two GPUs with too few links between them."""

    short: Short
    other: Wired
    missing: int


def hub(found: Sequence[Short]) -> Short | None:
    """The GPU of a node that lacks as many links as several others together, namely their links to it; or None."""
    total = sum(lacking.missing for lacking in found)
    alone = [lacking for lacking in found if 2 * lacking.missing == total]
    return alone[0] if len(found) > 2 and len(alone) == 1 else None


def pairs(found: Sequence[Short], gpus: Sequence[Wired]) -> list[ShortPair]:
    """The pairs that explain all missing links of one node; none if several sets of pairs would."""
    by_bus = {gpu.card.bus: gpu for gpu in gpus}
    lacking = {short.wired.card.bus: short for short in found}
    ends: list[str] = []
    one_sided: Counter[tuple[str, str]] = Counter()
    for bus, short in lacking.items():
        more = {peer: other.ends.get(bus, 0) - short.wired.ends.get(peer, 0) for peer, other in by_bus.items()}
        half_dead = {peer: count for peer, count in more.items() if count > 0}
        one_sided.update({(bus, peer): count for peer, count in half_dead.items()})
        ends += [bus] * (short.missing - sum(half_dead.values()))
    ways = [] if len(ends) > MOST_ENDS else [Counter(way) for way in _matched(sorted(ends))]
    sound = [_pattern(gpu.ends) for gpu in gpus if gpu.card.bus not in lacking]
    fitting = [way for way in ways if _fits(way, gpus, sound)] or ways
    if not fitting or any(way != fitting[0] for way in fitting):
        return []
    return [ShortPair(lacking[bus], by_bus[other], count) for (bus, other), count in (fitting[0] + one_sided).items()]


def _matched(ends: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """All ways to pair the ends, each with an end of another GPU."""
    if not ends:
        yield []
        return
    first, rest = ends[0], ends[1:]
    for other in sorted({end for end in rest if end != first}):
        at = rest.index(other)
        for way in _matched([*rest[:at], *rest[at + 1 :]]):
            yield [(first, other), *way]


def _fits(way: Mapping[tuple[str, str], int], gpus: Sequence[Wired], sound: Sequence[list[int]]) -> bool:
    """Whether every GPU would be wired like a sound one: in a cube mesh two links to two peers, one to two others."""
    for gpu in gpus:
        restored = Counter(gpu.ends)
        for (first, second), count in way.items():
            if gpu.card.bus in (first, second):
                restored[second if gpu.card.bus == first else first] += count
        if _pattern(restored) not in sound:
            return False
    return True


def _pattern(ends: Mapping[str, int]) -> list[int]:
    return sorted(ends.values())


def lost_to(gpu: Wired, gpus: Sequence[Wired]) -> dict[str, int]:
    """By switch: how many fewer links a GPU has than its siblings."""
    most: Counter[str] = Counter()
    for other in gpus:
        most |= Counter(other.ends)
    return {bus: count - gpu.ends.get(bus, 0) for bus, count in most.items() if count > gpu.ends.get(bus, 0)}


def bad_switches(found: Sequence[Short], gpus: Sequence[Wired], listed: Sequence[str]) -> dict[str, list[Short]]:
    """Switches to which most GPUs of the node lost links; "" is one that cannot be identified.

    `listed`: the bus ids of all switches of the node.
    """
    if len(found) < MANY or 2 * len(found) <= len(gpus):
        return {}
    at = [(bus, short) for short in found for bus in lost_to(short.wired, gpus)]
    lost_at = {bus: [short for _, short in pairs] for bus, pairs in grouped(at, lambda pair: pair[0]).items()}
    blamed = {bus: lost for bus, lost in lost_at.items() if len(lost) >= MANY and 2 * len(lost) > len(gpus)}
    if not at and len(found) == len(gpus) and len({short.missing for short in found}) == 1:
        silent = [bus for bus in listed if not any(bus in gpu.ends for gpu in gpus)]
        return {silent[0] if len(silent) == 1 else "": list(found)}
    return blamed
