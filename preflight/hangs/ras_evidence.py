"""Adds what NCCL's RAS says about a hang to what blame has found from the ranks' own records. Pure: outcomes in,
sentences out. RAS alone blames no rank: it counts what was launched, not what has ended, and no sends.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from preflight.core import rank_ranges
from preflight.core.finding import Reported
from preflight.core.outcome import Outcome
from preflight.hangs.desync import Call, Desync
from preflight.nccl import ras_snapshot
from preflight.nccl.ras_snapshot import Communicator, Snapshot

MOST = 4
"""How many different counts of an operation, and how many answers, a sentence lists."""
COUNTED = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
"""Operations whose launches NCCL counts (ncclFunc_t, without sends), as prefixes of torch's names."""


@dataclass(frozen=True)
class _View:
    """What one rank's RAS says about the world's communicator, in ranks of the job."""

    silent: frozenset[int]
    behind: frozenset[int]
    """The ranks whose launches differ from those of more than half of the ranks."""
    sentence: str


def with_ras(
    found: Sequence[Reported], outcomes: Mapping[int, Outcome], desyncs: Sequence[Desync] = ()
) -> list[Reported]:
    """The findings, with RAS's answer added to the first: to its evidence, and to its message if the two do not agree,
    or if RAS knows a rank and blame does not."""
    views = _views(outcomes)
    if not found or not views:
        return list(found)
    first, any_view = found[0], next(iter(views.values()))
    sentence = "; ".join(dict.fromkeys(view.sentence for view in views.values()))
    named = {finding.where["rank"] for finding in found if "rank" in finding.where}
    if len({(view.silent, view.behind) for view in views.values()}) > 1:
        sentence = "; ".join(f"asked on rank {rank}: {view.sentence}" for rank, view in list(views.items())[:MOST])
    elif not named or _is_comparable(any_view, named, outcomes, desyncs):
        first = _agreed(first, any_view, named, sentence)
    return [replace(first, evidence={**first.evidence, "ras": sentence}), *found[1:]]


def _is_comparable(view: _View, named: set[int], outcomes: Mapping[int, Outcome], desyncs: Sequence[Desync]) -> bool:
    """Whether RAS must know the ranks that blame names. Where torch has recorded nothing, blame may only know who has
    not ended, and RAS who is behind."""
    if desyncs:
        return any(named & desync.odd and _is_counted(desync) for desync in desyncs)
    return bool(view.behind) and all(outcomes[rank].kind == "timed_out" for rank in named)


def _is_counted(desync: Desync) -> bool:
    """Whether the odd ranks must have different counts in the world group. A different size of the same operation does
    not change them, nor does anything in another group."""
    return not desync.group and any(_counted_as(desync.calls[rank]) != _counted_as(desync.usual) for rank in desync.odd)


def _counted_as(call: Call | None) -> str:
    """ "allreduce": the name under which NCCL counts a call; "" for operations made of sends, and for None."""
    name = (call["operation"] if call else "").lower().replace("_", "").replace("barrier", "allreduce")
    return next((counted for counted in COUNTED if name.startswith(counted)), "")


def _agreed(first: Reported, view: _View, named: set[int], sentence: str) -> Reported:
    """Adds RAS's answer to the message if blame names no rank and RAS does, or if RAS knows none of those named."""
    odd = view.silent | view.behind
    if not named and odd:
        return replace(first, message=f"{first.message}; {sentence}")
    if named and not named & odd:
        return replace(first, message=f"{first.message}; NCCL's RAS does not agree: {sentence}")
    return first


def _views(outcomes: Mapping[int, Outcome]) -> dict[int, _View]:
    """What RAS said, by the rank that asked; only if the job stands still and the world's communicator is known."""
    members = sorted(outcomes)
    snapshots = {rank: ras_snapshot.read(outcomes[rank].ras) for rank in members}
    worlds = {rank: _world(snapshot, len(members)) for rank, snapshot in snapshots.items() if snapshot is not None}
    return {rank: _view(world, members) for rank, world in worlds.items() if world is not None}


def _world(snapshot: Snapshot, size: int) -> Communicator | None:
    """The world's communicator; None if several are as large, since a group may have the same ranks."""
    worlds = [comm for comm in snapshot["communicators"] if comm["size"] == size]
    return worlds[0] if len(worlds) == 1 and snapshot["still"] else None


def _view(comm: Communicator, members: Sequence[int]) -> _View:
    def of_the_job(text: str) -> str:
        return rank_ranges.to_text(members[rank] for rank in rank_ranges.from_text(text) if rank < len(members))

    silent, dead, behind = (of_the_job(text) for text in (comm["missing"], comm["dead"], _behind(comm)))
    parts = []
    if silent:
        given_up = f", and has given up on {_ranks(dead)}" if dead else ""
        parts.append(f"NCCL's RAS has no answer from {_ranks(silent)}{given_up}")
    for error, those in comm["failed"].items():
        parts.append(f"NCCL has a {error} on {_ranks(of_the_job(those))}")
    for operation, by_ranks in comm["counts"].items():
        if len(by_ranks) > 1 or not (parts or behind):
            counted = [f"{number:,} on {_ranks(of_the_job(those))}" for those, number in by_ranks.items()]
            parts.append(f"NCCL has launched {operation} {', '.join(sorted(counted)[:MOST])}")
    sentence = "; ".join(parts) or "NCCL has launched no collective"
    return _View(frozenset(rank_ranges.from_text(silent)), frozenset(rank_ranges.from_text(behind)), sentence)


def _ranks(text: str) -> str:
    return rank_ranges.ranks(rank_ranges.from_text(text))


def _behind(comm: Communicator) -> str:
    """The ranks whose counts differ from those of more than half of the communicator's ranks."""
    counts: dict[int, list[int]] = {}
    for by_ranks in comm["counts"].values():
        for those, number in by_ranks.items():
            for rank in rank_ranges.from_text(those):
                counts.setdefault(rank, []).append(number)
    ((usual, most),) = Counter(map(tuple, counts.values())).most_common(1) or [((), 0)]
    return rank_ranges.to_text(rank for rank in counts if tuple(counts[rank]) != usual and 2 * most > comm["size"])
