"""How fast all nodes at once write into and read from the folder; and which node is far slower than the others.

All nodes share the folder's server, which may serve them unequally. So a node that looks slow writes again alone, then
a typical one alone. Only a node that is slow again is named.
"""

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from preflight.check import Action, Code, Context, Finding, Run, plots, ranges, words
from preflight.checks.train.checkpoint.folder import DIR, GIB, AllWell, Folder, FolderFacts
from preflight.checks.train.shared.gathering import gathered

WITHIN_S = 2.0
"""For writing, and half of it for reading: on a slow file system less than the whole amount is written."""
TIMES, CLEAR = 4.0, 2.0
"""A node is odd if it is this many times slower than the median, and the next slowest is less than CLEAR times slower.
With all at once, fair queues of NFS servers differ by 2 (measured with tmpfs and ext4 on one machine: 1.4)."""
LEAST_NODES = 3

SLOW_NODE = Code(
    "A node writes or reads checkpoints far slower than the others.",
    fix="On the node: nfsiostat or iostat -x 1; compare its mount (findmnt -T {file}) and link with another node's; "
    "node.storage and net.mesh check both.",
    action=Action.NONE,
    see=("node.storage", "net.mesh", "net.interfaces"),
)


class AloneRates(TypedDict):
    """Bytes per second of two nodes, each writing alone."""

    rank: int
    """The lowest rank of the node that looked slow."""
    slow: float
    usual: float


def measure(ctx: Context, folder: Folder, all_well: AllWell) -> AloneRates | None:
    """All ranks must call it; the folder's facts get each rank's speeds. Returns the same on all ranks."""
    size = int(ctx[GIB] * 2**30) // max(1, _neighbours(ctx))
    if not ctx[DIR] or not size:
        return None
    ctx.doing(f"writing {words.size(size)} into {folder.facts['path']}")
    _write(ctx, folder, size)
    if not all_well(folder.well, "all have written"):
        return None
    ctx.doing("reading it back")
    folder.ask("read", f"part-{ctx.rank}", WITHIN_S / 2, more_s=WITHIN_S)
    if not all_well(folder.well, "all have read"):
        return None
    rates = _of_nodes(_gathered(ctx, folder.facts))
    if (odd := slowest(rates)) is None:
        return None
    usual = sorted(rates, key=lambda rank: rates[rank])[len(rates) // 2]
    alone = [_again(ctx, folder, size, rank, all_well) for rank in (odd, usual)]
    return None if None in alone else AloneRates(rank=odd, slow=alone[0] or 0.0, usual=alone[1] or 0.0)


def _write(ctx: Context, folder: Folder, size: int) -> None:
    folder.ask("write", f"part-{ctx.rank}", size, WITHIN_S, more_s=2 * WITHIN_S)


def _neighbours(ctx: Context) -> int:
    return len(set(ctx.job.node_of(ctx.rank).ranks) & set(ctx.members))


def _again(ctx: Context, folder: Folder, size: int, rank: int, all_well: AllWell) -> float | None:
    """Bytes per second of the rank's node, writing alone. All ranks must call it."""
    kept = dict(folder.facts)
    is_its = rank in ctx.job.node_of(ctx.rank).ranks
    if is_its:
        _write(ctx, folder, size)
    well = all_well(folder.well, "one node has written alone")
    told = _gathered(ctx, folder.facts if is_its else None)
    if well:
        folder.facts.update(kept)  # type: ignore[typeddict-item]
    return _of_nodes(told).get(rank) if well else None


Rates = Mapping[int, float]


def _gathered(ctx: Context, own: FolderFacts | None) -> dict[int, list[tuple[int, float]]]:
    """By lowest rank of each node: (bytes, seconds) of its ranks."""
    rows = gathered(ctx, [own["written"], own["write_s"]] if own else [0.0, 0.0], "rates")
    found: dict[int, list[tuple[int, float]]] = {}
    for rank, row in zip(ctx.members, rows, strict=True):
        lowest = min(set(ctx.job.node_of(rank).ranks) & set(ctx.members))
        found.setdefault(lowest, []).append((int(row[0]), row[1]))
    return found


def _of_nodes(parts: Mapping[int, Sequence[tuple[int, float]]]) -> dict[int, float]:
    """Bytes per second by node; a node is done when its last rank is."""
    seconds = {node: max(second for _, second in own) for node, own in parts.items()}
    return {node: sum(size for size, _ in own) / seconds[node] for node, own in parts.items() if seconds[node] > 0}


def slowest(rates: Rates) -> int | None:
    """The node that is far slower than all others, or None."""
    if len(rates) < LEAST_NODES:
        return None
    ordered = sorted(rates, key=lambda rank: rates[rank])
    middle = statistics.median(rates.values())
    is_odd = rates[ordered[0]] * TIMES < middle <= rates[ordered[1]] * CLEAR
    return ordered[0] if is_odd else None


def judge(facts: Mapping[int, FolderFacts], alone: AloneRates | None, run: Run) -> Iterator[Finding]:
    rates = _of_nodes(by_node(facts, run, "write"))
    if alone is None or slowest(rates) != alone["rank"] or alone["slow"] * TIMES > alone["usual"]:
        return
    node, path = run.job.node_of(alone["rank"]), facts[alone["rank"]]["path"]
    text = (
        f"{node.node} writes {words.rate(rates[alone['rank']])} into {path} together with the others, and "
        f"{words.rate(alone['slow'])} alone; expected about {words.rate(statistics.median(rates.values()))} as the "
        f"median of {ranges.count(len(rates), 'node')}, and {words.rate(alone['usual'])} alone"
    )
    own = {str(rank): _in_words(facts[rank]["written"], facts[rank]["write_s"]) for rank in node.ranks if rank in facts}
    yield SLOW_NODE.warn(text, node=node.node, file=path, evidence={"ranks": own})


def plot(facts: Mapping[int, FolderFacts], alone: AloneRates | None, run: Run) -> Iterator[plots.Plot]:
    """MB/s of each rank, all at once; names the ranks of nodes with findings."""
    named = {finding.where["node"] for finding in judge(facts, alone, run)}
    subjects = [(run.job.node_of(rank).node, f"rank {rank}") for rank in facts]
    odd = [place for place, (node, _) in enumerate(subjects) if node in named]
    written = [own["written"] / own["write_s"] / 1e6 if own["write_s"] else None for own in facts.values()]
    read = [own["read"] / own["read_s"] / 1e6 if own["read_s"] else None for own in facts.values()]
    both = (plots.Strip("written", "MB/s", written, odd), plots.Strip("read", "MB/s", read))
    strips = [strip for strip in both if any(strip.values)]
    if strips:
        yield plots.Strips("speed of each rank in the folder, all at once", subjects, strips)


def by_node(facts: Mapping[int, FolderFacts], run: Run, what: str) -> dict[int, list[tuple[int, float]]]:
    """(bytes, seconds) by node. `what`: "write" or "read"."""
    size, seconds = ("written", "write_s") if what == "write" else ("read", "read_s")
    found: dict[int, list[tuple[int, float]]] = {}
    for rank, own in facts.items():
        values: Any = own
        lowest = min(set(run.job.node_of(rank).ranks) & set(facts))
        found.setdefault(lowest, []).append((values[size], values[seconds]))
    return found


def _in_words(size: int, seconds: float) -> str:
    return words.rate(size / seconds) if seconds else "nothing"


def summarize(facts: Mapping[int, FolderFacts], run: Run) -> str:
    """ "writes 310 MB/s and reads 2.1 GB/s per node (78 MB/s and 530 MB/s per rank)", of the median node; or ""."""
    told = []
    for what, column in (("writes", "write"), ("reads", "read")):
        rates = _of_nodes(by_node(facts, run, column))
        parts = itertools.chain.from_iterable(by_node(facts, run, column).values())
        ranks = _of_nodes({number: [own] for number, own in enumerate(parts)})
        if any(rates.values()):
            told.append(
                (what, words.rate(statistics.median(rates.values())), words.rate(statistics.median(ranks.values())))
            )
    if not told:
        return ""
    per_node = " and ".join(f"{what} {node}" for what, node, _ in told)
    return f"{per_node} per node, {' and '.join(rank for _, _, rank in told)} per rank"
