"""What Slurm says about the job's nodes, and about the network between them."""

import itertools
import re
from collections.abc import Iterator, Mapping

MOST_HOSTS = 1 << 17
"""A longer list is not one of Slurm's."""


def hosts(nodelist: str) -> list[str]:
    """The hosts of a node list, in its order: "gpu[007-008,12],x1" gives gpu007, gpu008, gpu12, x1; [] for what is not
    a node list (scontrol(1), show hostnames)."""
    if not re.fullmatch(r"(?:[^\[\]]|\[[^\[\]]*\])*", nodelist):
        return []
    found = [host for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist) for host in _spelled_out(part)]
    return found if len(found) <= MOST_HOSTS else []


def tasks_per_node(text: str) -> list[int]:
    """SLURM_STEP_TASKS_PER_NODE: "2(x3),1" gives 2, 2, 2, 1 (srun(1)); [] for anything else."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        times = int(match[2] or 1) if match else MOST_HOSTS
        if not match or len(found) + times > MOST_HOSTS:
            return []
        found += [int(match[1])] * times
    return found


def _spelled_out(part: str) -> Iterator[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)
    choices = [list(_numbers(piece)) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    return itertools.islice(map("".join, itertools.product(*choices)), MOST_HOSTS + 1)


def _numbers(ranges: str) -> Iterator[str]:
    """ "007-010,12": 007, 008, 009, 010, 12; a part that is no number as it is."""
    for part in ranges.split(","):
        match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", part)
        if match and int(match[2]) - int(match[1]) < MOST_HOSTS:
            yield from (str(number).zfill(len(match[1])) for number in range(int(match[1]), int(match[2]) + 1))
        else:
            yield part


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
