"""What Slurm says about the network between nodes."""

from collections.abc import Mapping


def switches(environ: Mapping[str, str]) -> str:
    """The switches above this node, from the top down: "spine.leaf-1"."""
    return read_switches(environ.get("SLURM_TOPOLOGY_ADDR", ""), environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", ""))


def read_switches(addr: str, pattern: str) -> str:
    """ "spine.leaf-1" from "spine.leaf-1.node-7" and "switch.switch.node": SLURM_TOPOLOGY_ADDR and its PATTERN as set
    by Slurm's topology/tree (sbatch(1)). "" if they do not name switches; a node's name may contain dots."""
    kinds = pattern.split(".")
    levels = kinds.count("switch")
    well_known = levels and kinds == [*["switch"] * levels, "node"] and addr.count(".") >= levels
    return ".".join(addr.split(".")[:levels]) if well_known else ""
