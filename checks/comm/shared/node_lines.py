"""What the logs of a node's ranks say together, and what other checks have seen of its hardware. For comm.transports
and what is expected of collectives."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from preflight.check import Run
from preflight.nccl.log_lines import Lines

READS = ("net.rdma", "gpu.nvlink", "gpu.topology", "gpu.inventory")
"""Checks whose facts are asked for."""


@dataclass(frozen=True, eq=False)
class Node:
    """What the ranks of one node have in their logs."""

    name: str
    ranks: Sequence[int]
    lines: Sequence[Lines]
    rdma: Mapping[str, Any] | None
    """Facts of net.rdma."""
    links: Mapping[str, Any]
    """By UUID, of gpu.nvlink."""
    reaches: bool | None
    """Whether any two of its GPUs reach each other's memory (gpu.topology); None: not known."""
    models: frozenset[str]

    @cached_property
    def inside(self) -> dict[str, int]:
        return _sum(one["ways"]["node"] for one in self.lines)

    @cached_property
    def between(self) -> dict[str, int]:
        return _sum(one["ways"]["net"] for one in self.lines)

    @cached_property
    def settings(self) -> dict[str, str]:
        return {name: value for one in self.lines for name, value in one["settings"].items()}

    @property
    def network(self) -> str:
        return next((one["network"] for one in self.lines if one["network"]), "")

    @property
    def plugin(self) -> str:
        return next((one["plugin"] for one in self.lines if one["plugin"]), "")

    @property
    def hcas(self) -> tuple[str, ...]:
        return max((tuple(one["hcas"]) for one in self.lines), key=len)

    @property
    def local_ranks(self) -> int | None:
        return min((one["local_ranks"] for one in self.lines if one["local_ranks"] is not None), default=None)

    @property
    def nvls(self) -> bool | None:
        """Where none of its ranks has it, or none says so."""
        said = [one["nvls"] for one in self.lines if one["nvls"] is not None]
        return all(said) if said else None

    @property
    def nvls_channels(self) -> int:
        return max((one["channels"]["nvls"] or 0 for one in self.lines if one["channels"]), default=0)

    @property
    def channels(self) -> int:
        return max((one["channels"]["coll"] for one in self.lines if one["channels"]), default=0)

    @property
    def evidence(self) -> dict[str, Any]:
        """For a finding."""
        warnings = [text for one in self.lines for text in one["warnings"]]
        seen = {"network": self.network, "in_node": self.inside, "between_nodes": self.between}
        return {**seen, **({"nccl_warned": warnings[:3]} if warnings else {})}


def nodes(facts: Mapping[int, Lines], run: Run) -> list[Node]:
    by_node: dict[str, list[int]] = {}
    for rank in sorted(facts):
        by_node.setdefault(run.job.node_of(rank).node, []).append(rank)
    rdma = {run.job.node_of(rank).node: one for rank, one in run.facts("net.rdma").items()}
    links = _gpus(run, "gpu.nvlink")
    places = _gpus(run, "gpu.topology")
    models: dict[str, set[str]] = {}
    for rank, one in run.facts("gpu.inventory").items():
        names = (handle["name"] for handle in one["seen"]["gpus"].values())
        models.setdefault(run.job.node_of(rank).node, set()).update(names)
    return [
        Node(name, ranks_, [facts[rank] for rank in ranks_], rdma.get(name), links.get(name, {}),
             _reach(places.get(name, {})), frozenset(models.get(name, ())))
        for name, ranks_ in by_node.items()
    ]  # fmt: skip


def _gpus(run: Run, check: str) -> dict[str, dict[str, Any]]:
    """By node and UUID."""
    found: dict[str, dict[str, Any]] = {}
    for rank, one in run.facts(check).items():
        found.setdefault(run.job.node_of(rank).node, {}).update(one["look"]["gpus"])
    return found


def _reach(places: Mapping[str, Any]) -> bool | None:
    peers = [peer["read"] for place in places.values() for peer in place["peers"].values()]
    known = [read for read in peers if read is not None]
    return 0 in known if known else None


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total


def switched(node: Node) -> bool:
    """Whether NVSwitches join all its GPUs (a GPU in MIG mode has no links)."""
    ends = [[link["remote_type"] for link in one["links"] or () if link["active"]] for one in node.links.values()]
    return len(ends) > 1 and all("switch" in one for one in ends)
