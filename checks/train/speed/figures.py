"""What the measured times mean: samples per second, scaling, percentiles, model FLOPs utilisation."""

import csv
import functools
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from preflight.check import Job, Node, ranges
from preflight.checks.train.speed.facts import AllFacts, Facts, StrategySpeed

if TYPE_CHECKING:
    from preflight.train_smoke.speed.trace import Exposed
    from preflight.train_smoke.speed.training import TimedSteps


class Percentiles(NamedTuple):
    """Seconds."""

    mean: float
    p50: float
    p95: float
    p99: float


def percentiles(every: "Iterable[TimedSteps]") -> Percentiles:
    """Of the steps of all ranks, the nearest ones; with their mean."""
    steps = sorted(step for series in every for step in series["steps"])
    nearest = (steps[min(len(steps) - 1, int(share * len(steps)))] for share in (0.5, 0.95, 0.99))
    return Percentiles(statistics.fmean(steps), *nearest)


def samples_per_s(samples: int, series: "TimedSteps") -> float:
    """By the time that all steps took: a median hides those in which a rank stands still."""
    return samples / statistics.fmean(series["steps"])


def together(facts: AllFacts, series: "Mapping[int, TimedSteps]") -> float:
    """Samples per second of all ranks, whose steps end together."""
    return sum(facts[rank]["samples"] for rank in series) / percentiles(series.values()).mean


def solo(facts: AllFacts, job: Job) -> dict[int, float]:
    """Samples per second that each rank would have, did it train alone on its node: those of the node's first one."""
    found: dict[int, float] = {}
    for node in job.nodes:
        ranks = [rank for rank in node.ranks if rank in facts]
        first = next((series for rank in ranks if (series := facts[rank]["solo"])), None)
        if first is not None:
            found.update({rank: samples_per_s(facts[rank]["samples"], first) for rank in ranks})
    return found


def efficiency(rate: float, alone: Mapping[int, float]) -> float:
    """The share of what the ranks would reach together, did each train as fast as one alone on its node."""
    return rate / sum(alone.values()) if alone else 0.0


def last_rounds(facts: AllFacts, name: str) -> "dict[int, TimedSteps]":
    return {rank: own["strategies"][name]["rounds"][-1] for rank, own in facts.items() if name in own["strategies"]}


def loss_off(facts: AllFacts, name: str, other: str) -> float | None:
    """The distance of the ranks' mean loss after the first steps from that under the other strategy, as a share of
    it; None where a loss is not finite."""
    means = []
    for strategy in (name, other):
        losses = [its["loss"] for own in facts.values() if (its := own["strategies"].get(strategy))]
        if not losses or None in losses:
            return None
        means.append(statistics.fmean(loss for loss in losses if loss is not None))
    return abs(means[0] - means[1]) / abs(means[1]) if means[1] else None


def travelling(facts: AllFacts, name: str) -> float:
    """Bytes that each rank sends and receives in DDP's all-reduces of a step: 2 (n - 1) / n of the gradients, as in
    NCCL's busbw."""
    every = _of(facts, name)
    size = max((its["gradients"] for its in every), default=0)
    return 2 * (len(every) - 1) / len(every) * size if every else 0.0


def exchange_rate(facts: AllFacts, name: str) -> float:
    """Bytes a second in which these travel, by the rank that waits least for others in them; 0.0 where nothing is
    exchanged."""
    seconds = min((its["exposed"]["collectives"] for its in _of(facts, name)), default=0.0)
    return travelling(facts, name) / seconds if seconds else 0.0


def most_exposed(facts: AllFacts, name: str) -> "Exposed | None":
    """Of the rank whose steps have the most; None where it was not timed."""
    return max((its["exposed"] for its in _of(facts, name)), key=lambda its: its["exposed"], default=None)


def least_exposed(facts: AllFacts, name: str) -> "Exposed | None":
    """Of the rank that waits least for others in its collectives: what is communication, and no waiting."""
    return min((its["exposed"] for its in _of(facts, name)), key=lambda its: its["exposed"], default=None)


def _of(facts: AllFacts, name: str) -> list[StrategySpeed]:
    return [own["strategies"][name] for own in facts.values() if name in own["strategies"]]


def utilisation(own: Facts, step: float) -> float | None:
    """MFU: the model's FLOPs a second over the card's peak in bfloat16 (Chowdhery et al. 2022, PaLM, appendix B); None
    where no peak is known."""
    peak = _peaks().get(own["device"]) if own["autocast"] else None
    return own["flops"] / step / peak if peak else None


@functools.cache
def _peaks() -> dict[str, float]:
    """FLOP/s by the name of the card: peaks.tsv, a source a row."""
    text = resources.files(__package__).joinpath("peaks.tsv").read_text()
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return {row["name"]: float(row["bf16_tflops"]) * 1e12 for row in rows}


def cores(facts: AllFacts, job: Job) -> dict[Node, float]:
    """How many each node's ranks may use together: those that they are bound to, or what a quota allows them."""
    found: dict[Node, float] = {}
    for node in job.nodes:
        own = [facts[rank] for rank in node.ranks if rank in facts]
        bound = {core for each in own for core in ranges.from_text(each["cores"])}
        if bound:
            found[node] = min(len(bound), *(quota for each in own if (quota := each["quota"]) is not None), len(bound))
    return found


def sharing(facts: AllFacts, job: Job) -> tuple[int, float] | None:
    """(ranks, cores) of the node on which the fewest cores are there for a rank, on CPUs. Containers on one machine
    share its cores."""
    if any(own["device"] != "CPU" for own in facts.values()):
        return None
    of_machines: dict[str, list[Node]] = {}
    for node in job.nodes:
        kernel = next((facts[rank]["kernel"] for rank in node.ranks if rank in facts), "")
        of_machines.setdefault(kernel or node.node, []).append(node)
    merged = (replace(nodes[0], ranks=sum((node.ranks for node in nodes), ())) for nodes in of_machines.values())
    found = [(len(node.ranks), its) for node, its in cores(facts, replace(job, nodes=tuple(merged))).items()]
    return min(found, key=lambda pair: pair[1] / pair[0], default=None)
