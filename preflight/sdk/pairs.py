"""Who meets whom, and what the bad pairs have in common: a member, two sides, or nothing. Pure, and linear in the
pairs.

The members may be nodes, ranks or anything else compared in pairs. In a pair (a, b), a sends or connects to b.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from preflight.core import words

Pair = tuple[int, int]
SENDS, RECEIVES = 0, 1
"""A member's position in the pair."""
WITNESSES = 2
"""How many bad pairs make a culprit: a single one may be the fault of either end."""
FEW = 3
"""This many bad pairs with one end in common are its fault if they are most of its pairs."""
MANY = 5
"""This many are its fault if they are all the bad pairs, even if not most of its pairs: a bond or ECMP sends each
connection over one of its legs or paths, and one of those may be bad."""


# Schedule


def rounds_for_all(members: int) -> int:
    """How many rounds it takes until all pairs have met."""
    return 0 if members < 2 else members - 1 + members % 2


def rounds(members: int, all_up_to: int, at_most: int | None = None) -> Sequence[int]:
    """The numbers of the rounds to hold. Up to `all_up_to` members: all, so that each pair meets once. Above: twice
    log2 of their number, spread over all, so that a member meets near and far ones. `at_most`: this many instead."""
    every = rounds_for_all(members)
    held = at_most or (every if members <= all_up_to else 2 * (members - 1).bit_length())
    return [number * every // held for number in range(held)] if held < every else range(every)


def partner(member: int, turn: int, members: int) -> int | None:
    """Whom `member` (0 to members - 1) meets in round `turn`; None: it sits this round out, as one member does in each
    round if their number is odd.

    The circle method of round-robin tournaments: two members meet if their numbers add up to the round's number, modulo
    the number of rounds. A member that would meet itself meets the last member, or sits out.
    """
    every = rounds_for_all(members)
    last = every if members % 2 == 0 else None
    if member == last:
        return turn * (every + 1) // 2 % every  # twice it is the round's number; `every` is odd
    other = (turn - member) % every
    return last if other == member else other


def partners(member: int, members: int, all_up_to: int, at_most: int | None = None) -> list[int | None]:
    """Whom `member` meets in each of the `rounds`, in their order."""
    return [partner(member, turn, members) for turn in rounds(members, all_up_to, at_most)]


def meeting(members: Sequence[int], turn: int) -> list[Pair]:
    """The pairs of round `turn`, each once."""
    if turn >= rounds_for_all(len(members)):
        return []
    partners = ((a, partner(a, turn, len(members))) for a in range(len(members)))
    return [(members[a], members[b]) for a, b in partners if b is not None and a < b]


# Common cause


@dataclass(frozen=True)
class Common:
    """What explains the bad pairs. A member in `ends` explains each pair in which it is an end."""

    ends: dict[int, tuple[int, ...]]
    """The members that do badly with all others, or with some if that explains all; as what (SENDS, RECEIVES)."""
    sides: tuple[tuple[int, ...], ...]
    """Groups of members that are well connected within, but not with each other; the smallest first."""
    rest: tuple[Pair, ...]
    """Bad pairs that no member explains; if there are `sides`, these pairs are between them."""


def common_cause(tried: Collection[Pair], bad: Collection[Pair]) -> Common:
    """Finds what explains the bad pairs; `bad` is a subset of `tried`. Only a partner that does well with someone else
    is a witness against a member: of two bad ones, either may be at fault."""
    good = set(tried) - set(bad)
    ends = {member: tuple(sorted(roles)) for member, roles in sorted(bad_with_all(good, bad).items())}
    ends = _with_their_others(ends, bad)
    rest = tuple(sorted(pair for pair in bad if not is_explained(pair, ends)))
    sides = split_sides({member for pair in tried for member in pair}, good, rest, ends)
    culprit = None if sides else _shared_end(tried, rest)
    if culprit is not None:
        roles = {role for role in (SENDS, RECEIVES) if any(pair[role] == culprit for pair in rest)}
        return Common({**ends, culprit: tuple(sorted({*roles, *ends.get(culprit, ())}))}, (), ())
    return Common(ends, sides, rest)


def _with_their_others(ends: dict[int, tuple[int, ...]], bad: Collection[Pair]) -> dict[int, tuple[int, ...]]:
    """Blames an unexplained bad pair on an end that is already a culprit in the other position."""
    left = [pair for pair in bad if not is_explained(pair, ends)]
    more = {member for pair in left for member in pair if member in ends}
    return {member: (SENDS, RECEIVES) if member in more else roles for member, roles in ends.items()}


def is_explained(pair: Pair, ends: Mapping[int, Collection[int]]) -> bool:
    """Whether one of its ends is a culprit in the position that it has in this pair."""
    return any(role in ends.get(member, ()) for role, member in enumerate(pair))


def bad_with_all(good: Collection[Pair], bad: Iterable[Pair]) -> dict[int, set[int]]:
    """The members that do badly with all members that they send to or receive from, with those positions."""
    do_well = tuple({pair[role] for pair in good} for role in (SENDS, RECEIVES))
    witnesses: Counter[tuple[int, int]] = Counter()
    for pair in bad:
        for role in (SENDS, RECEIVES):
            if pair[role] not in do_well[role] and pair[1 - role] in do_well[1 - role]:
                witnesses[pair[role], role] += 1
    roles: dict[int, set[int]] = defaultdict(set)
    for (member, role), count in witnesses.items():
        if count >= WITNESSES:
            roles[member].add(role)
    return dict(roles)


def bad_with_most(
    bad: Iterable[Pair], tried: Iterable[Pair], unit: Callable[[int], int], partners: int
) -> dict[int, set[int]]:
    """The units (of one or several members) with at least FEW bad pairs that are most of their pairs in that position,
    with at least `partners` partners. The one with the most bad pairs is taken first, which explains its pairs."""
    rest, found = [*bad], defaultdict[int, set[int]](set)
    total = Counter((unit(pair[role]), role) for pair in (tried if rest else ()) for role in (SENDS, RECEIVES))
    while True:
        others_of: dict[tuple[int, int], list[int]] = defaultdict(list)
        for pair in rest:
            for role in (SENDS, RECEIVES):
                others_of[unit(pair[role]), role].append(unit(pair[1 - role]))
        able = [
            (len(others), key)
            for key, others in others_of.items()
            if len(others) >= FEW and 2 * len(others) > total[key] and len(set(others)) >= partners
        ]
        if not able:
            return dict(found)
        culprit, role = max(able)[1]
        found[culprit].add(role)
        rest = [pair for pair in rest if unit(pair[role]) != culprit]


def _shared_end(tried: Collection[Pair], rest: Collection[Pair]) -> int | None:
    """The one member that all bad pairs share, if they are MANY, or more than half of its pairs in that position."""
    shared = set.intersection(*map(set, rest)) if len(rest) >= FEW else set()
    if len(shared) != 1:
        return None
    (member,) = shared
    roles = {role for pair in rest for role in (SENDS, RECEIVES) if pair[role] == member}
    of = sum(pair[role] == member for pair in tried for role in roles)
    return member if len(rest) >= MANY or 2 * len(rest) > of else None


def split_sides(
    members: Collection[int], good: Iterable[Pair], bad: Collection[Pair], culprits: Collection[int]
) -> tuple[tuple[int, ...], ...]:
    """Groups of at least two members, without the `culprits`, that do well within and badly between them; the smallest
    first. Empty if the bad pairs do not divide the members this way."""
    if not bad:
        return ()
    parent = {member: member for member in members}

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = member = parent[parent[member]]
        return member

    for a, b in good:
        parent[root(a)] = root(b)
    groups: dict[int, list[int]] = defaultdict(list)
    for member in parent:
        if member not in culprits:
            groups[root(member)].append(member)
    crossing = all(root(a) != root(b) for a, b in bad)
    whole = crossing and len(groups) > 1 and all(len(group) > 1 for group in groups.values())
    sides = sorted((tuple(sorted(group)) for group in groups.values()), key=lambda side: (len(side), side))
    return tuple(sides) if whole else ()


# Sentences


@dataclass(frozen=True)
class Wording:
    """The phrases for one kind of trouble between members."""

    sends: str
    """ "cannot connect to": when it is bad from the member to others; then from them to it, and both ways."""
    receives: str
    both: str
    pair: str
    """ "{a} cannot connect to {b}"."""
    sides: str
    """ "there are no connections between {a} and {b}"."""
    either: str = ""
    """For `both`, if with some others it is one way only."""

    def verb(self, roles: Collection[int], both_ways: bool = True) -> str:
        if len(roles) > 1:
            return self.both if both_ways or not self.either else self.either
        return self.sends if SENDS in roles else self.receives

    def culprit(self, who: str, roles: Collection[int], bad: int, tried: int, both_ways: bool = True) -> str:
        """ "node-1 cannot connect to 3 of 7 other nodes"."""
        return f"{who} {self.verb(roles, both_ways)} {bad} of {words.count(tried, 'other node')}"

    def between_sides(self, sides: Sequence[str]) -> str:
        return f"{self.sides.format(a=sides[0], b=' or '.join(sides[1:]))}; within each of them all is well"
