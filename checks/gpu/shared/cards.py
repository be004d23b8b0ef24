"""The job's GPUs as all checks of the family identify them, and which of them differ from their siblings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from preflight.check import Comparison, Run, Vote, compare, grouped, ranges

T = TypeVar("T")

INVENTORY = "gpu.inventory"
Key = tuple[str, str]
"""(node, UUID)."""


@dataclass(frozen=True)
class Card:
    node: str
    gpu: int
    """NVML's number, as nvidia-smi shows it."""
    uuid: str
    name: str
    """The model."""
    serial: str | None
    bus: str
    mig: bool = field(default=False, compare=False)
    """Whether it is split into MIG instances; then its NVLinks are off."""
    numa: bool = field(default=False, compare=False)
    """Whether the kernel also uses its memory."""
    make: str = field(default="", compare=False)
    """Model, maker and board: one model from different makers has different firmware and clocks."""
    paper: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What a return form asks for, besides the serial number; empty if unknown."""

    @property
    def evidence(self) -> dict[str, Any]:
        return {"bus": self.bus, **self.paper}

    @property
    def where(self) -> dict[str, Any]:
        return {"node": self.node, "gpu": self.gpu, "uuid": self.uuid, "serial": self.serial}


def cards(inventory: Mapping[int, Any], run: Run) -> dict[Key, Card]:
    """All GPUs that any rank saw, by node and UUID. `inventory`: the facts of gpu.inventory."""
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
    """The facts of each node's first rank that has some."""
    found: dict[str, T] = {}
    for rank, measured in facts.items():
        found.setdefault(run.job.node_of(rank).node, measured)
    return found


def device_of(measured: Mapping[str, Any]) -> str | None:
    """The UUID of the GPU that a rank would use: cuda:LOCAL_RANK, or the only one it sees. `measured`: its facts from
    gpu.inventory."""
    visible: list[str] = measured["visible"]
    index = 0 if len(visible) == 1 else measured["local_rank"]
    return visible[index] if index < len(visible) else None


def looked_at(facts: Mapping[int, Any], run: Run, known: Mapping[Key, Card] | None = None) -> list[tuple[Card, Any]]:
    """(GPU, values) for all that a check measured, each once, by node and number. `facts` have a `look`. `known`: the
    job's GPUs; by default those of gpu.inventory, which may lack some ranks'."""
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
    """A GPU, or all GPUs of a node, whose value differs from their siblings'."""

    card: Card
    whole_node: bool
    value: T
    usual: T
    share: str
    """Which GPUs have the usual value: "7 of 8 GPUs of the node", "511 of 512 nodes"."""

    @property
    def where(self) -> dict[str, Any]:
        return {"node": self.card.node} if self.whole_node else self.card.where


@dataclass(frozen=True)
class ComparedCards(Generic[T]):
    """The result of comparing GPUs of one model."""

    odd: list[OddCard[T]]
    ties: list[str]
    """If none can be called odd: "16 on GPU 0, 8 on GPU 1 of node-0", "535 on node-0, 550 on node-1"."""


def compare_cards(
    values: Iterable[tuple[Card, T]], alike: Callable[[Card], str] = lambda card: card.name
) -> ComparedCards[T]:
    """Compares each GPU with those that should be `alike`, by default the same model: first within its node, then each
    node's usual value with the other nodes'. Only a minority is odd."""
    known = list(values)
    on_nodes = compare(known, lambda card: (alike(card), card.node)).items()
    nodes_of = grouped(on_nodes, lambda pair: pair[0][0])
    found: ComparedCards[T] = ComparedCards([], [])
    for model, overall in compare(known, alike).items():
        if not overall.votes.unanimous:
            _compare_nodes((node for _, node in nodes_of[model]), overall.votes, found)
    return found


def _compare_nodes(nodes: Iterable[Comparison[Card, T]], overall: Vote[T], found: ComparedCards[T]) -> None:
    """Compares GPUs of one model between nodes. A value that is usual only on one mixed node makes no other odd."""
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
            listed = ", ".join(f"{value} on GPU {card.gpu}" for card, value in node.values)
            found.ties.append(f"{listed} of {node.values[0][0].node}")
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
