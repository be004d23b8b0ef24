"""What NCCL's RAS says of a hang, beside what blame has found from the ranks' own records. Pure: outcomes in, sentences
out. RAS names nobody by itself: it counts what was launched, not what has ended, and no sends.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from preflight.core import rank_ranges
from preflight.core.finding import Reported
from preflight.core.outcome import Outcome
from preflight.hangs.desync import Call, Desync
from preflight.nccl import ras_snapshot
from preflight.nccl.ras_snapshot import Communicator, Snapshot

MOST = 4
"""Different counts of an operation, and answers, that a sentence lists."""
COUNTED = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
"""Operations of which NCCL counts the launches (ncclFunc_t, without sends), as torch's names begin."""


@dataclass(frozen=True)
class _View:
    """What one rank's RAS says of the world's communicator, in ranks of the job."""

    silent: frozenset[int]
    behind: frozenset[int]
    """Those that have not launched what more than half of the ranks have."""
    sentence: str


def with_ras(
    found: Sequence[Reported], outcomes: Mapping[int, Outcome], desyncs: Iterable[Desync] = ()
) -> list[Reported]:
    """The findings, the first of them with RAS's words: in its evidence, and in its message where the two do not
    agree, or blame knows of no rank and RAS does."""
    views = _views(outcomes)
    if not found or not views:
        return list(found)
    first, told = found[0], "; ".join(dict.fromkeys(view.sentence for view in views.values()))
    named = {finding.where["rank"] for finding in found if "rank" in finding.where}
    if len({(view.silent, view.behind) for view in views.values()}) > 1:
        told = "; ".join(f"asked on rank {rank}: {view.sentence}" for rank, view in list(views.items())[:MOST])
    elif not named or any(named & desync.odd and _is_counted(desync) for desync in desyncs):
        first = _agreed(first, next(iter(views.values())), named, told)
    return [replace(first, evidence={**first.evidence, "ras": told}), *found[1:]]


def _is_counted(desync: Desync) -> bool:
    """Whether the odd ranks must have other counts of the world's: another size of the same operation has not, nor
    anything in another group."""
    return not desync.group and any(_counted_as(desync.calls[rank]) != _counted_as(desync.usual) for rank in desync.odd)


def _counted_as(call: Call | None) -> str:
    """ "allreduce"; "" for what NCCL makes of sends, and for none."""
    name = (call["operation"] if call else "").lower().replace("_", "").replace("barrier", "allreduce")
    return next((counted for counted in COUNTED if name.startswith(counted)), "")


def _agreed(first: Reported, view: _View, named: set[int], told: str) -> Reported:
    """The finding says it where RAS knows of ranks that blame does not, or not of those that it names."""
    odd = view.silent | view.behind
    if not named and odd:
        return replace(first, message=f"{first.message}; {told}")
    if named and not named & odd:
        return replace(first, message=f"{first.message}; NCCL's RAS does not agree: {told}")
    return first


def _views(outcomes: Mapping[int, Outcome]) -> dict[int, _View]:
    """By the rank that asked: of a job that stands still, in whose communicators the world's is known."""
    members = sorted(outcomes)
    snapshots = {rank: ras_snapshot.read(outcomes[rank].ras) for rank in members}
    worlds = {rank: _world(snapshot, len(members)) for rank, snapshot in snapshots.items() if snapshot is not None}
    return {rank: _view(world, members) for rank, world in worlds.items() if world is not None}


def _world(snapshot: Snapshot, size: int) -> Communicator | None:
    """None where several are as large: a group may have the world's ranks, too."""
    worlds = [comm for comm in snapshot["communicators"] if comm["size"] == size]
    return worlds[0] if len(worlds) == 1 and snapshot["still"] else None


def _view(comm: Communicator, members: Sequence[int]) -> _View:
    def of_the_job(text: str) -> str:
        return rank_ranges.to_text(members[rank] for rank in rank_ranges.from_text(text) if rank < len(members))

    silent, dead, behind = (of_the_job(text) for text in (comm["missing"], comm["dead"], _behind(comm)))
    parts = []
    if silent:
        given_up = f", and has given {_ranks(dead)} up" if dead else ""
        parts.append(f"NCCL's RAS has no answer from {_ranks(silent)}{given_up}")
    for error, those in comm["failed"].items():
        parts.append(f"NCCL has a {error} on {_ranks(of_the_job(those))}")
    for operation, by_ranks in comm["counts"].items():
        if len(by_ranks) > 1 or not (parts or behind):
            counted = [f"{number:,} on {_ranks(of_the_job(those))}" for those, number in by_ranks.items()]
            parts.append(f"NCCL has launched {operation} {', '.join(sorted(counted)[:MOST])}")
    told = "; ".join(parts) or "NCCL has launched no collective"
    return _View(frozenset(rank_ranges.from_text(silent)), frozenset(rank_ranges.from_text(behind)), told)


def _ranks(text: str) -> str:
    return rank_ranges.ranks(rank_ranges.from_text(text))


def _behind(comm: Communicator) -> str:
    """Those whose counts are not what more than half of the communicator's ranks have."""
    counts: dict[int, list[int]] = {}
    for by_ranks in comm["counts"].values():
        for those, number in by_ranks.items():
            for rank in rank_ranges.from_text(those):
                counts.setdefault(rank, []).append(number)
    ((usual, most),) = Counter(map(tuple, counts.values())).most_common(1) or [((), 0)]
    return rank_ranges.to_text(rank for rank in counts if tuple(counts[rank]) != usual and 2 * most > comm["size"])
