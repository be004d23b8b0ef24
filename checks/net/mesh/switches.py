"""The switches above nodes, as Slurm names them."""

from collections import defaultdict
from collections.abc import Mapping


def read_switches(addr: str, pattern: str) -> str:
    """ "spine.leaf-1" of "spine.leaf-1.node-7" and "switch.switch.node": SLURM_TOPOLOGY_ADDR and its PATTERN as Slurm's
    topology/tree sets them (sbatch(1)). "" where they do not name switches; a node's name may hold dots."""
    kinds = pattern.split(".")
    levels = kinds.count("switch")
    well_known = levels and kinds == [*["switch"] * levels, "node"] and addr.count(".") >= levels
    return ".".join(addr.split(".")[:levels]) if well_known else ""


def nodes_behind(places: Mapping[int, str]) -> dict[frozenset[int], str]:
    """The nodes behind each switch, and its name. `places`: by node, "spine.leaf-1", from the top down, or "". Of
    switches with the same nodes the lowest one."""
    behind: dict[tuple[int, str], set[int]] = defaultdict(set)
    for node, place in places.items():
        for level, name in enumerate(place.split(".") if place else ()):
            behind[level, name].add(node)
    return {frozenset(nodes): name for (_, name), nodes in sorted(behind.items(), key=lambda item: item[0])}
