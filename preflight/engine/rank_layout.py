"""On which nodes ranks that never came were to run, by what the launcher told the ranks that came.

A node is named only where nothing else is possible by these variables and by the places of the ranks that came.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from preflight.sdk import slurm

IN_BLOCKS = ("torchrun", "own")
"""Launchers that number the ranks of a node without a gap; of others it is believed where two neighbors show it."""


@dataclass(frozen=True)
class RankLayout:
    """What rank 0 knows of the job's nodes before any other rank came."""

    launcher: str
    hosts: tuple[str, ...] = ()
    """The scheduler's, in its order; () if it is not known."""
    tasks: tuple[int, ...] = ()
    """How many ranks each host has, if the scheduler itself started them."""
    distribution: str = ""
    """Slurm's: block, cyclic, ...; "" for its default, block."""


@dataclass(frozen=True)
class Seat:
    """Where a rank is that came."""

    node: str
    local_rank: int | None = None
    local_size: int | None = None


def from_environ(launcher: str, environ: Mapping[str, str], rank: int | None) -> RankLayout:
    """Of rank 0's environment. A process per node may have started several ranks: then Slurm's tasks are not ranks."""
    step = slurm.hosts(environ.get("SLURM_STEP_NODELIST", ""))
    job = slurm.hosts(environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or "")
    if rank != 0 or not (step or job):
        return RankLayout(launcher)
    is_task = launcher == "slurm" or (
        launcher == "env" and environ.get("SLURM_STEP_NUM_TASKS") == environ.get("WORLD_SIZE")
    )
    tasks = slurm.tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", "")) if is_task else []
    if len(tasks) == len(step) > 0:
        return RankLayout(launcher, tuple(step), tuple(tasks), environ.get("SLURM_DISTRIBUTION", ""))
    return RankLayout(launcher, tuple(step if len(step) > 1 else job or step))


def nodes_of_missing(layout: RankLayout, world_size: int, seats: Mapping[int, Seat]) -> dict[str, list[int]]:
    """Ranks that never came, by the node on which each was to run, where that is known. `seats`: of those that came."""
    missing = [rank for rank in range(world_size) if rank not in seats]
    places = _by_tasks(layout, world_size, seats) or _beside(layout, world_size, seats)
    if not layout.tasks:
        places |= _by_hosts(layout, world_size, seats, [rank for rank in missing if rank not in places])
    found: dict[str, list[int]] = {}
    for rank in missing:
        if rank in places:
            found.setdefault(places[rank], []).append(rank)
    return found


def _by_tasks(layout: RankLayout, world_size: int, seats: Mapping[int, Seat]) -> dict[int, str]:
    """By Slurm's own tasks per node, if those that came are where these say."""
    if sum(layout.tasks) != world_size:
        return {}
    order = {"block": _block, "cyclic": _cyclic}.get(layout.distribution.partition(":")[0] or "block")
    places = dict(enumerate(order(layout.hosts, layout.tasks))) if order else {}
    return places if all(_is_same(places.get(rank, ""), seat.node) for rank, seat in seats.items()) else {}


def _block(hosts: Sequence[str], tasks: Sequence[int]) -> list[str]:
    return [host for host, count in zip(hosts, tasks, strict=True) for _ in range(count)]


def _cyclic(hosts: Sequence[str], tasks: Sequence[int]) -> list[str]:
    rounds = range(max(tasks, default=0))
    return [host for turn in rounds for host, count in zip(hosts, tasks, strict=True) if turn < count]


def _beside(layout: RankLayout, world_size: int, seats: Mapping[int, Seat]) -> dict[int, str]:
    """On the nodes of ranks that came: LOCAL_RANK and LOCAL_WORLD_SIZE say which ranks are on them."""
    blocks = _blocks(layout, seats)
    of_job = ((node, block[: max(0, world_size - block.start)]) for node, block in blocks.items())
    return {rank: node for node, block in of_job for rank in block if rank not in seats}


def _blocks(layout: RankLayout, seats: Mapping[int, Seat]) -> dict[str, range]:
    """The ranks of each node from which one came; {} if the ranks of a node are not numbered without a gap."""
    blocks: dict[str, range] = {}
    for rank, seat in seats.items():
        if seat.local_rank is None or seat.local_size is None:
            return {}
        first = rank - seat.local_rank
        block = range(first, first + seat.local_size)
        if first < 0 or blocks.setdefault(seat.node, block) != block:
            return {}
    if any(rank in block and seat.node != node for node, block in blocks.items() for rank, seat in _near(seats, block)):
        return {}
    neighbors = any(
        rank + 1 in seats
        and seat.node == seats[rank + 1].node
        and rank + 1 - (seats[rank + 1].local_rank or 0) == rank - (seat.local_rank or 0)
        for rank, seat in seats.items()
    )
    shown = layout.launcher in IN_BLOCKS or neighbors or all(seat.local_size == 1 for seat in seats.values())
    return blocks if shown else {}


def _near(seats: Mapping[int, Seat], block: range) -> Iterable[tuple[int, Seat]]:
    """LOCAL_WORLD_SIZE is any number that a variable holds: a block may be far larger than the job."""
    return ((rank, seats[rank]) for rank in block[: max(seats) + 1] if rank in seats)


def _by_hosts(layout: RankLayout, world_size: int, seats: Mapping[int, Seat], left: Sequence[int]) -> dict[int, str]:
    """On nodes from which no rank came, by the scheduler's list: by its order, if those that came are in that order, or
    because a single one is left."""
    sizes = {seat.local_size for seat in seats.values()}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    blocks = _blocks(layout, seats)
    if not size or len(layout.hosts) * size != world_size:
        return {}
    if blocks and all(_is_same(layout.hosts[block.start // size], node) for node, block in blocks.items()):
        return {rank: layout.hosts[rank // size] for rank in left}
    nodes = {_short(seat.node) for seat in seats.values()}
    absent = [host for host in layout.hosts if _short(host) not in nodes]
    return dict.fromkeys(left, absent[0]) if len(absent) == 1 and len(left) == size else {}


def _is_same(host: str, node: str) -> bool:
    return _short(host) == _short(node)


def _short(name: str) -> str:
    """Slurm may know a host by its short name, and the host itself by its full one."""
    return name.partition(".")[0].partition("#")[0]
