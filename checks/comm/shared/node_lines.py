"""Combines the logs of a node's ranks with what other checks know about its hardware. For comm.transports, and for
expected.py."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from preflight.check import Run
from preflight.nccl.log_lines import Lines

READS = ("net.rdma", "gpu.nvlink", "gpu.topology", "gpu.inventory")
"""Checks whose facts are read."""


@dataclass(frozen=True, eq=False)
class NodeLog:
    """What is in the logs of one node's ranks."""

    name: str
    ranks: Sequence[int]
    lines: Sequence[Lines]
    rdma: Mapping[str, Any] | None
    """Facts of net.rdma."""
    links: Mapping[str, Any]
    """Facts of gpu.nvlink by UUID."""
    reaches: bool | None
    """Whether any two of its GPUs reach each other's memory (gpu.topology); None if unknown."""
    models: frozenset[str]

    @cached_property
    def inside(self) -> dict[str, int]:
        return _sum(line["ways"]["node"] for line in self.lines)

    @cached_property
    def between(self) -> dict[str, int]:
        return _sum(line["ways"]["net"] for line in self.lines)

    @cached_property
    def settings(self) -> dict[str, str]:
        return {name: value for line in self.lines for name, value in line["settings"].items()}

    @property
    def network(self) -> str:
        return next((line["network"] for line in self.lines if line["network"]), "")

    @property
    def plugin(self) -> str:
        return next((line["plugin"] for line in self.lines if line["plugin"]), "")

    @property
    def hcas(self) -> tuple[str, ...]:
        return max((tuple(line["hcas"]) for line in self.lines), key=len)

    @property
    def local_ranks(self) -> int | None:
        return min((line["local_ranks"] for line in self.lines if line["local_ranks"] is not None), default=None)

    @property
    def nvls(self) -> bool | None:
        """Whether the node uses NVLS; None if no rank's log says so."""
        answers = [line["nvls"] for line in self.lines if line["nvls"] is not None]
        return all(answers) if answers else None

    @property
    def nvls_channels(self) -> int:
        return max((line["channels"]["nvls"] or 0 for line in self.lines if line["channels"]), default=0)

    @property
    def channels(self) -> int:
        return max((line["channels"]["coll"] for line in self.lines if line["channels"]), default=0)

    @property
    def evidence(self) -> dict[str, Any]:
        """The evidence for a finding."""
        warnings = [text for line in self.lines for text in line["warnings"]]
        seen = {"network": self.network, "in_node": self.inside, "between_nodes": self.between}
        return {**seen, **({"nccl_warned": warnings[:3]} if warnings else {})}


def nodes(facts: Mapping[int, Lines], run: Run) -> list[NodeLog]:
    by_node: dict[str, list[int]] = {}
    for rank in sorted(facts):
        by_node.setdefault(run.job.node_of(rank).node, []).append(rank)
    rdma = {run.job.node_of(rank).node: reading for rank, reading in run.facts("net.rdma").items()}
    links = _gpus(run, "gpu.nvlink")
    places = _gpus(run, "gpu.topology")
    models: dict[str, set[str]] = {}
    for rank, reading in run.facts("gpu.inventory").items():
        names = (handle["name"] for handle in reading["seen"]["gpus"].values())
        models.setdefault(run.job.node_of(rank).node, set()).update(names)
    return [
        NodeLog(
            name,
            ranks_,
            [facts[rank] for rank in ranks_],
            rdma.get(name),
            links.get(name, {}),
            _reach(places.get(name, {})),
            frozenset(models.get(name, ())),
        )
        for name, ranks_ in by_node.items()
    ]


def _gpus(run: Run, check: str) -> dict[str, dict[str, Any]]:
    """A check's facts about GPUs, by node and UUID."""
    found: dict[str, dict[str, Any]] = {}
    for rank, reading in run.facts(check).items():
        found.setdefault(run.job.node_of(rank).node, {}).update(reading["look"]["gpus"])
    return found


def _reach(places: Mapping[str, Any]) -> bool | None:
    peers = [peer["read"] for place in places.values() for peer in place["peers"].values()]
    known = [read for read in peers if read is not None]
    return 0 in known if known else None


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for counted in counts:
        for name, count in counted.items():
            total[name] = total.get(name, 0) + count
    return total


def switched(node: NodeLog) -> bool:
    """Whether NVSwitches connect all of the node's GPUs (a GPU in MIG mode has no links)."""
    ends = [[link["remote_type"] for link in gpu["links"] or () if link["active"]] for gpu in node.links.values()]
    return len(ends) > 1 and all("switch" in kinds for kinds in ends)
