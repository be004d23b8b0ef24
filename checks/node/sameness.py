"""Which nodes have the same behind a path: by the files that they saw of each other, and by what is mounted there."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from preflight.check import Run, Vote, ranges, vote
from preflight.checks.node import mounts
from preflight.checks.node.path_probe import PathFacts

T = TypeVar("T", bound=Hashable)


def groups(here: Mapping[int, PathFacts], writers: Sequence[int]) -> list[tuple[int, ...]]:
    """Ranks that see one file, the largest group first; nothing where no file was written, or nobody looked. A rank
    that saw nobody's is a group of its own; one that could look for nobody's is in none."""
    wrote = {rank for rank in writers if rank in here and here[rank]["written"]}
    looked_for = {int(writer) for one in here.values() for writer in one["seen"]}
    seen = {rank: _seen(rank, one, wrote, looked_for) for rank, one in here.items()}
    leader = _joined(saw for saw in seen.values() if saw)
    voters = {rank: leader[min(saw)] if saw else ~rank for rank, saw in seen.items() if saw is not None}
    return list(vote(voters).ranks_of.values()) if wrote else []


def _seen(rank: int, one: PathFacts, wrote: set[int], looked_for: set[int]) -> set[int] | None:
    """The writers whose files it has; None where it does not know, and the others know nothing of its own."""
    if one["hang"] is not None or set(one["seen"].values()) - {"yes", "no"}:
        return None
    saw = {int(writer) for writer, told in one["seen"].items() if told == "yes"} | ({rank} & wrote)
    return saw if one["seen"] or saw & looked_for else None


def _joined(sets: Iterable[set[int]]) -> dict[int, int]:
    """The lowest writer with whom each shares a file: whoever sees two writers' files joins them."""
    lowest: dict[int, int] = {}
    for saw in sets:
        all_of = {lowest.get(one, one) for one in saw}
        for one in saw:
            lowest.setdefault(one, one)
        for one in [one for one, low in lowest.items() if low in all_of]:
            lowest[one] = min(all_of)
    return lowest


def should_be_shared(here: Mapping[int, PathFacts]) -> bool:
    """All have mounted the same from a server."""
    known = [one["mount"] for one in here.values()]
    return not any(map(mounts.is_local, known)) and len({mounts.kind(one) for one in known if one}) == 1


def vote_of_kinds(known: Mapping[int, mounts.Mount]) -> Vote[tuple[str, ...]]:
    """By what is mounted there, without what differs between sound nodes."""
    return vote({rank: mounts.kind(mount) for rank, mount in known.items()})


def odd_mounts(votes: Vote[tuple[str, ...]], known: Mapping[int, mounts.Mount]) -> Iterator[tuple[int, mounts.Mount]]:
    """(rank, what most have) of each that has another mount. Nothing where most have a disk of their own and some a
    server's: then it may be most that lack it."""
    if votes.decided and not _some_lack_it(votes, known):
        usual = known[votes.ranks_of[votes.usual][0]]
        yield from ((rank, usual) for rank, _ in votes.odd())


def undecided(votes: Vote[tuple[str, ...]], known: Mapping[int, mounts.Mount], *, written: bool) -> bool:
    """Whether both sides have to be told. `written`: each node has files of its own, for which a server may well have
    a folder each."""
    if votes.decided:
        return _some_lack_it(votes, known)
    return len({kind[0] if written else kind for kind in votes.ranks_of}) > 1


def _some_lack_it(votes: Vote[tuple[str, ...]], known: Mapping[int, mounts.Mount]) -> bool:
    """The usual mount is on a disk of the node, and there is one of a server."""
    local = {kind: mounts.is_local(known[ranks[0]]) for kind, ranks in votes.ranks_of.items()}
    return bool(local) and local[votes.usual] and not all(local.values())


def is_soft(one: PathFacts) -> bool:
    mount = one["mount"]
    return mount is not None and mount["type"].startswith("nfs") and "soft" in mount["options"]


def told_apart(values: Mapping[int, T], run: Run) -> str:
    """ "a on node-0 and 3 more, b on node-4"; "" where all are equal."""
    votes = vote(values)
    if votes.unanimous:
        return ""
    sides = list(votes.ranks_of.items())
    more = [f"{len(sides) - 4:,} more kinds"] if len(sides) > 4 else []
    return ", ".join([*(f"{value or 'none'} on {names(run, ranks)}" for value, ranks in sides[:4]), *more])


def names(run: Run, ranks: Sequence[int]) -> str:
    """ "node-0", "node-0 and node-1" or "node-0 and 7 more nodes"."""
    first, rest = run.job.node_of(ranks[0]).node, len(ranks) - 1
    if rest < 2:
        return first if not rest else f"{first} and {run.job.node_of(ranks[1]).node}"
    return f"{first} and {ranges.count(rest, 'more node')}"
