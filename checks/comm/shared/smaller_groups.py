"""Finds the rank that makes a sum wrong, if the sum itself does not reveal it, by summing in smaller groups. Pure.

In each round the members form two groups. A group that is always right clears its ranks; the suspects of a wrong one
are halved, each half together with cleared ranks. The last suspect is tried again with other ranks. So two ranks with
a bad link, or a node with a bad network, name no rank: together with others both are right, or both wrong. Each group
sums several times; one that is wrong only sometimes proves nothing.
"""

from collections.abc import Iterator, Mapping, Sequence

from preflight.checks.comm.shared.readings import Facts, SmallerGroup

Part = tuple[int, ...]
FEWEST = 3
"""With two ranks, neither can be tried with another."""
TIMES = 5
"""Sums per group: two ranks that are each wrong half of the time would look like a third one's fault."""


def next_parts(members: Part, tried: Sequence[SmallerGroup]) -> tuple[Part, Part] | None:
    """The groups of the next round; None if another would reveal nothing more."""
    if len(members) < FEWEST or culprit(members, tried) is not None:
        return None
    if len(members) == FEWEST:  # each pair, and the third alone
        alone = len(tried) // 2
        return (members[:alone] + members[alone + 1 :], members[alone : alone + 1]) if alone < FEWEST else None
    if tried and tried[-1]["wrong"] == tried[-2]["wrong"]:
        return None
    known = _cleared(tried)
    cleared = tuple(rank for rank in members if rank in known)
    suspects = tuple(rank for rank in members if rank not in known)
    if len(suspects) == 1:
        beside = next(it for it in reversed(tried) if it["wrong"])["ranks"]
        others = tuple(rank for rank in cleared if rank not in beside)
        return suspects + others, tuple(rank for rank in cleared if rank in beside)
    (these, those), (first, second) = _halves(suspects), _halves(cleared)
    return these + first, those + second


def tried_groups(parts: Sequence[Part], flags: Sequence[Sequence[bool]]) -> list[SmallerGroup] | None:
    """A round, from whether each group's sums were wrong; None if a group's sums disagree."""
    if any(len(set(of_part)) > 1 for of_part in flags):
        return None
    return [{"ranks": [*part], "wrong": of_part[0]} for part, of_part in zip(parts, flags, strict=True)]


def culprit(members: Part, tried: Sequence[SmallerGroup]) -> int | None:
    """The only rank that all wrong groups have in common, if all others were right in some group and it in none."""
    wrong = [set(it["ranks"]) for it in tried if it["wrong"]]
    common = set.intersection(*wrong) if len(wrong) > 1 else set[int]()
    return next(iter(common)) if len(common) == 1 and {*members} - _cleared(tried) == common else None


def named(facts: Mapping[int, Facts]) -> tuple[int, int] | None:
    """(rank, how many groups with it were wrong) if smaller groups found a culprit."""
    for reading in facts.values():
        tried = reading.get("groups", [])
        if (rank := culprit(tuple(facts), tried)) is not None:
            return rank, len([it for it in tried if it["wrong"]])
    return None


def _cleared(tried: Sequence[SmallerGroup]) -> set[int]:
    return {rank for it in tried for rank in it["ranks"] if not it["wrong"] and len(it["ranks"]) > 1}


def _halves(ranks: Part) -> Iterator[Part]:
    yield ranks[: (len(ranks) + 1) // 2]
    yield ranks[(len(ranks) + 1) // 2 :]
