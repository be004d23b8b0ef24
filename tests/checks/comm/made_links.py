"""Made-up facts of links: what ranks of many nodes would have measured."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from preflight.check import Job, Node, Run
from preflight.checks.comm.shared import localize, meetings

Slow = Callable[[int, int, int], float]
"""Of a link: from node, to node, place among the node's ranks -> its rate, of 1."""
MIB = 1024 * 1024


def job(nodes: int, width: int, backend: str = "nccl") -> Job:
    listed = tuple(Node(f"node-{n}", n, tuple(range(n * width, (n + 1) * width))) for n in range(nodes))
    return Job("env", nodes * width, backend, listed)


def nodes_of(nodes: int, width: int) -> dict[str, Iterable[int]]:
    return {f"node-{n}": range(n * width, (n + 1) * width) for n in range(nodes)}


def sound(_from: int, _to: int, _rail: int) -> float:
    return 1.0


def facts(
    steps: Sequence[dict[int, int]], nodes: int, width: int, slow: Slow = sound, noise: float = 0.0, seed: int = 0,
    gb_per_s: float = 40.0,
) -> dict[int, dict[str, Any]]:  # fmt: skip
    """Each rank's, with rates that differ by +-`noise` at random."""
    chance = random.Random(seed)
    found: dict[int, dict[str, Any]] = {
        rank: {"bytes": 64 * MIB, "links": [], "reduce_s": None} for rank in range(nodes * width)
    }
    for step in steps:
        for sender, receiver in step.items():
            share = slow(sender // width, receiver // width, receiver % width) * (1 + chance.uniform(-noise, noise))
            found[receiver]["links"].append([sender, 64 * MIB / (gb_per_s * 1e9 * share)])
    return found


def of_rails(nodes: int, width: int, slow: Slow = sound, noise: float = 0.0, seed: int = 0) -> dict[int, Any]:
    """With an all-reduce of each rail that takes as long as its slowest link."""
    made = job(nodes, width)
    rails = meetings.group_by_rail(made, range(nodes * width))
    found = facts(meetings.ring_steps(rails), nodes, width, slow, noise, seed)
    for rail in rails:
        slowest = max((seconds for rank in rail for _, seconds in found[rank]["links"]), default=0.0)
        for rank in rail if len(rail) > 1 else ():
            found[rank]["reduce_s"] = 2 * slowest
    return found


def of_pairs(nodes: int, width: int, slow: Slow = sound, noise: float = 0.0, seed: int = 0) -> dict[int, Any]:
    made = job(nodes, width)
    return facts(meetings.steps_between(made, range(nodes * width)), nodes, width, slow, noise, seed)


def of_nodes(
    nodes: int, width: int, slow: Callable[[int, int], float] = lambda *_: 1.0, noise: float = 0.0, seed: int = 0
) -> dict[int, Any]:
    """`slow`: of a link between two ranks."""
    made = job(nodes, width)
    groups = meetings.group_by_node(made, range(nodes * width))
    found = facts(meetings.steps_within(groups), nodes, width, sound, noise, seed)
    for rank, of_rank in found.items():
        of_rank["links"] = [[sender, seconds / slow(sender, rank)] for sender, seconds in of_rank["links"]]
    for group in groups:
        slowest = max((seconds for rank in group for _, seconds in found[rank]["links"]), default=0.0)
        for rank in group if len(group) > 1 else ():
            found[rank]["reduce_s"] = 2 * slowest
    return found


def twice(
    steps: Sequence[dict[int, int]], nodes: int, width: int, first: Slow, again: Slow, noise: float = 0.0, seed: int = 0
) -> tuple[dict[int, Any], list[dict[int, int]]]:  # fmt: skip
    """(what all ranks hand over after two looks, the steps of the second). As transfers.measure does, without ranks."""
    made = job(nodes, width)
    found: dict[int, Any] = facts(steps, nodes, width, first, noise, seed)
    doubted = localize.doubt(found, Run(made, tuple(found), {}))
    if not doubted:
        return found, []
    more = meetings.steps_again(steps, doubted.links, made, with_each_other=True)
    second = facts(more, nodes, width, again, noise, seed + 1)
    return {rank: {**found[rank], "again": second[rank]} for rank in found}, more
