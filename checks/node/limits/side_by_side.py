"""The limits of a job's nodes side by side: what most have is enough for the job, and far less is an oversight that a
longer run pays for."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from preflight.check import Job, words

MUCH_LESS = 4
"""Nodes of one job may differ in memory, of which /dev/shm has half by default (tmpfs(5)), and in CPUs; by so much they
are of another kind, or somebody has set a limit."""


class ComparedLimit(NamedTuple):
    """One limit of a node."""

    name: str
    fact: str
    """None where it is unlimited, or not known."""
    text: str
    """ "a process may open {} files"."""
    is_shared: bool = False
    """Its ranks share it: nodes with other numbers of ranks may well have been given more or less."""


COMPARED = (
    ComparedLimit("nofile", "nofile", "a process may open {} files"),
    ComparedLimit("tasks", "tasks", "a user or a container may have {} processes and threads", is_shared=True),
    ComparedLimit("shm", "shm_mib", "/dev/shm has {} MiB"),  # noqa: S108 -- only its name
    ComparedLimit("memory", "memory_left_mib", "{} MiB of memory are left", is_shared=True),
    ComparedLimit("cpus", "cpus", "the ranks may use {} CPUs", is_shared=True),
)


class Less(NamedTuple):
    """What a node has much less of than most."""

    rank: int
    name: str
    text: str
    usual: float


def find_less(facts: Mapping[int, Mapping[str, Any]], job: Job) -> Iterator[Less]:
    """Of half of the nodes each, the larger value is the usual one: what one node has, the others could have."""
    are_alike = len({len(job.node_of(rank).ranks) for rank in facts}) == 1
    for compared in COMPARED:
        known = {rank: value for rank, each in facts.items() if (value := each[compared.fact]) is not None}
        if not known or (compared.is_shared and not are_alike):
            continue
        usual = statistics.median_high(known.values())
        having = words.some((job.node_of(rank).node for rank, value in known.items() if value * MUCH_LESS >= usual), 2)
        for rank, value in known.items():
            if value * MUCH_LESS < usual:
                text = f"{compared.text.format(_number(value))}, expected about {_number(usual)} as on {having}"
                yield Less(rank, compared.name, text, usual)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= MUCH_LESS else f"{value:g}"
