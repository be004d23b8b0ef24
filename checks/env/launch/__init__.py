"""Launch: every rank is there once, with coherent variables.

Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as each process was given
them. Processes that came but have no place in the run (a rank given twice, or beyond the world size) are judged
from the roll call. The report shows which ranks are on which node, with which local rank and GPU; by CUDA's numbers:
whether two ranks take one GPU is a matter of gpu.inventory, which compares UUIDs.

It also knows which nodes belong together, so that what all nodes of a rack have is one finding: by Slurm's topology
(SLURM_TOPOLOGY_ADDR), and by a file, `--set env.launch.groups=FILE`, with a line a node: `gpu-17 rack=7 room=b`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NotRequired, TypedDict

from preflight.check import Action, Code, Context, Finding, Group, Level, Plan, Run, Scope, ranges, vote
from preflight.checks.env.launch import node_groups, places
from preflight.checks.env.launch.node_groups import Listed
from preflight.sdk import slurm

STRANGERS = "preflight.strangers"
PARTS = (node_groups,)
PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=20, estimate_s=0.1, reads=(STRANGERS,), aside=True)

INVALID = Code(
    "A launch variable is missing or no number.",
    fix="Set {variable} in the job's script, or start with torchrun.",
)
DUPLICATE_RANK = Code(
    "Two processes have the same rank.",
    fix="Give every process its own RANK: node_rank * ranks a node + local_rank.",
)
RANK_OUTSIDE = Code(
    "A rank is not below the world size.", fix="WORLD_SIZE is the number of all ranks; RANK counts from 0."
)
LATE = Code(
    "A rank came after the roll call.",
    fix="See what held its node up (image pull, file system); or a longer --deadline.",
    action=Action.RESTART_JOB,
)
UNLIKE = Code("A launch variable differs between ranks.", fix="Set {variable} to the same value on all nodes.")
LOCAL_RANK_TAKEN = Code(
    "Two ranks of one node have the same LOCAL_RANK.", fix="LOCAL_RANK counts the ranks of one node from 0."
)
LOCAL_WORLD_SIZE = Code(
    "LOCAL_WORLD_SIZE is not the number of ranks on the node.",
    fix="Set LOCAL_WORLD_SIZE to the node's number of ranks.",
)
UNEVEN = Code(
    "Nodes have different numbers of ranks.",
    fix="Start the same number on each (--nproc-per-node), unless meant so.",
)
NOT_GROUPED = Code(
    "The ranks of a node are not consecutive.",
    fix="srun --distribution=block; mpirun --map-by ppr:N:node; by hand RANK = node_rank * ranks a node + local_rank.",
)
NO_LOCAL_RANK = Code(
    "LOCAL_RANK is not set where ranks share a node's GPUs.",
    fix="Set LOCAL_RANK, from 0 on each node, or start with torchrun; else see that the script does not need it.",
)
SINGLE_PROCESS = Code(
    "The launcher has started a single process; the ranks are of this run alone.",
    fix="accelerate launch --multi_gpu --num_processes N (without GPUs with ACCELERATE_USE_CPU=true), or torchrun.",
)
NUMBERS = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": 1}
"""The least value of each."""
ACCELERATE = re.compile("ACCELERATE_(USE_CPU|MIXED_PRECISION)$")
MOST = 10**6
"""Of any of them: with more somebody took a job's id for a number of ranks."""
EQUAL_EVERYWHERE = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
NODES_NAMED = 2


class Facts(TypedDict):
    environ: dict[str, str]
    local_rank: int
    """LOCAL_RANK or its launcher's own; where there is none, counted off on the node."""
    accelerate: NotRequired[str]
    """A variable that `accelerate launch` has set, where it has started this process without a rank."""
    switches: NotRequired[str]
    """Above its node, as Slurm names them; not there where nobody says."""
    listed: NotRequired[Listed]
    """Of the rank that has read the file of groups."""


def measure(ctx: Context) -> Facts:
    names = (*EQUAL_EVERYWHERE, "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
    facts: Facts = {
        "environ": {name: ctx.environ[name] for name in names if name in ctx.environ},
        "local_rank": ctx.local_rank,
    }
    if ctx.job.launcher == "own" and (variable := next(filter(ACCELERATE.match, ctx.environ), "")):
        facts["accelerate"] = variable
    if switches := slurm.switches(ctx.environ):
        facts["switches"] = switches
    if listed := node_groups.listed(ctx):
        facts["listed"] = listed
    return facts


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from _strangers(run)
    yield from _no_numbers(facts, run)
    for variable in EQUAL_EVERYWHERE:
        yield from _unlike(variable, facts, run)
    if not run.job.missing:
        yield from _node_sizes(facts, run)
        yield from _order(run)
    yield from _local_ranks(facts, run)
    yield from _single_process(facts, run)
    if run.job.launcher == "env" and run.job.backend == "nccl":
        yield from _without_local_rank(facts, run)
    for listed in _listed(facts):
        yield from node_groups.findings(listed, run)


def groups(facts: Mapping[int, Facts], run: Run) -> Iterator[Group]:
    for listed in _listed(facts):
        yield from (Group(name, tuple(nodes)) for name, nodes in listed["groups"].items())
    above = {run.job.node_of(rank).node: reading.get("switches", "") for rank, reading in facts.items()}
    yield from node_groups.behind_switches(above)


def _listed(facts: Mapping[int, Facts]) -> list[Listed]:
    return [reading["listed"] for reading in facts.values() if "listed" in reading]


def draw(facts: Mapping[int, Facts], run: Run) -> Iterator[str]:
    return places.table(facts, run)


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    return f"{ranges.count(len(facts), 'rank')} on {ranges.count(len(run.job.nodes), 'node')}"


def _strangers(run: Run) -> Iterator[Finding]:
    for stranger in run.facts(STRANGERS).values():
        rank, node, pid = stranger["rank"], stranger["node"], stranger["pid"]
        who = f"process {pid} on {node}"
        if stranger["why"] == "invalid":
            for variable, problem in stranger["problems"]:
                yield INVALID.fail(f"{variable} {problem} for {who}; it could not join", node=node, variable=variable)
        elif stranger["why"] == "duplicate":
            yield _duplicate(rank, node, who, run)
        elif stranger["why"] == "outside":
            text = f"{who} has RANK {rank}, expected below WORLD_SIZE {run.job.world_size}"
            yield RANK_OUTSIDE.fail(text, node=node, rank=rank, variable="RANK")
        else:
            yield LATE.fail(f"{who} came as rank {rank} when the run had begun without it", node=node, rank=rank)


def _duplicate(rank: int, node: str, who: str, run: Run) -> Finding:
    holder = run.job.node_of(rank).node
    text = f"{who} came with RANK {rank}, which a process on {holder} has already; expected every rank once"
    return DUPLICATE_RANK.fail(text, node=node, rank=rank, variable="RANK", peer_node=holder)


def _no_numbers(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """A member got in without them: from its neighbours the engine knew what they should be."""
    for rank, reading in facts.items():
        for variable, least in NUMBERS.items():
            value = reading["environ"].get(variable)
            number = _number(value)
            if value is not None and not (isinstance(number, int) and least <= number <= MOST):
                text = f"{variable} is {value!r}, expected a whole number of at least {least}, and at most {MOST:,}"
                yield INVALID.fail(text, variable=variable, **run.job.where(rank))


def _unlike(variable: str, facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    votes = vote((rank, _number(reading["environ"].get(variable))) for rank, reading in facts.items())
    if votes.unanimous:
        return
    if variable != "WORLD_SIZE":  # all of them met in one store, so these names lead to the same place
        text = f"{variable} is {votes.sides()}, expected one spelling; all ranks have met at the same store"
        yield UNLIKE.info(text, variable=variable)
        return
    usual = run.job.world_size  # rank 0's
    others = f"{usual} as on {len(votes.ranks_of.get(usual, ()))} of {votes.voters} ranks"
    for value, ranks_ in votes.ranks_of.items():
        for rank in ranks_ if value != usual else ():
            text = f"{variable} is {'not set' if value is None else value}, expected {others}"
            yield UNLIKE.fail(text, variable=variable, **run.job.where(rank))


def _number(text: str | None) -> int | str | None:
    """ "02" and " 2" are the same number."""
    return int(text) if text is not None and re.fullmatch(r"\s*[0-9]{1,9}\s*", text) else text


def _node_sizes(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    usual = Counter(len(node.ranks) for node in run.job.nodes).most_common(1)[0][0]
    for node in run.job.nodes:
        size = len(node.ranks)
        if size != usual:
            yield UNEVEN.warn(f"{ranges.count(size, 'rank')}, expected {usual} as on most nodes", node=node.node)
        for rank in node.ranks:
            said = facts[rank]["environ"].get("LOCAL_WORLD_SIZE") if rank in facts else None
            if said is not None and re.fullmatch("[0-9]{1,9}", said) and int(said) != size:
                text = f"LOCAL_WORLD_SIZE is {said}, expected {size}, the ranks on this node"
                yield LOCAL_WORLD_SIZE.fail(text, node=node.node, rank=rank, variable="LOCAL_WORLD_SIZE")


def _order(run: Run) -> Iterator[Finding]:
    """Once, and no node is to blame: somebody chose how ranks are dealt out."""
    nodes = run.job.nodes
    split = [node for node in nodes if places.is_split(node)]
    if not split:
        return
    named = ", ".join(f"{node.node} has {places.short(ranges.to_text(node.ranks))}" for node in split[:NODES_NAMED])
    if places.are_dealt_out(nodes):
        text = f"ranks are dealt out over {len(nodes):,} nodes one by one: {named}"
    else:
        text = f"{len(split):,} of {len(nodes):,} nodes have ranks of others between their own: {named}"
    more = ", ..." if len(split) > NODES_NAMED else ""
    why = "frameworks make tensor-parallel groups of neighbours, and many scripts take rank % GPUs for the local rank"
    yield NOT_GROUPED.warn(f"{text}{more}; expected consecutive ranks on each node: {why}")


def _local_ranks(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Normal where each rank sees one GPU only, its own (srun --gpus-per-task=1)."""
    for node in run.job.nodes:
        holder: dict[str, int] = {}
        for rank in node.ranks:
            said = facts[rank]["environ"].get("LOCAL_RANK") if rank in facts else None
            if said is None or places.sees_one_gpu(facts[rank]):
                continue
            other = holder.setdefault(said, rank)
            if other != rank:
                gpu = ": both would take one GPU" if run.job.backend == "nccl" else ""
                text = f"LOCAL_RANK is {said}, which rank {other} on this node has, too{gpu}"
                yield LOCAL_RANK_TAKEN.fail(text, node=node.node, rank=rank, peer_rank=other, variable="LOCAL_RANK")


def _single_process(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """`accelerate launch --cpu --num_processes 2` starts one process, and says nothing of it."""
    variable = next((reading["accelerate"] for reading in facts.values() if "accelerate" in reading), None)
    if variable and run.job.world_size > 1:
        text = f"accelerate launch has started one process ({variable} is set, RANK is not), expected one for each rank"
        yield SINGLE_PROCESS.warn(
            f"{text}: these {run.job.world_size} ranks are preflight's own, and a training would run alone",
            variable="RANK",
        )


def _without_local_rank(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Info: how a script finds its GPU is its own affair. Preflight counts off, so gpu.inventory sees nothing wrong."""
    sharing = {rank for node in run.job.nodes if len(node.ranks) > 1 for rank in node.ranks}
    without = [
        rank
        for rank, reading in facts.items()
        if rank in sharing and "LOCAL_RANK" not in reading["environ"] and not places.sees_one_gpu(reading)
    ]
    if without:
        text = f"LOCAL_RANK is not set on {ranges.ranks(without)}, expected 0, 1, ... on each node"
        yield NO_LOCAL_RANK.info(
            f"{text}: a script that reads it as 0 where it is not set takes GPU 0 on all of them",
            variable="LOCAL_RANK",
        )
