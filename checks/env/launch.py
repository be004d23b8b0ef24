"""Launch: every rank is there once, with coherent variables.

Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as each process was given
them. Processes that came but have no place in the run (a rank given twice, or beyond the world size) are judged
from the roll call. Which GPU each rank takes is a matter of gpu.inventory.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypedDict

from preflight.check import Code, Context, Finding, Level, Plan, Run, Scope, ranges, vote

STRANGERS = "preflight.strangers"
PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=20, estimate_s=0.1, reads=(STRANGERS,))

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
    "Nodes have unlike numbers of ranks.",
    fix="Start the same number on each (--nproc-per-node), unless meant so.",
)
NUMBERS = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": 1}
"""The least value of each."""
MOST = 10**6
"""Of any of them: with more somebody took a job's id for a number of ranks."""
EQUAL_EVERYWHERE = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Facts(TypedDict):
    environ: dict[str, str]


def measure(ctx: Context) -> Facts:
    names = (*EQUAL_EVERYWHERE, "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
    return {"environ": {name: ctx.environ[name] for name in names if name in ctx.environ}}


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from _strangers(run)
    yield from _no_numbers(facts, run)
    for variable in EQUAL_EVERYWHERE:
        yield from _unlike(variable, facts, run)
    if not run.job.missing:
        yield from _node_sizes(facts, run)
    yield from _local_ranks(facts, run)


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
    for rank, one in facts.items():
        for variable, least in NUMBERS.items():
            value = one["environ"].get(variable)
            number = _number(value)
            if value is not None and not (isinstance(number, int) and least <= number <= MOST):
                text = f"{variable} is {value!r}, expected a whole number of at least {least}, and at most {MOST:,}"
                yield INVALID.fail(text, variable=variable, **run.job.where(rank))


def _unlike(variable: str, facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    votes = vote((rank, _number(one["environ"].get(variable))) for rank, one in facts.items())
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
            yield UNEVEN.warn(f"{size} ranks, expected {usual} as on most nodes", node=node.node)
        for rank in node.ranks:
            said = facts[rank]["environ"].get("LOCAL_WORLD_SIZE") if rank in facts else None
            if said is not None and re.fullmatch("[0-9]{1,9}", said) and int(said) != size:
                text = f"LOCAL_WORLD_SIZE is {said}, expected {size}, the ranks on this node"
                yield LOCAL_WORLD_SIZE.fail(text, node=node.node, rank=rank, variable="LOCAL_WORLD_SIZE")


def _local_ranks(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Normal where each rank sees one GPU only, its own (srun --gpus-per-task=1)."""
    for node in run.job.nodes:
        holder: dict[str, int] = {}
        for rank in node.ranks:
            said = facts[rank]["environ"].get("LOCAL_RANK") if rank in facts else None
            if said is None or re.fullmatch("[^,]+", facts[rank]["environ"].get("CUDA_VISIBLE_DEVICES", "")):
                continue
            other = holder.setdefault(said, rank)
            if other != rank:
                text = f"LOCAL_RANK is {said}, which rank {other} on this node has, too"
                yield LOCAL_RANK_TAKEN.fail(text, node=node.node, rank=rank, peer_rank=other, variable="LOCAL_RANK")
