"""A node whose ranks have fewer cores than those of other nodes, and hold the others up."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from preflight.check import Code, Finding, Node, Run, ranges, words
from preflight.checks.train.speed import figures
from preflight.checks.train.speed.facts import AllFacts
from preflight.checks.train.speed.stragglers import LATE, LATE_S, OF_PHASE, WAITED, least_share

if TYPE_CHECKING:
    from preflight.train_smoke.speed.training import TimedSteps

FEWER = 0.75
"""A node's ranks have at most so many of the cores per rank that half of the nodes have at least."""
BY_WAITING = 0.5
"""Of what they take longer, at least so much is waiting for a core."""

FEWER_CORES = Code(
    "A node's ranks have fewer CPU cores than those of other nodes, and the others wait for them.",
    fix="Give this node the cores that the others have, or fewer ranks: taskset -pc PID, the CPU quota of its "
    "cgroup or container, Slurm's --cpus-per-task, cores that are offline (lscpu).",
)


class StepPace(NamedTuple):
    """Seconds a step of the median rank of some."""

    computing: float
    """Also waiting for a core."""
    core_wait: float
    waiting: float
    """For other ranks."""
    step: float


class Behind(NamedTuple):
    """A node that holds others up, in the last round."""

    node: Node
    ranks: Sequence[int]
    cores: float
    """For each of its ranks."""
    usual_cores: float
    own: StepPace
    usual: StepPace
    """Of the ranks of nodes with more cores."""


def pace(every: "Sequence[TimedSteps]") -> StepPace:
    computing = [sum(own["phases"][phase] for phase in OF_PHASE) for own in every]
    core_wait = [sum(own["core_wait"][phase] for phase in OF_PHASE) for own in every]
    waiting = [own["phases"]["wait"] for own in every]
    steps = [statistics.median(own["steps"]) for own in every]
    return StepPace(*map(statistics.median_low, (computing, core_wait, waiting, steps)))


def is_late(own: StepPace, usual: StepPace, late: float) -> bool:
    """Whether it is waiting for cores that makes them late. `late`: see stragglers."""
    longer = own.computing - usual.computing
    starved = own.core_wait - usual.core_wait >= BY_WAITING * longer
    return longer >= max(LATE_S, late * usual.computing) and starved


def are_waited_for(own: StepPace, usual: StepPace) -> bool:
    return usual.waiting >= WAITED * (own.computing - usual.computing)


def is_suspicious(every: Sequence[StepPace], late: float) -> bool:
    """Whether any rank looks late, by each one's: at most half are."""
    usual = StepPace(*(statistics.median_low(values) for values in zip(*every, strict=True)))
    return any(is_late(own, usual, late) for own in every)


def behind(rounds: "Mapping[int, Sequence[TimedSteps]]", facts: AllFacts, run: Run) -> Iterator[Behind]:
    """Nodes with fewer cores that are late in every round."""
    cores = {node: its / len(node.ranks) for node, its in figures.cores(facts, run.job).items()}
    usual_cores = statistics.median_high(cores.values()) if cores else 0.0
    few = [node for node, its in cores.items() if its <= FEWER * usual_cores]
    odd = {rank for node in few for rank in node.ranks}
    others, late = [rank for rank in rounds if rank not in odd], least_share(run[LATE], run.job)
    for node in few:
        ranks = [rank for rank in node.ranks if rank in rounds]
        if not ranks or not others:
            continue
        numbers = range(min(len(rounds[rank]) for rank in (*ranks, *others)))
        each = ([pace([rounds[rank][number] for rank in its]) for number in numbers] for its in (ranks, others))
        pairs = [*zip(*each, strict=True)]
        if pairs and all(is_late(own, usual, late) and are_waited_for(own, usual) for own, usual in pairs):
            yield Behind(node, ranks, cores[node], usual_cores, *pairs[-1])


def judge(found: Sequence[Behind], others: Sequence[int], name: str) -> Iterator[Finding]:
    """`others`: those who wait. `name`: of the strategy."""
    for late in found:
        longer = late.own.computing - late.usual.computing
        own, usual, waited = map(words.duration, (late.own.computing, late.usual.computing, late.usual.waiting))
        text = (
            f"it has {_cores(late.cores)} for each of its ranks, expected {late.usual_cores:.2g} as on other nodes: "
            f"under {name} they compute {own} per step, the others {usual}, expected about the same; "
            f"{ranges.ranks(others)} {'waits' if len(others) == 1 else 'wait'} {waited} for them, and "
            f"{min(1.0, longer / late.own.step):.0%} of each step is lost"
        )
        evidence = {"cores": late.cores, "usual": late.usual_cores, "ranks": ranges.to_text(late.ranks)}
        yield FEWER_CORES.warn(text, noticed_by=others, evidence=evidence, node=late.node.node)


def _cores(number: float) -> str:
    return f"{number:.2g} {'of a core' if number < 1 else 'core' if number == 1 else 'cores'}"
