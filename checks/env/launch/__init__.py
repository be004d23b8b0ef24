"""Launch: every rank is present exactly once, with consistent variables.

Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as each process got them.
Processes that have no place in the run (a duplicate rank, or one beyond the world size) are judged from their
attempt to join. The report shows which ranks are on which node, with which local rank and GPU. GPUs go by CUDA's
numbers: whether two ranks share a GPU is judged by gpu.inventory, which compares UUIDs. Each rank also reads which
cores it may use: launchers and OpenMP bind ranks to cores.

It also learns which nodes belong together, so that a fault of a whole rack is one finding: from Slurm's topology
(SLURM_TOPOLOGY_ADDR), and from `--set env.launch.groups=FILE`, one line per node: `gpu-17 rack=7 room=b`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NotRequired, TypedDict

from preflight.check import Action, After, Code, Context, Finding, Group, Level, Plan, Run, Scope, plots, ranges, vote
from preflight.checks.env.launch import cores, node_groups, places
from preflight.checks.env.launch.cores import Cores
from preflight.checks.env.launch.node_groups import Listed
from preflight.sdk import slurm

STRANGERS = "preflight.strangers"
PARTS = (node_groups, cores)
PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=20, estimate_s=0.1, after={STRANGERS: After.READS})

INVALID = Code(
    "A launch variable is missing or not a number.",
    fix="Set {variable} in the job's script, or start with torchrun.",
)
DUPLICATE_RANK = Code(
    "Two processes have the same rank.",
    fix="Give every process its own RANK: node_rank * ranks per node + local_rank.",
)
RANK_OUT_OF_RANGE = Code(
    "A rank is not below the world size.", fix="WORLD_SIZE is the number of all ranks; RANK counts from 0."
)
LATE = Code(
    "A rank joined too late.",
    fix="See what delayed its node (image pull, file system), or set a longer --deadline.",
    action=Action.RESTART_JOB,
)
DIFFERS = Code("A launch variable differs between ranks.", fix="Set {variable} to the same value on all nodes.")
LOCAL_RANK_TAKEN = Code(
    "Two ranks of one node have the same LOCAL_RANK.", fix="LOCAL_RANK counts the ranks of one node from 0."
)
LOCAL_WORLD_SIZE = Code(
    "LOCAL_WORLD_SIZE is not the number of ranks on the node.",
    fix="Set LOCAL_WORLD_SIZE to the node's number of ranks.",
)
UNEVEN = Code(
    "Nodes have different numbers of ranks.",
    fix="Start the same number on each (--nproc-per-node), unless this is intended.",
)
NOT_GROUPED = Code(
    "The ranks of a node are not consecutive.",
    fix="srun --distribution=block; mpirun --map-by ppr:N:node; or RANK = node_rank * ranks per node + local_rank.",
)
NO_LOCAL_RANK = Code(
    "LOCAL_RANK is not set where ranks share a node's GPUs.",
    fix="Set LOCAL_RANK, from 0 on each node, or start with torchrun; or check that the script does not need it.",
)
SINGLE_PROCESS = Code(
    "The launcher started a single process; the ranks of this run are preflight's own.",
    fix="accelerate launch --multi_gpu --num_processes N (without GPUs with ACCELERATE_USE_CPU=true), or torchrun.",
)
NUMBERS = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": 1}
"""The smallest valid value of each."""
ACCELERATE = re.compile("ACCELERATE_(USE_CPU|MIXED_PRECISION)$")
MOST = 10**6
"""The largest plausible value of any of them: above it, someone probably passed a job id as a number of ranks."""
UNTOLD_BY_NCCL = ("NCCL_NET",)
"""What can keep NCCL from starting, and is not in its log; comm.init reads it here."""
EQUAL_EVERYWHERE = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
NODES_NAMED = 2


class Facts(TypedDict):
    environ: dict[str, str]
    local_rank: int
    """From LOCAL_RANK or the launcher's own variable; otherwise the rank's position on its node."""
    accelerate: NotRequired[str]
    """A variable that `accelerate launch` has set, if it started this process without a rank."""
    switches: NotRequired[str]
    """The switches above the rank's node, as Slurm names them; absent if unknown."""
    cores: NotRequired[Cores]
    """Absent if unknown."""
    listed: NotRequired[Listed]
    """Only on the rank that read the groups file."""


def measure(ctx: Context) -> Facts:
    names = (*EQUAL_EVERYWHERE, "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", *places.VISIBLE, *UNTOLD_BY_NCCL)
    facts: Facts = {
        "environ": {name: ctx.environ[name] for name in names if name in ctx.environ},
        "local_rank": ctx.local_rank,
    }
    if ctx.job.launcher == "own" and (variable := next(filter(ACCELERATE.match, ctx.environ), "")):
        facts["accelerate"] = variable
    if switches := slurm.switches(ctx.environ):
        facts["switches"] = switches
    if bound := cores.measure(ctx):
        facts["cores"] = bound
    if listed := node_groups.listed(ctx):
        facts["listed"] = listed
    return facts


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from _strangers(run)
    yield from _no_numbers(facts, run)
    for variable in EQUAL_EVERYWHERE:
        yield from _differing(variable, facts, run)
    if not run.job.missing:
        yield from _node_sizes(facts, run)
        yield from _order(run)
    yield from _local_ranks(facts, run)
    yield from _single_process(facts, run)
    yield from cores.findings({rank: reading["cores"] for rank, reading in facts.items() if "cores" in reading}, run)
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


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    yield places.table(facts, run)


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
            yield RANK_OUT_OF_RANGE.fail(text, node=node, rank=rank, variable="RANK")
        else:
            yield LATE.fail(f"{who} joined as rank {rank} after the run had started without it", node=node, rank=rank)


def _duplicate(rank: int, node: str, who: str, run: Run) -> Finding:
    holder = run.job.node_of(rank).node
    text = f"{who} joined with RANK {rank}, which a process on {holder} already has; expected every rank once"
    return DUPLICATE_RANK.fail(text, node=node, rank=rank, variable="RANK", peer_node=holder)


def _no_numbers(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """A rank can join despite bad variables: the engine derived the right values from its neighbors."""
    for rank, reading in facts.items():
        for variable, least in NUMBERS.items():
            value = reading["environ"].get(variable)
            number = _number(value)
            if value is not None and not (isinstance(number, int) and least <= number <= MOST):
                text = f"{variable} is {value!r}, expected a whole number from {least} to {MOST:,}"
                yield INVALID.fail(text, variable=variable, **run.job.where(rank))
        master = reading["environ"].get("MASTER_ADDR") or ""
        if master != master.strip():
            text = (
                f"MASTER_ADDR is {master!r}, expected no spaces: torch looks the name up with them, and nobody has it"
            )
            yield INVALID.fail(text, variable="MASTER_ADDR", **run.job.where(rank))


def _differing(variable: str, facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    votes = vote((rank, _number(reading["environ"].get(variable))) for rank, reading in facts.items())
    if votes.unanimous:
        return
    if variable != "WORLD_SIZE":  # all ranks met at one store, so these names lead to the same place
        text = f"{variable} is {votes.sides()}, expected one spelling; all ranks met at the same store"
        yield DIFFERS.info(text, variable=variable)
        return
    usual = run.job.world_size  # rank 0's
    others = f"{usual} as on {len(votes.ranks_of.get(usual, ()))} of {votes.voters} ranks"
    for value, ranks_ in votes.ranks_of.items():
        for rank in ranks_ if value != usual else ():
            text = f"{variable} is {'not set' if value is None else value}, expected {others}"
            yield DIFFERS.fail(text, variable=variable, **run.job.where(rank))


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
            value = facts[rank]["environ"].get("LOCAL_WORLD_SIZE") if rank in facts else None
            if value is not None and re.fullmatch("[0-9]{1,9}", value) and int(value) != size:
                text = f"LOCAL_WORLD_SIZE is {value}, expected {size}, the ranks on this node"
                yield LOCAL_WORLD_SIZE.fail(text, node=node.node, rank=rank, variable="LOCAL_WORLD_SIZE")


def _order(run: Run) -> Iterator[Finding]:
    """One finding that blames no node: the distribution of ranks was someone's choice."""
    nodes = run.job.nodes
    split = [node for node in nodes if places.is_split(node)]
    if not split:
        return
    named = ", ".join(f"{node.node} has {places.short(ranges.to_text(node.ranks))}" for node in split[:NODES_NAMED])
    if places.are_dealt_out(nodes):
        text = f"ranks are distributed round-robin over {len(nodes):,} nodes: {named}"
    else:
        text = f"{len(split):,} of {len(nodes):,} nodes have other nodes' ranks between their own: {named}"
    more = ", ..." if len(split) > NODES_NAMED else ""
    why = "frameworks build tensor-parallel groups of neighbors, and many scripts use rank % GPUs as the local rank"
    yield NOT_GROUPED.warn(f"{text}{more}; expected consecutive ranks on each node: {why}")


def _local_ranks(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Equal local ranks are normal if each rank sees only its own GPU (srun --gpus-per-task=1)."""
    for node in run.job.nodes:
        holder: dict[str, int] = {}
        for rank in node.ranks:
            value = facts[rank]["environ"].get("LOCAL_RANK") if rank in facts else None
            if value is None or places.sees_one_gpu(facts[rank]):
                continue
            other = holder.setdefault(value, rank)
            if other != rank:
                gpu = ": both would take one GPU" if run.job.backend == "nccl" else ""
                text = f"LOCAL_RANK is {value}, which rank {other} on this node has, too{gpu}"
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
    """Info: the script may find its GPU another way. Preflight numbers the ranks itself, so gpu.inventory passes."""
    sharing = {rank for node in run.job.nodes if len(node.ranks) > 1 for rank in node.ranks}
    without = [
        rank
        for rank, reading in facts.items()
        if rank in sharing and "LOCAL_RANK" not in reading["environ"] and not places.sees_one_gpu(reading)
    ]
    if without:
        text = f"LOCAL_RANK is not set on {ranges.ranks(without)}, expected 0, 1, ... on each node"
        yield NO_LOCAL_RANK.info(
            f"{text}: a script that defaults to 0 takes GPU 0 on all of them",
            variable="LOCAL_RANK",
        )
