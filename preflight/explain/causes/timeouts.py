"""Collectives that timed out: compares what each rank's watchdog said."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from preflight.core import rank_ranges, words
from preflight.explain.candidates import Candidate, from_lines
from preflight.explain.causes import departures
from preflight.explain.causes.waits import OWN, Wait, find_waits, group_hangs, parse_number
from preflight.explain.culprits import find_source, ranks_of
from preflight.explain.timeline import Timeline
from preflight.failure_book.book import Match
from preflight.failure_book.line import RANKS, Line
from preflight.hangs.desync import has_same_size

ROWS = ("watchdog.timeout", "watchdog.work")
PAIRWISE = {"SEND", "RECV", "RECVANYSOURCE", "COALESCED", "UNKNOWN"}
"""Operations that each rank numbers for itself."""
HEARTBEATS = ("watchdog.heartbeat", "watchdog.stuck")
OUTSTANDING = re.compile(r"workMetaList_\.size\(\)=(\d+)")
"""The number of outstanding calls on a rank (torch 2.2 to 2.4)."""
FIRST = 3
"""Up to this number a collective is one of the first."""
TINY = 1024
"""Elements."""
NEAR = (0.85, 1.1)
"""A progress bar with an elapsed time in this range, relative to the timeout, started when the wait started."""


Sides = dict[tuple[int | None, str, int | None], list[Wait]]
"""By number, operation and size."""


def _describe(waits: Sequence[Wait]) -> str:
    """Describes one call of several ranks; with a range of sizes if these differ."""
    sizes = sorted({wait.elements for wait in waits if wait.elements is not None})
    known = next((wait for wait in waits if wait.operation), waits[0])
    if len(sizes) < 2:
        return known.describe()
    return f"{replace(known, elements=None).describe()} of {sizes[0]:,} to {sizes[-1]:,} elements"


def superseded(_: Timeline) -> set[str]:
    """A watchdog's line alone names no rank."""
    return {"watchdog.timeout"}


def find_candidates(timeline: Timeline) -> list[Candidate]:
    """The candidates from the waits of all ranks, from heartbeats, and from work that a rank was still doing."""
    waits = _compare_groups(timeline, find_waits(timeline))
    return [*waits, *_compare_heartbeats(timeline), *_busy_rank(timeline)]


def _compare_groups(timeline: Timeline, waits: Sequence[Wait]) -> Iterator[Candidate]:
    by_group: dict[str, list[Wait]] = {}
    for wait in waits:
        by_group.setdefault(wait.group, []).append(wait)
    for group, of_group in by_group.items():
        for ranked in group_hangs([wait for wait in of_group if wait.rank is not None]) or [[]]:
            if len(ranked) > 1 or (ranked and not group and _late(timeline, ranked)):
                yield _compare(timeline, ranked, group)
            else:
                yield _single_wait(timeline, (ranked or of_group)[0])


def _compare(timeline: Timeline, waits: Sequence[Wait], group: str) -> Candidate:
    comparable = [
        wait for wait in waits if wait.number is not None and wait.operation and wait.operation not in PAIRWISE
    ]
    if sides := _sides(comparable):
        return _mismatch(timeline, sides, group)
    missing = frozenset[int]() if group else _late(timeline, waits) or _missing(timeline, _ranks(waits), waits)
    if missing:
        return _absent_ranks(timeline, waits, missing)
    if _first_of_all(timeline, waits):
        return _no_first_collective(timeline, waits)
    return _unseen_rank(timeline, waits)


def _sides(waits: Sequence[Wait]) -> Sides:
    """The waits by the call that they waited in; empty if all waited in the same call."""
    sides: Sides = {}
    for wait in waits:
        size = wait.elements if has_same_size(wait.operation) else None
        sides.setdefault((wait.number, wait.operation, size), []).append(wait)
    return sides if len(sides) > 1 else {}


def _mismatch(timeline: Timeline, sides: Sides, group: str) -> Candidate:
    """The minority is to blame. Between two equal sides no one is; the one that is further along comes first."""
    few = min(sides, key=lambda side: (len(sides[side]), -(side[0] or 0), side[1], side[2] or 0))
    parts = [
        f"{rank_ranges.ranks(_ranks(sides[side]))} waited in {sides[side][0].describe()}"
        for side in sorted(sides, key=lambda side: (side[0] or 0, side[1], side[2] or 0))
    ]
    text = f"the ranks are not in the same collective: {words.some(parts)}; expected the same one on all ranks"
    waits = [*sides[few], *(wait for side in sides if side != few for wait in sides[side])]
    if group.startswith(OWN):
        return _candidate(timeline, "collective_mismatch", 52, text, waits, {}, "low")
    if 2 * len(sides[few]) >= len(waits):
        tied = _candidate(timeline, "collective_mismatch", 75, text, waits, {}, "", role="cause")
        return replace(tied, ranks=frozenset())
    return _candidate(timeline, "collective_mismatch", 75, text, waits, {"rank": waits[0].rank}, "", role="cause")


def _late(timeline: Timeline, waits: Sequence[Wait]) -> frozenset[int]:
    """Ranks that say so themselves; else those that are missing where further ranks report the same call, which they
    left in another way than by a timeout: they lost their peer."""
    beside = frozenset(departures.find_waiting(timeline)) - _ranks(waits)
    return _behind(timeline, waits) or (_missing(timeline, _ranks(waits) | beside, waits) if beside else frozenset())


def _behind(timeline: Timeline, waits: Sequence[Wait]) -> frozenset[int]:
    """Ranks that report an earlier last call when they are asked to dump (-1: no call is known)."""
    ranks, waited = {wait.rank for wait in waits}, waits[0].number or 0
    statuses = timeline.matches(*departures.STATUSES)
    last_calls = {match.line.rank: parse_number(match.groups["enqueued"]) for match in statuses}
    late = {rank for rank, last in last_calls.items() if rank is not None and last is not None and last < waited}
    return frozenset(late - ranks)


def _missing(timeline: Timeline, ranks: frozenset[int], waits: Sequence[Wait]) -> frozenset[int]:
    """Ranks of the world group without a watchdog line (`ranks` have some), if they are the minority."""
    world = world_size(timeline, {wait.line.file for wait in waits})
    everyone = set(range(world)) if world else set(timeline.ranks) | set(range(max(ranks) + 1))
    missing = everyone - ranks
    return frozenset(missing) if missing and len(missing) < len(ranks) else frozenset()


def world_size(timeline: Timeline, files: Collection[str]) -> int:
    """From the largest communicator, or the launcher: in these files, or else in any; 0 if unknown."""
    names = ("nccl.init_complete", "nccl.init_start", "members.one", "members.all", "env.world")
    sizes: dict[bool, int] = {}
    for match in timeline.matches(*names):
        size, here = (
            parse_number(match.groups.get("nranks") or match.groups.get("world")) or 0,
            match.line.file in files,
        )
        sizes[here] = max(sizes.get(here, 0), size if size <= RANKS else 0)
    return sizes.get(True) or sizes.get(False, 0)


def _absent_ranks(timeline: Timeline, waits: Sequence[Wait], missing: frozenset[int]) -> Candidate:
    inside = _ranks(waits).union(departures.find_waiting(timeline)) - missing
    text = (
        f"{rank_ranges.ranks(missing)} did not enter {_describe(waits)}, in which {rank_ranges.ranks(inside)} "
        f"waited{_limit(waits[0])}: late, or gone"
    )
    candidate = _candidate(timeline, "slow_rank_timeout", 60, text, waits, {"rank": min(missing)}, "medium")
    return replace(candidate, ranks=inside, named=missing)


def _first_of_all(timeline: Timeline, waits: Sequence[Wait]) -> bool:
    """One of the first collectives, small, on one node, after the communicator was complete: all ranks had joined."""
    small = all((wait.number or FIRST + 1) <= FIRST and (wait.elements or TINY + 1) <= TINY for wait in waits)
    return small and "nccl.init_complete" in timeline.seen and len(timeline.nodes) < 2


def _no_first_collective(timeline: Timeline, waits: Sequence[Wait]) -> Candidate:
    first = waits[0]
    text = (
        f"the communicator was complete, but {first.describe()}, small and one of the first, did not end"
        f"{_limit(first)}: the GPUs cannot reach each other (PCIe ACS, IOMMU)"
    )
    return _candidate(timeline, "p2p_acs_iommu", 55, text, waits, {"node": first.line.node or None}, "medium")


def _single_wait(timeline: Timeline, wait: Wait) -> Candidate:
    """Only one rank reports: what the others did is not known."""
    if _after_the_end(timeline, wait):
        text = f"{_who([wait])} after the training had ended: a barrier or a checkpoint that not every rank enters"
        return _candidate(timeline, "collective_mismatch", 58, text, [wait], find_source(wait.line), "medium")
    if _first_of_all(timeline, [wait]) and len(timeline.ranks) < 2:
        return _no_first_collective(timeline, [wait])
    return _unseen_rank(timeline, [wait])


def _unseen_rank(timeline: Timeline, waits: Sequence[Wait]) -> Candidate:
    text = f"{_who(waits)}; the missing rank is not visible in this log"
    return _candidate(timeline, "slow_rank_timeout", 50, text, waits, {}, "low")


def _who(waits: Sequence[Wait]) -> str:
    ranks = _ranks(waits)
    return f"{rank_ranges.ranks(ranks) if ranks else 'a rank'} waited in {_describe(waits)}{_limit(waits[0])}"


def _after_the_end(timeline: Timeline, wait: Wait) -> bool:
    """A barrier (an ALLREDUCE of one element) after the line that ends the training."""
    ended = timeline.matches("epoch.end")
    barrier = wait.operation in ("ALLREDUCE", "BARRIER") and wait.elements == 1
    return bool(ended) and barrier and timeline.moment(ended[0].line) < timeline.moment(wait.line)


def _limit(wait: Wait) -> str:
    return f" until the timeout in force, {wait.limit / 1000:g} s" if wait.limit else ""


def _candidate(
    timeline: Timeline, slug: str, weight: int, text: str, waits: Sequence[Wait], where: Mapping[str, object],
    confidence: str, role: str = "failure",
) -> Candidate:  # fmt: skip
    candidate = from_lines(
        timeline, slug, role, weight, text, [wait.line for wait in waits], where, _ranks(waits), confidence
    )
    return replace(candidate, rows=frozenset(ROWS))


def _ranks(waits: Iterable[Wait]) -> frozenset[int]:
    return frozenset(wait.rank for wait in waits if wait.rank is not None)


def _compare_heartbeats(timeline: Timeline) -> Iterator[Candidate]:
    """Ranks of one hang that have different numbers of outstanding calls."""
    lines, numbers = [], {}
    for match in timeline.matches(*HEARTBEATS):
        size = OUTSTANDING.search(match.line.text)
        if size and match.line.rank is not None:
            numbers[match.line.rank] = size[1]
            lines.append(match.line)
    if len(set(numbers.values())) < 2:
        return
    counts = ", ".join(f"rank {rank} {number}" for rank, number in sorted(numbers.items())[:4])
    text = f"the ranks hang with different numbers of outstanding calls: {counts}"
    yield from_lines(
        timeline, "collective_mismatch", "failure", 52, text, lines, confidence="low", row="watchdog.heartbeat"
    )


def _busy_rank(timeline: Timeline) -> Iterator[Candidate]:
    """A rank that still worked when the others timed out: its bar is near the timeout, and not complete."""
    bars = timeline.matches("progress.bar")
    for match in timeline.matches(*(name for name, kept in timeline.seen.items() if kept.has_group("timeout_ms"))):
        limit = parse_number(match.groups.get("timeout_ms"))
        late = next((bar for bar in reversed(bars) if limit and _beside(bar, limit / 1000)), None)
        if late and limit:
            text = (
                f"a rank was still working, {late.groups['percent']} % done after {late.groups['elapsed']}, "
                f"when the timeout of {limit / 1000:g} s ended the others' wait: slow preparation, not the network"
            )
            yield from_lines(
                timeline, "slow_rank_timeout", "cause", 70, text, (late.line, match.line),
                _culprit(late.line, match.line), ranks_of([match.line]), confidence="medium", row="progress.bar",
            )  # fmt: skip
            return


def _culprit(bar: Line, wait: Line) -> dict[str, object]:
    """The culprit of a finding; empty if the bar and another rank's text share a line."""
    return {} if bar == wait or bar.rank == wait.rank else find_source(bar)


def _beside(bar: Match, limit: float) -> bool:
    percent = parse_number(bar.groups.get("percent"))
    near = NEAR[0] <= _seconds(bar.groups.get("elapsed", "")) / limit <= NEAR[1]
    return percent is not None and percent < 100 and near


def _seconds(clock: str) -> int:
    """The seconds of "29:58" or "1:02:03"; 0 for anything else."""
    if not re.fullmatch(r"\d{1,5}(?::\d\d){1,2}", clock):
        return 0
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part)
    return total
