"""Collectives that timed out: what each rank's watchdog said, held side by side."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from preflight import ranges
from preflight.explain.line import RANKS
from preflight.explain.story import Story
from preflight.explain.theory import Theory, speaker
from preflight.explain.watchdog import OWN, Wait, hangs, number, waits

ROWS = ("watchdog.timeout", "watchdog.work")
SAME_SIZE = {
    "ALLREDUCE", "ALLREDUCE_COALESCED", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "ALLGATHER_COALESCED",
    "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE",
}  # fmt: skip
"""Operations whose input has one size on all ranks."""
PAIRWISE = {"SEND", "RECV", "RECVANYSOURCE", "COALESCED", "UNKNOWN"}
"""Of which each rank has its own."""
HEARTBEATS = ("watchdog.heartbeat", "watchdog.stuck")
OUTSTANDING = re.compile(r"workMetaList_\.size\(\)=(\d+)")
"""How many calls a rank has not seen the end of (torch 2.2 to 2.4)."""
FIRST = 3
"""A collective with this number, or a smaller one, is one of the first."""
TINY = 1024
"""Elements."""


def _told(found: Sequence[Wait]) -> str:
    """The same of several; their sizes, where they differ, as they may where each rank has its own."""
    sizes = sorted({one.elements for one in found if one.elements is not None})
    known = next((one for one in found if one.operation), found[0])
    if len(sizes) < 2:
        return known.told()
    return f"{replace(known, elements=None).told()} of {sizes[0]:,} to {sizes[-1]:,} elements"


def theories(story: Story) -> list[Theory]:
    """What the waits of all ranks say together; and their heartbeats, where that is all there is."""
    return [*_of_groups(story, waits(story)), *_of_heartbeats(story)]


def _of_groups(story: Story, found: Sequence[Wait]) -> Iterator[Theory]:
    by_group: dict[str, list[Wait]] = {}
    for one in found:
        by_group.setdefault(one.group, []).append(one)
    for group, members in by_group.items():
        for ranked in hangs([one for one in members if one.rank is not None]) or [[]]:
            if len(ranked) > 1 or (ranked and not group and _behind(story, ranked)):
                yield _side_by_side(story, ranked, group)
            else:
                yield _alone(story, (ranked or members)[0])


def _side_by_side(story: Story, found: Sequence[Wait], group: str) -> Theory:
    comparable = [one for one in found if one.number is not None and one.operation and one.operation not in PAIRWISE]
    if sides := _sides(comparable):
        return _parted(story, sides, group)
    missing = frozenset[int]() if group else _behind(story, found) or _missing(story, found)
    if missing:
        return _absent(story, found, missing)
    if _first_of_all(story, found):
        return _no_first_collective(story, found)
    ranks = frozenset(one.rank for one in found if one.rank is not None)
    who = f"{ranges.ranks(ranks)} waited in {_told(found)}{_limit(found[0])}"
    text = f"{who}; who did not come is not visible in this log"
    return _theory(story, "slow_rank_timeout", 50, text, found, ranks, confidence="low")


def _sides(found: Sequence[Wait]) -> dict[tuple[int | None, str, int | None], list[Wait]]:
    """By what they waited in; nothing, where it is one and the same."""
    sides: dict[tuple[int | None, str, int | None], list[Wait]] = {}
    for one in found:
        size = one.elements if one.operation in SAME_SIZE else None
        sides.setdefault((one.number, one.operation, size), []).append(one)
    return sides if len(sides) > 1 else {}


def _parted(story: Story, sides: Mapping[tuple[int | None, str, int | None], list[Wait]], group: str) -> Theory:
    """The few are to blame. Of two equal sides nobody is: the one that is further on is told first."""
    few = min(sides, key=lambda side: (len(sides[side]), -(side[0] or 0), side[1], side[2] or 0))
    told = [
        f"{ranges.ranks(one.rank for one in sides[side] if one.rank is not None)} waited in {sides[side][0].told()}"
        for side in sorted(sides, key=lambda side: (side[0] or 0, side[1], side[2] or 0))
    ]
    more = f", and {len(told) - 4} more like it" if len(told) > 4 else ""
    text = f"the ranks are not in the same collective: {', '.join(told[:4])}{more}; expected one and the same"
    found = [*sides[few], *(one for side in sides if side != few for one in sides[side])]
    ranks = frozenset(one.rank for one in found if one.rank is not None)
    if group.startswith(OWN):
        return _theory(story, "collective_mismatch", 52, text, found, ranks, confidence="low")
    if 2 * len(sides[few]) >= len(found):
        return _theory(story, "collective_mismatch", 75, text, found, frozenset(), role="cause")
    return _theory(story, "collective_mismatch", 75, text, found, ranks, {"rank": found[0].rank}, role="cause")


def _behind(story: Story, found: Sequence[Wait]) -> frozenset[int]:
    """Ranks whose own last call, as they say when they are asked to dump, is an earlier one (-1: none is known)."""
    ranks, waited = {one.rank for one in found}, found[0].number or 0
    told = {match.line.rank: number(match.groups["enqueued"]) for match in story.matches("watchdog.pg_status")}
    late = {rank for rank, last in told.items() if rank is not None and last is not None and last < waited}
    return frozenset(late - ranks)


def _missing(story: Story, found: Sequence[Wait]) -> frozenset[int]:
    """Ranks of the world group of which no watchdog spoke: the few, or none."""
    ranks = {one.rank for one in found if one.rank is not None}
    world = world_size(story, {one.line.file for one in found})
    everyone = set(range(world)) if world else set(story.ranks) | set(range(max(ranks) + 1))
    missing = everyone - ranks
    return frozenset(missing) if missing and len(missing) < len(ranks) else frozenset()


def world_size(story: Story, files: Collection[str]) -> int:
    """As the largest communicator, or the launcher, says: in these files, if they do; 0 if nothing does."""
    names = ("nccl.init_complete", "nccl.init_start", "members.one", "members.all", "env.world")
    told = {True: 0, False: 0}
    for match in story.matches(*names):
        size, here = number(match.groups.get("nranks") or match.groups.get("world")) or 0, match.line.file in files
        told[here] = max(told[here], size if size <= RANKS else 0)
    return told[True] or told[False]


def _absent(story: Story, found: Sequence[Wait], missing: frozenset[int]) -> Theory:
    waiting = frozenset(one.rank for one in found if one.rank is not None)
    first = found[0]
    text = (
        f"{ranges.ranks(missing)} did not come to {_told(found)}, in which {ranges.ranks(waiting)} waited"
        f"{_limit(first)}: late, or gone"
    )
    return _theory(story, "slow_rank_timeout", 60, text, found, waiting, {"rank": min(missing)}, confidence="medium")


def _first_of_all(story: Story, found: Sequence[Wait]) -> bool:
    """One of the first collectives, and a small one, on one node, although the communicator stood: all had come."""
    small = all((one.number or FIRST + 1) <= FIRST and (one.elements or TINY + 1) <= TINY for one in found)
    return small and "nccl.init_complete" in story.seen and len(story.nodes) < 2


def _no_first_collective(story: Story, found: Sequence[Wait]) -> Theory:
    first = found[0]
    text = (
        f"the communicator was complete, and then {first.told()}, one of the first and small, did not end"
        f"{_limit(first)}: the GPUs do not reach each other (PCIe ACS, IOMMU)"
    )
    ranks = frozenset(one.rank for one in found if one.rank is not None)
    where = {"node": first.line.node} if first.line.node else {}
    return _theory(story, "p2p_acs_iommu", 55, text, found, ranks, where, confidence="medium")


def _alone(story: Story, one: Wait) -> Theory:
    """One rank's word only: what the others did is not known."""
    ranks = frozenset() if one.rank is None else frozenset({one.rank})
    who = f"rank {one.rank}" if one.rank is not None else "a rank"
    if _after_the_end(story, one):
        text = (
            f"{who} waited in {one.told()}{_limit(one)} after the training had ended: "
            "a barrier or a checkpoint that not every rank enters"
        )
        return _theory(story, "collective_mismatch", 58, text, [one], ranks, speaker(one.line), confidence="medium")
    if _first_of_all(story, [one]) and len(story.ranks) < 2:
        return _no_first_collective(story, [one])
    text = f"{who} waited in {one.told()}{_limit(one)}; the rank that did not come is not visible in this log"
    return _theory(story, "slow_rank_timeout", 50, text, [one], ranks, confidence="low")


def _after_the_end(story: Story, one: Wait) -> bool:
    """A barrier (an ALLREDUCE of one element) behind the line that ends the training."""
    ended = story.matches("epoch.end")
    barrier = one.operation in ("ALLREDUCE", "BARRIER") and one.elements == 1
    return bool(ended) and barrier and story.moment(ended[0].line) < story.moment(one.line)


def _limit(one: Wait) -> str:
    return f" until the time-out in force, {one.limit / 1000:g} s" if one.limit else ""


def _theory(
    story: Story, slug: str, weight: int, text: str, found: Sequence[Wait], ranks: frozenset[int],
    where: Mapping[str, object] | None = None, role: str = "failure", confidence: str = "",
) -> Theory:  # fmt: skip
    lines = tuple(one.line for one in found)
    first = min(story.moment(line) for line in lines)
    known = {key: value for key, value in (where or {}).items() if value is not None}
    return Theory(
        slug, role, weight, text, first, known, ranks, lines[:5], confidence=confidence, count=len(found),
        rows=frozenset(ROWS),
    )  # fmt: skip


def _of_heartbeats(story: Story) -> Iterator[Theory]:
    """Ranks of one hang whose watchdogs hold unlike numbers of calls."""
    lines, numbers = [], {}
    for match in story.matches(*HEARTBEATS):
        size = OUTSTANDING.search(match.line.text)
        if size and match.line.rank is not None:
            numbers[match.line.rank] = size[1]
            lines.append(match.line)
    if len(set(numbers.values())) < 2:
        return
    unlike = ", ".join(f"rank {rank} {number}" for rank, number in sorted(numbers.items())[:4])
    yield Theory(
        "collective_mismatch", "failure", 52, f"the ranks hang with unlike numbers of calls outstanding: {unlike}",
        story.moment(lines[0]), {}, frozenset(numbers), tuple(lines[:5]), confidence="low", count=len(lines),
        rows=frozenset({"watchdog.heartbeat"}),
    )  # fmt: skip
