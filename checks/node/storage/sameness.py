"""Which nodes have the same storage behind a path: by which files they saw of each other, and by the mounts."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from preflight.check import Run, Vote, vote, words
from preflight.checks.node.storage import mounts
from preflight.checks.node.storage.path_probe import PathFacts

T = TypeVar("T", bound=Hashable)
OTHER_SIZE = 4
"""A file system with a quarter of the size is a different one. Facts have sizes rounded down to powers of two, so the
true factor is over two, and none grows or shrinks that fast. A smaller difference may be thin provisioning, or two
replicas. Free inodes prove nothing: xfs and zfs estimate them from the free space."""


def groups(views: Mapping[int, PathFacts], writers: Sequence[int]) -> list[tuple[int, ...]]:
    """Groups of ranks that see the same file, the largest first; empty if no file was written, or no rank looked. A
    rank that saw no other's file is its own group; one that could not look is in none."""
    wrote = {rank for rank in writers if rank in views and views[rank]["written"]}
    looked_for = {int(writer) for view in views.values() for writer in view["seen"]}
    seen = {rank: _seen(rank, view, wrote, looked_for) for rank, view in views.items()}
    leader = _joined(saw for saw in seen.values() if saw)
    voters = {rank: leader[min(saw)] if saw else ~rank for rank, saw in seen.items() if saw is not None}
    return list(vote(voters).ranks_of.values()) if wrote else []


def _seen(rank: int, view: PathFacts, wrote: set[int], looked_for: set[int]) -> set[int] | None:
    """The writers whose files a rank has; None if it does not know, and the others do not know about its file."""
    if view["hang"] is not None or set(view["seen"].values()) - {"yes", "no"}:
        return None
    saw = {int(writer) for writer, answer in view["seen"].items() if answer == "yes"} | ({rank} & wrote)
    return saw if view["seen"] or saw & looked_for else None


def _joined(sets: Iterable[set[int]]) -> dict[int, int]:
    """For each rank the lowest writer it shares a file with: a rank that sees two writers' files joins them."""
    lowest: dict[int, int] = {}
    for saw in sets:
        all_of = {lowest.get(writer, writer) for writer in saw}
        for writer in saw:
            lowest.setdefault(writer, writer)
        for writer in [writer for writer, low in lowest.items() if low in all_of]:
            lowest[writer] = min(all_of)
    return lowest


def all_wrote(views: Mapping[int, PathFacts]) -> bool:
    return all(view["written"] for view in views.values())


def is_sealed(view: PathFacts) -> bool:
    return view["read_only"] or (view["failed"] is not None and view["failed"]["error"] == "EROFS")


def is_denied(view: PathFacts) -> bool:
    """Whether this user may not write there, or no one can: FUSE without CREATE returns ENOSYS, and procfs ENOENT."""
    failed, mount = view["failed"], view["mount"]
    if failed is None or failed["error"] in ("EACCES", "EPERM"):
        return failed is not None
    on_proc = mount is not None and mount["type"] == "proc"
    return failed["call"] == "create" and (on_proc or failed["error"] in ("ENOSYS", "EOPNOTSUPP"))


def peers(views: Mapping[int, PathFacts]) -> list[dict[int, PathFacts]]:
    """Groups of nodes that should be equally writable: those with a local disk, and those with one type of server. (An
    empty folder under a missing mount is writable; that does not make the data set on a server wrongly read-only.)"""
    found: dict[str, dict[int, PathFacts]] = {}
    for rank, view in views.items():
        found.setdefault(sort(view["mount"]), {})[rank] = view
    return list(found.values())


def sort(mount: mounts.Mount | None) -> str:
    return "" if mount is None else "local" if mounts.is_local(mount) else mounts.kind(mount)[0]


def should_be_shared(views: Mapping[int, PathFacts]) -> bool:
    """Whether all have mounted the same from a server."""
    known = [view["mount"] for view in views.values()]
    return all(map(mounts.is_served, known)) and len({mounts.kind(mount) for mount in known if mount}) == 1


def vote_of_sizes(views: Mapping[int, PathFacts]) -> Vote[int]:
    """A vote by MiB; sizes that may belong to one file system count as the smallest of them."""
    sizes = {rank: size for rank, view in views.items() if (size := view["size_mib"])}
    counts_as: dict[int, int] = {}
    for size in sorted(set(sizes.values())):
        last = next(reversed(counts_as), None)
        counts_as[size] = size if last is None or size >= OTHER_SIZE * last else counts_as[last]
    return vote({rank: counts_as[size] for rank, size in sizes.items()})


def vote_of_kinds(known: Mapping[int, mounts.Mount]) -> Vote[tuple[str, ...]]:
    """A vote by what is mounted there, without what differs between sound nodes."""
    return vote({rank: mounts.kind(mount) for rank, mount in known.items()})


def odd_mounts(votes: Vote[tuple[str, ...]], known: Mapping[int, mounts.Mount]) -> Iterator[tuple[int, mounts.Mount]]:
    """(rank, what most have) for each rank with a different mount. Nothing if most have a local disk and some a server:
    then it may be most that lack it."""
    if votes.decided and not _some_lack_it(votes, known):
        usual = known[votes.ranks_of[votes.usual][0]]
        yield from ((rank, usual) for rank, _ in votes.odd())


def bare(views: Mapping[int, PathFacts]) -> dict[int, mounts.Mount]:
    """{rank: what the others have} for nodes with nothing mounted where others have a server's data that no node may
    write to: such data cannot be on a local disk. If some node writes, there is no telling which is right."""
    mounted = {rank: mount for rank, view in views.items() if (mount := view["mount"])}
    served = {rank: mount for rank, mount in mounted.items() if not mounts.is_local(mount)}
    local = {rank: mount for rank, mount in mounted.items() if rank not in served}
    if len({mounts.kind(mount) for mount in served.values()}) != 1 or any(views[rank]["written"] for rank in served):
        return {}
    usual = served[min(served)]
    return dict.fromkeys(local, usual) if all(mounts.holds(mount, usual) for mount in local.values()) else {}


def undecided(votes: Vote[tuple[str, ...]], known: Mapping[int, mounts.Mount], *, written: bool) -> bool:
    """Whether to report both sides. `written`: each node has its own files, for which a server may well have a folder
    each."""
    if votes.decided:
        return _some_lack_it(votes, known)
    return len({kind[0] if written else kind for kind in votes.ranks_of}) > 1


def _some_lack_it(votes: Vote[tuple[str, ...]], known: Mapping[int, mounts.Mount]) -> bool:
    """Whether the usual mount is a local disk, while some node has a server's."""
    local = {kind: mounts.is_local(known[ranks[0]]) for kind, ranks in votes.ranks_of.items()}
    return bool(local) and local[votes.usual] and not all(local.values())


def is_soft(view: PathFacts) -> bool:
    mount = view["mount"]
    return mount is not None and mount["type"].startswith("nfs") and "soft" in mount["options"]


def told_apart(values: Mapping[int, T], run: Run) -> str:
    """ "a on node-0 and 3 more, b on node-4"; "" if all are equal."""
    votes = vote(values)
    if votes.unanimous:
        return ""
    sides = (f"{value or 'none'} on {names(run, ranks)}" for value, ranks in votes.ranks_of.items())
    return words.some(sides, last=", ")


def names(run: Run, ranks: Sequence[int]) -> str:
    """ "node-0", "node-0 and node-1" or "node-0 and 7 more"."""
    return words.some((run.job.node_of(rank).node for rank in ranks), 1)
