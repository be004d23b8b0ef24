"""Which ranks and nodes the logs speak of: the report's "job"."""

from collections.abc import Sequence

from preflight.core.job import Job, Node
from preflight.failure_book.book import Match
from preflight.failure_book.line import RANKS, Line


class RanksSeen:
    """Filled line by line."""

    def __init__(self) -> None:
        self._ranks: dict[int, str] = {}
        self._nodes: dict[str, None] = {}
        self._backend, self._world = "", 0

    def add(self, line: Line, matches: Sequence[Match]) -> None:
        """What a line of interest says of ranks."""
        if line.rank is not None and 0 <= line.rank < RANKS:
            self._ranks[line.rank] = line.node or self._ranks.get(line.rank, "")
        if line.node and len(self._nodes) < RANKS:
            self._nodes.setdefault(line.node)
        for match in matches:
            family = match.signature.name.partition(".")[0]
            self._backend = self._backend or {"nccl": "nccl", "net": "nccl", "gloo": "gloo"}.get(family, "")
            world = match.groups.get("nranks", "")
            self._world = max(self._world, int(world) if world.isdecimal() and int(world) <= RANKS else 0)

    def job(self) -> Job:
        """What is not seen is "unknown"; its size is at least 1."""
        names = list(self._nodes) or [""]
        at = {name: tuple(sorted(rank for rank, node in self._ranks.items() if node == name)) for name in names}
        nodes = tuple(Node(name, place, at[name]) for place, name in enumerate(names) if name)
        size = max([self._world, 1, *(rank + 1 for rank in self._ranks)])
        return Job("unknown", size, self._backend or "unknown", nodes)
