"""The cores that each rank may use: a launcher, or a variable of OpenMP, may have bound several ranks to the same ones.

Cores are counted, not their threads: two ranks on the two hardware threads of one core share it.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from preflight.check import Code, Context, Finding, Node, Run, ranges, vote
from preflight.sdk import cgroups
from preflight.sdk.files import read

_LOOK = (
    "On that node: taskset -cp PID; look for taskset and numactl, and unset OMP_PROC_BIND, OMP_PLACES, "
    "GOMP_CPU_AFFINITY and KMP_AFFINITY, which bind each process alike when torch is imported."
)
FIXES = {
    "slurm": "srun --cpu-bind=cores with --cpus-per-task at least the cores that a rank needs (SRUN_CPUS_PER_TASK), or "
    "srun --cpu-bind=none. " + _LOOK,
    "mpi": "mpirun --bind-to none, or --map-by ppr:N:node:PE=M with N ranks on a node and M cores for each. " + _LOOK,
}
"""By launcher; others bind nothing by themselves."""
SHARED_CORES = Code("Ranks of a node share cores while no rank of the job uses others.", fix=_LOOK)
FEW_CORES = Code("A rank may use far fewer cores than the other ranks.", fix=_LOOK)
VARIABLES = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES", "SLURM_CPU_BIND")
"""What may have bound a rank; shown with the finding."""


class Cores(TypedDict):
    """Cores by the number of their first CPU: "0-3,8"."""

    own: str
    node: str
    """Those that a launcher could give to ranks here: all of the cgroup, or of the machine."""
    bound_by: str
    """The first of VARIABLES that is set, with its value; or ""."""


def measure(ctx: Context, root: str = "") -> Cores | None:
    """None where the kernel does not tell."""
    of_node = cgroups.cpuset(root) or read(f"{root}/sys/devices/system/cpu/online")
    if not of_node or not hasattr(os, "sched_getaffinity"):
        return None
    first = {cpu: _first_thread(cpu, root) for cpu in ranges.from_text(of_node)}
    own = {first.get(cpu, cpu) for cpu in os.sched_getaffinity(0)}
    bound_by = next((f"{name}={ctx.environ[name][:100]}" for name in VARIABLES if name in ctx.environ), "")
    return {"own": ranges.to_text(own), "node": ranges.to_text({*first.values(), *own}), "bound_by": bound_by}


def _first_thread(cpu: int, root: str) -> int:
    """The first hardware thread of this CPU's core."""
    siblings = re.match("[0-9]+", read(f"{root}/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
    return int(siblings[0]) if siblings else cpu


def findings(known: Mapping[int, Cores], run: Run) -> Iterator[Finding]:
    """`known`: by rank. A node of which not all ranks are known is left out: the others may use what is free."""
    named: set[int] = set()
    own = {rank: frozenset(ranges.from_text(cores["own"])) for rank, cores in known.items()}
    nodes = [node for node in run.job.nodes if node.ranks and all(rank in known for rank in node.ranks)]
    for node in nodes:
        for finding, ranks_ in _sharing(node, own, known, run):
            named.update(ranks_)
            yield finding
    yield from _few([node for node in nodes if not named & set(node.ranks)], own, known, run)


def _sharing(
    node: Node, own: Mapping[int, frozenset[int]], known: Mapping[int, Cores], run: Run
) -> Iterator[tuple[Finding, Sequence[int]]]:
    """Ranks that have less than a core each, or half of what the others of the node have, and cores that none uses."""
    sets = {rank: own[rank] for rank in node.ranks}
    free = _of_node(node, known) - frozenset().union(*sets.values())
    share = {rank: len(cores) / sum(other <= cores for other in sets.values()) for rank, cores in sets.items()}
    usual = sorted(share.values())[len(share) // 2]
    for cores in dict.fromkeys(sets.values()) if free else ():
        ranks_ = [rank for rank, other in sets.items() if other == cores]
        if len(ranks_) > 1 and (share[ranks_[0]] < 1 or 2 * share[ranks_[0]] <= usual):
            text = f"{ranges.ranks(ranks_)} share {_cores(cores)}, while no rank of this job uses {_cores(free)}"
            text, details = f"{text}; expected cores of its own for each rank", _details(ranks_, known, run)
            yield SHARED_CORES.warn(text, node=node.node, noticed_by=tuple(ranks_), **details), ranks_


def _few(
    nodes: Sequence[Node], own: Mapping[int, frozenset[int]], known: Mapping[int, Cores], run: Run
) -> Iterator[Finding]:
    """Ranks with at most half of the usual number, where an equal share of their node's cores would be more."""
    votes = vote((rank, len(own[rank])) for node in nodes for rank in node.ranks)
    odd = dict(votes.odd())
    for node in nodes:
        fair = len(_of_node(node, known)) / len(node.ranks)
        for rank in node.ranks:
            if rank in odd and 2 * odd[rank] <= votes.usual and odd[rank] + 1 <= fair:
                text = f"the rank may use {_cores(own[rank])}, expected {votes.usual} cores as on {votes.share()}"
                yield FEW_CORES.warn(text, **run.job.where(rank), **_details([rank], known, run))


def _of_node(node: Node, known: Mapping[int, Cores]) -> frozenset[int]:
    return frozenset(core for rank in node.ranks for core in ranges.from_text(known[rank]["node"]))


def _cores(cores: frozenset[int]) -> str:
    """ "core 3", or "4 cores (0-3)"."""
    text = ranges.to_text(cores)
    return f"core {text}" if len(cores) == 1 else f"{len(cores):,} cores ({text})"


def _details(ranks_: Sequence[int], known: Mapping[int, Cores], run: Run) -> dict[str, object]:
    bound_by = known[ranks_[0]]["bound_by"]
    evidence = {"cores": known[ranks_[0]]["own"], "cores_of_node": known[ranks_[0]]["node"]}
    evidence |= {"set": bound_by} if bound_by else {}
    return {"fix": FIXES.get(run.job.launcher), "evidence": evidence}
