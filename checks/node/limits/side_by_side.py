"""Compares the limits of a job's nodes: what most have is enough for the job, and far less is an oversight that will
hurt a longer run."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from preflight.check import Job, words

MUCH_LESS = 4
"""Nodes of one job may differ in CPUs and memory, of which /dev/shm gets half by default (tmpfs(5)). If by this factor,
a node is of another kind, or someone has set a limit."""


class ComparedLimit(NamedTuple):
    """One limit of a node."""

    name: str
    fact: str
    """Its key in the facts; None there means unlimited or unknown."""
    text: str
    """ "a process may open {} files"."""
    is_shared: bool = False
    """The node's ranks share it, so a node with fewer or more ranks may rightly have less or more."""


COMPARED = (
    ComparedLimit("nofile", "nofile", "a process may open {} files"),
    ComparedLimit("tasks", "tasks", "a user or a container may have {} processes and threads", is_shared=True),
    ComparedLimit("shm", "shm_mib", "/dev/shm has {} MiB"),  # noqa: S108 -- only its name
    ComparedLimit("memory", "memory_left_mib", "{} MiB of memory are left", is_shared=True),
    ComparedLimit("cpus", "cpus", "the ranks may use {} CPUs", is_shared=True),
)


class Less(NamedTuple):
    """A limit that is much lower on a node than on most."""

    rank: int
    name: str
    text: str
    usual: float


def find_less(facts: Mapping[int, Mapping[str, Any]], job: Job) -> Iterator[Less]:
    """If half of the nodes each have a value, the larger counts as usual: what a node has, the others could have."""
    are_alike = len({len(job.node_of(rank).ranks) for rank in facts}) == 1
    for compared in COMPARED:
        known = {rank: value for rank, each in facts.items() if (value := each[compared.fact]) is not None}
        if not known or (compared.is_shared and not are_alike):
            continue
        usual = sorted(known.values())[len(known) // 2]
        having = words.some((job.node_of(rank).node for rank, value in known.items() if value * MUCH_LESS >= usual), 2)
        for rank, value in known.items():
            if value * MUCH_LESS < usual:
                text = f"{compared.text.format(_number(value))}, expected about {_number(usual)} as on {having}"
                yield Less(rank, compared.name, text, usual)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= MUCH_LESS else f"{value:g}"
