"""The job as all ranks see it: how many ranks, on which nodes, over which backend."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from preflight.core import rank_ranges


@dataclass(frozen=True)
class Node:
    """A host, or a container, that runs ranks of the job."""

    node: str
    """Its name, unique in the job: "gpu-17", or "gpu-17#1" where two nodes share one host name."""
    node_rank: int
    ranks: tuple[int, ...]
    addresses: tuple[str, ...] = ()
    machine: str = ""
    """An id that survives a rename of the host; "" if it has none of its own."""


@dataclass(frozen=True)
class Job:
    """Made once by rank 0 from what every rank reported about itself; the same on all ranks."""

    launcher: str
    """torchrun, mpi, slurm, env (plain variables), own (preflight has started the ranks), local (a rank alone), or
    unknown (of a job's logs, or of a checkpoint)."""
    world_size: int
    backend: str
    """nccl or gloo."""
    nodes: tuple[Node, ...]
    missing_on: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(node, ranks) of ranks that never arrived, where the launcher's variables tell the node; it may be one of
    `nodes`."""

    @cached_property
    def _node_of_rank(self) -> dict[int, Node]:
        return {rank: node for node in self.nodes for rank in node.ranks}

    @cached_property
    def _node_of_missing(self) -> dict[int, str]:
        return {rank: node for node, ranks in self.missing_on for rank in ranks}

    def node_of(self, rank: int) -> Node:
        """The node of a rank; for a rank that never arrived, one that holds only this rank, nameless where nothing
        tells on which node it was to run."""
        return self._node_of_rank.get(rank) or Node(self._node_of_missing.get(rank, ""), -1, (rank,))

    def where(self, rank: int) -> dict[str, Any]:
        """The culprit's address for a finding about one rank: node (where known) and rank."""
        node = self.node_of(rank).node
        return {"node": node, "rank": rank} if node else {"rank": rank}

    def one_per_node(self, members: Iterable[int]) -> list[int]:
        """The lowest member of each node: it does the work of a NODE check."""
        lowest: dict[str, int] = {}
        for rank in sorted(members):
            lowest.setdefault(self.node_of(rank).node, rank)
        return sorted(lowest.values())

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Ranks that never arrived; none of a job that is known from its logs only."""
        if self.launcher == "unknown":
            return ()
        return tuple(rank for rank in range(self.world_size) if rank not in self._node_of_rank)

    def to_json(self) -> dict[str, Any]:
        """The report's `job` (docs/report.md)."""
        on = [{"node": node, "ranks": rank_ranges.to_text(ranks)} for node, ranks in self.missing_on]
        return {
            "launcher": self.launcher,
            "world_size": self.world_size,
            "backend": self.backend,
            "nodes": [
                {**vars(node), "ranks": rank_ranges.to_text(node.ranks), "addresses": list(node.addresses)}
                for node in self.nodes
            ],
            "missing_ranks": rank_ranges.to_text(self.missing),
            **({"missing_on": on} if on else {}),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Job":
        nodes = tuple(
            Node(
                item["node"],
                item["node_rank"],
                rank_ranges.from_text(item["ranks"]),
                tuple(item.get("addresses", ())),
                item.get("machine", ""),
            )
            for item in data["nodes"]
        )
        missing = tuple((on["node"], rank_ranges.from_text(on["ranks"])) for on in data.get("missing_on", ()))
        return Job(data["launcher"], data["world_size"], data["backend"], nodes, missing)
