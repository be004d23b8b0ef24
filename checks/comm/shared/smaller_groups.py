"""Which rank makes a sum wrong, when the sum itself does not say it: found by summing in smaller groups. Pure.

In each round the members are two groups. A group that gets all right clears its ranks; the suspects of a wrong one are
halved, each half beside ranks that are cleared. The last suspect is tried once more beside other ranks. So two ranks
whose link is bad, or a node whose network is, name nobody: beside others both of them are right, or both wrong. Each
group sums several times: of one that is wrong at times nothing is concluded.
"""

from collections.abc import Iterator, Mapping, Sequence

from preflight.checks.comm.shared.readings import Facts, SmallerGroup

Part = tuple[int, ...]
FEWEST = 3
"""Of two ranks none can be tried beside another."""
TIMES = 5
"""Each group sums: two ranks that are each wrong half of the time would pass for a third one's fault."""


def next_parts(members: Part, tried: Sequence[SmallerGroup]) -> tuple[Part, Part] | None:
    """The groups of the next round; None where another one would not say more."""
    if len(members) < FEWEST or culprit(members, tried) is not None:
        return None
    if len(members) == FEWEST:  # each pair, beside the third alone
        alone = len(tried) // 2
        return (members[:alone] + members[alone + 1 :], members[alone : alone + 1]) if alone < FEWEST else None
    if tried and tried[-1]["wrong"] == tried[-2]["wrong"]:
        return None
    cleared = tuple(rank for rank in members if rank in _cleared(tried))
    suspects = tuple(rank for rank in members if rank not in cleared)
    if len(suspects) == 1:
        beside = next(it for it in reversed(tried) if it["wrong"])["ranks"]
        others = tuple(rank for rank in cleared if rank not in beside)
        return suspects + others, tuple(rank for rank in cleared if rank in beside)
    (these, those), (first, second) = _halves(suspects), _halves(cleared)
    return these + first, those + second


def told(parts: Sequence[Part], flags: Sequence[Sequence[bool]]) -> list[SmallerGroup] | None:
    """A round, by each group's sums (whether they were wrong); None where those of a group are not alike."""
    if any(len(set(of_part)) > 1 for of_part in flags):
        return None
    return [{"ranks": [*part], "wrong": of_part[0]} for part, of_part in zip(parts, flags, strict=True)]


def culprit(members: Part, tried: Sequence[SmallerGroup]) -> int | None:
    """The only rank that all wrong groups have in common, where all others were right in some group, and it in none."""
    wrong = [set(it["ranks"]) for it in tried if it["wrong"]]
    common = set.intersection(*wrong) if len(wrong) > 1 else set[int]()
    return next(iter(common)) if len(common) == 1 and {*members} - _cleared(tried) == common else None


def named(facts: Mapping[int, Facts]) -> tuple[int, int] | None:
    """(rank, how many groups with it were wrong), where smaller groups have found it."""
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
