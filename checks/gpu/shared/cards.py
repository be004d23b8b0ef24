"""The GPUs of the job, as all checks of the family speak of them; and which of them differs from its siblings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from preflight.check import Comparison, Run, Vote, compare, grouped, ranges

T = TypeVar("T")

INVENTORY = "gpu.inventory"
Key = tuple[str, str]
"""Node and UUID."""


@dataclass(frozen=True)
class Card:
    node: str
    gpu: int
    """NVML's number, as nvidia-smi shows it."""
    uuid: str
    name: str
    """Its model."""
    serial: str | None
    bus: str
    mig: bool = field(default=False, compare=False)
    """Whether it is cut into slices; its NVLinks are off then."""
    numa: bool = field(default=False, compare=False)
    """Whether the kernel uses its memory, too."""
    make: str = field(default="", compare=False)
    """Its model, by whom and on which board: one model of several makers has different firmware and clocks."""
    paper: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What a return form asks for, beside the serial number; empty where nobody has looked at it."""

    @property
    def evidence(self) -> dict[str, Any]:
        return {"bus": self.bus, **self.paper}

    @property
    def where(self) -> dict[str, Any]:
        return {"node": self.node, "gpu": self.gpu, "uuid": self.uuid, "serial": self.serial}


def cards(inventory: Mapping[int, Any], run: Run) -> dict[Key, Card]:
    """All GPUs that any rank has seen, by node and UUID. `inventory`: the facts of gpu.inventory."""
    found: dict[Key, Card] = {}
    identities = {
        (run.job.node_of(rank).node, uuid): identity
        for rank, measured in inventory.items()
        for uuid, identity in measured["look"]["gpus"].items()
    }
    for rank, measured in inventory.items():
        node = run.job.node_of(rank).node
        for number, handle in measured["seen"]["gpus"].items():
            key = node, handle["uuid"]
            if key not in found:  # all ranks of a node may see the same
                found[key] = _card(node, int(number), handle, identities.get(key))
    return found


def _card(node: str, gpu: int, handle: Mapping[str, Any], identity: Mapping[str, Any] | None) -> Card:
    named = node, gpu, handle["uuid"], handle["name"], handle["serial"], handle["bus"]
    if identity is None:
        return Card(*named, make=handle["name"])
    mig = bool(identity["mig"] and identity["mig"]["current"])
    make = f"{handle['name']} {identity['subsystem']:x} {identity['board']}"
    paper = {name: identity[name] for name in ("board", "module", "vbios", "inforom")}
    return Card(*named, mig, identity["numa"] is not None, make, paper)


def by_node(facts: Mapping[int, T], run: Run) -> dict[str, T]:
    """Those of the first rank of each node that has some."""
    found: dict[str, T] = {}
    for rank, measured in facts.items():
        found.setdefault(run.job.node_of(rank).node, measured)
    return found


def device_of(measured: Mapping[str, Any]) -> str | None:
    """The UUID of the GPU a rank would take: cuda:LOCAL_RANK, or the only one it sees. `measured`: its facts of
    gpu.inventory."""
    visible: list[str] = measured["visible"]
    index = 0 if len(visible) == 1 else measured["local_rank"]
    return visible[index] if index < len(visible) else None


def looked_at(facts: Mapping[int, Any], run: Run, known: Mapping[Key, Card] | None = None) -> list[tuple[Card, Any]]:
    """(GPU, values) of all that a check has measured, each once, by node and number. `facts` have a `look`. `known`:
    the GPUs of the job, else those of gpu.inventory, where a rank may have had no chance to tell of its own."""
    known = cards(run.facts(INVENTORY), run) if known is None else known
    found: dict[Key, tuple[Card, Any]] = {}
    for rank, measured in facts.items():
        node = run.job.node_of(rank).node
        look = measured["look"]
        for uuid, values in look["gpus"].items():
            card = known.get((node, uuid)) or Card(node, look["numbers"][uuid], uuid, "unknown GPU", None, "")
            found.setdefault((node, uuid), (card, values))
    return sorted(found.values(), key=lambda pair: (pair[0].node, pair[0].gpu))


@dataclass(frozen=True)
class OddCard(Generic[T]):
    """One GPU, or all of one node, that have another value than their siblings."""

    card: Card
    whole_node: bool
    value: T
    usual: T
    share: str
    """Who has the usual value: "7 of 8 GPUs of the node", "511 of 512 nodes"."""

    @property
    def where(self) -> dict[str, Any]:
        return {"node": self.card.node} if self.whole_node else self.card.where


@dataclass(frozen=True)
class ComparedCards(Generic[T]):
    """GPUs of one model against each other."""

    odd: list[OddCard[T]]
    ties: list[str]
    """Where nobody can be called odd: "16 on GPU 0, 8 on GPU 1 of node-0", "535 on node-0, 550 on node-1"."""


def compare_cards(
    values: Iterable[tuple[Card, T]], alike: Callable[[Card], str] = lambda card: card.name
) -> ComparedCards[T]:
    """Each with the GPUs that should be `alike`, those of its model: first within its node, then what is usual on a
    node with the other nodes. Only against a majority is anything odd."""
    known = list(values)
    on_nodes = compare(known, lambda card: (alike(card), card.node)).items()
    nodes_of = grouped(on_nodes, lambda pair: pair[0][0])
    found: ComparedCards[T] = ComparedCards([], [])
    for model, overall in compare(known, alike).items():
        if not overall.votes.unanimous:
            _compare_nodes((node for _, node in nodes_of[model]), overall.votes, found)
    return found


def _compare_nodes(nodes: Iterable[Comparison[Card, T]], overall: Vote[T], found: ComparedCards[T]) -> None:
    """The GPUs of one model, by node. What is usual in a mixed node, but nowhere else, makes nobody else odd."""
    usual_of: list[tuple[Card, T]] = []
    for node in nodes:
        inside = node.votes
        if inside.unanimous or (inside.decided and not (overall.decided and inside.usual != overall.usual)):
            usual_of.append((node.values[0][0], inside.usual))
            share = f"{inside.share('GPU')} of the node"
            found.odd.extend(OddCard(card, False, value, inside.usual, share) for card, value in node.odd())
        elif overall.decided:
            share = f"{overall.share('GPU')} of this model"
            odd = [(card, value) for card, value in node.values if value != overall.usual]
            found.odd.extend(OddCard(card, False, value, overall.usual, share) for card, value in odd)
        else:
            told = ", ".join(f"{value} on GPU {card.gpu}" for card, value in node.values)
            found.ties.append(f"{told} of {node.values[0][0].node}")
    between = Comparison(tuple(usual_of))
    votes = between.votes
    share = votes.share("node") if usual_of else ""
    found.odd.extend(OddCard(card, True, value, votes.usual, share) for card, value in between.odd())
    if not votes.unanimous and not votes.decided:
        sides = votes.ranks_of.items()
        found.ties.append(
            ", ".join(f"{value} on {_nodes(usual_of[at][0] for at in places)}" for value, places in sides)
        )


def _nodes(found: Iterable[Card]) -> str:
    first, *others = [card.node for card in found]
    return f"{first} and {ranges.count(len(others), 'other')}" if others else first
