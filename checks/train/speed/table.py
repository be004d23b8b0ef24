"""Speed, for people: one line, and tables of strategies and of ranks side by side."""

import statistics
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING

from preflight.check import Run, plots, ranges, words
from preflight.checks.train.speed import figures, slow_links
from preflight.checks.train.speed.facts import AllFacts
from preflight.checks.train.speed.node_links import MOST_OF_STEP
from preflight.checks.train.speed.stragglers import LATE_S
from preflight.train_smoke.trainer.names import PHASES, TIMED

if TYPE_CHECKING:
    from preflight.train_smoke.speed.training import TimedSteps

OF_ALONE = "of alone: of what the ranks would reach, were each as fast as one alone on its node"
MOST_RANKS = 16
"""Rows of the table of ranks: more are the slowest ones."""


def summarize(facts: AllFacts, run: Run) -> str:
    """ "ddp/plain on 2 ranks: 9,980 tokens/s, 56% of 2 x 8,912 alone; step 51 ms (p95 60, p99 63); ..."."""
    name = first(facts)
    if not name:
        return "nothing was timed"
    series = figures.last_rounds(facts, name)
    alone = figures.solo(facts, run.job)
    rate, steps = figures.together(facts, series), figures.percentiles(series.values())
    each = statistics.fmean(alone.values())
    told = [
        f"{name} on {ranges.count(len(series), 'rank')}: {samples_per_s(facts, rate)}, "
        f"{figures.efficiency(rate, alone):.0%} of {len(series)} x {samples_per_s(facts, each, unit=False)} alone",
        f"step {words.duration(steps.p50)} (mean {words.duration(steps.mean)}, p95 {words.duration(steps.p95)}, "
        f"p99 {words.duration(steps.p99)})",
        f"{_exposed(facts, name)} exposed communication{_with_waiting(facts, name)}",
    ]
    return "; ".join([*told, *_between_nodes(facts, run, name), *_utilised(facts, steps.mean), *_shared(facts, run)])


def first(facts: AllFacts) -> str:
    """The strategy whose phases are told; "" where none was timed."""
    return next(iter(timed(facts)), "")


def timed(facts: AllFacts) -> list[str]:
    """In order; JSON has none."""
    return [name for name in TIMED if name in facts[min(facts)]["strategies"]]


def samples_per_s(facts: AllFacts, samples_per_s: float, *, unit: bool = True) -> str:
    """In tokens, where samples are texts."""
    tokens = facts[min(facts)]["tokens"]
    value = samples_per_s * (tokens or 1)
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text} {'tokens' if tokens else 'samples'}/s" if unit else text


def _between_nodes(facts: AllFacts, run: Run, name: str) -> Iterator[str]:
    """Where most of a step is spent on it."""
    least, nodes = figures.least_exposed(facts, name), {run.job.node_of(rank).node for rank in facts}
    rate = figures.exchange_rate(facts, name) if name.startswith("ddp") else 0.0
    if least and len(nodes) > 1 and rate and least["exposed"] >= MOST_OF_STEP * least["step"]:
        links = slow_links.compared(facts, run)
        by_pairs = f"two of them exchange {slow_links.span(links.rates.values())}" if links else ""
        why = by_pairs or "no other link to compare it with: comm.rails and --baseline tell more"
        yield f"gradients travel at {words.rate(rate)} between {len(nodes):,} nodes ({why})"


def _exposed(facts: AllFacts, name: str) -> str:
    """ "6.1 ms (12%)": of the step in which it was seen, which the profiler makes longer."""
    least = figures.least_exposed(facts, name)
    return f"{words.duration(least['exposed'])} ({least['exposed'] / least['step']:.0%})" if least else "-"


def _with_waiting(facts: AllFacts, name: str) -> str:
    """What other ranks have beside it, since they wait in their collectives for one that comes late."""
    least, most = figures.least_exposed(facts, name), figures.most_exposed(facts, name)
    if not least or not most or most["exposed"] - least["exposed"] < LATE_S or most["exposed"] < 2 * least["exposed"]:
        return ""
    return f" (up to {words.duration(most['exposed'])} with what ranks wait for each other)"


def _utilised(facts: AllFacts, step: float) -> Iterator[str]:
    shares = [share for own in facts.values() if (share := figures.utilisation(own, step)) is not None]
    if shares:
        yield f"MFU {statistics.median(shares):.0%}"


def _shared(facts: AllFacts, run: Run) -> Iterator[str]:
    """Where less than all of what ranks reach alone is to be expected."""
    found = figures.sharing(facts, run.job)
    if found and shares_cores(facts, run):
        cores = f"{found[1]:.3g} core{'' if found[1] == 1 else 's'}"
        yield f"{ranges.count(found[0], 'rank')} and their exchange share {cores}"


def shares_cores(facts: AllFacts, run: Run) -> bool:
    """Whether ranks have fewer cores than one to compute on, and another for the exchange."""
    found = figures.sharing(facts, run.job)
    return bool(found and found[1] < 2 * found[0])


# Tables


def strategies(facts: AllFacts, run: Run, too_big: Container[str]) -> plots.Table:
    """Side by side. `too_big`: strategies that will not fit."""
    rate = "tokens/s" if facts[min(facts)]["tokens"] else "samples/s"
    heads = ("strategy", rate, "of alone", "mean", "p50", "p99", "exposed", "held MiB", "peak MiB", "loss off")
    notes = [*_notes(facts), *_advice(facts, too_big)]
    notes += [f"{name} was not timed: {why}" for name, why in facts[min(facts)]["not_timed"].items()]
    rows = [*_strategies(facts, run)]
    return plots.Table("strategies side by side", heads, rows, "\n".join(notes), screen="always")


def _notes(facts: AllFacts) -> Iterator[str]:
    yield OF_ALONE
    yield (
        "exposed: communication that no computation covers, of the rank with least, as a share of its step under "
        f"torch.profiler, which takes {_profiler_cost(facts):.1f} times as long; the rest without"
    )
    if len(timed(facts)) > 1:
        yield f"loss off: of the ranks' mean loss after the first steps, from that under {first(facts)}, as a share"


def _advice(facts: AllFacts, too_big: Container[str]) -> Iterator[str]:
    """The fastest one that fits; and the one that holds least, where that is another."""
    names = [name for name in timed(facts) if name not in too_big]
    if len(names) < 2:
        return
    rates = {name: figures.together(facts, figures.last_rounds(facts, name)) for name in names}
    held = {name: max(own["strategies"][name]["memory"]["held"] for own in facts.values()) for name in names}
    fastest = max(names, key=lambda name: rates[name])
    least = min(names, key=lambda name: (held[name], -rates[name]))
    text = f"advice: {fastest}, which is the fastest here"
    if held[least] < held[fastest]:
        saved, slower = words.size(held[fastest] - held[least]), rates[fastest] / rates[least]
        text += f"; where memory is short {least}, which holds {saved} less a rank and takes {slower:.2g} times as long"
    yield text


def _strategies(facts: AllFacts, run: Run) -> Iterator[Sequence[str]]:
    alone = figures.solo(facts, run.job)
    solo = [own["solo"] for own in facts.values() if own["solo"]]
    yield _row("alone", facts, statistics.fmean(alone.values()), None, figures.percentiles(solo))
    beside = {rank: own["alone"] for rank, own in facts.items()}
    rate = sum(figures.samples_per_s(facts[rank]["samples"], series) for rank, series in beside.items())
    yield _row("alone, all at once", facts, rate, figures.efficiency(rate, alone), figures.percentiles(beside.values()))
    nodes = {rank: among for rank, own in facts.items() if (among := own["node"])}
    if nodes:
        rate = figures.together(facts, nodes)
        of_nodes = {rank: alone[rank] for rank in nodes}
        yield _row("each node", facts, rate, figures.efficiency(rate, of_nodes), figures.percentiles(nodes.values()))
    for name in timed(facts):
        series = figures.last_rounds(facts, name)
        rate = figures.together(facts, series)
        row = _row(name, facts, rate, figures.efficiency(rate, alone), figures.percentiles(series.values()))
        yield (*row[:-4], _exposed(facts, name), *_memory(facts, name), _loss_off(facts, name))


def _row(name: str, facts: AllFacts, rate: float, share: float | None, steps: figures.Percentiles) -> tuple[str, ...]:
    times = (words.duration(seconds) for seconds in (steps.mean, steps.p50, steps.p99))
    return (
        name,
        samples_per_s(facts, rate, unit=False),
        "" if share is None else f"{share:.0%}",
        *times,
        "",
        "",
        "",
        "",
    )


def _loss_off(facts: AllFacts, name: str) -> str:
    """ "2e-07"; "" of the first strategy, from which it is."""
    off = figures.loss_off(facts, name, first(facts))
    return "" if name == first(facts) else "-" if off is None else f"{off:.0e}" if off else "0"


def _memory(facts: AllFacts, name: str) -> tuple[str, str]:
    """What a rank holds between steps, and its peak over what was taken before: the largest, in MiB."""
    every = [own["strategies"][name]["memory"] for own in facts.values() if name in own["strategies"]]
    peaks = [peak for its in every if (peak := its["reserved"] or its["resident"]) is not None]
    return f"{max(its['held'] for its in every) / 2**20:,.0f}", f"{max(peaks) / 2**20:,.0f}" if peaks else "-"


def _profiler_cost(facts: AllFacts) -> float:
    found = [
        its["exposed"]["step"] / statistics.median(its["rounds"][-1]["steps"])
        for own in facts.values()
        for its in own["strategies"].values()
    ]
    return statistics.median(found) if found else 0.0


def ranks(facts: AllFacts, name: str) -> plots.Table:
    """The phases of each rank's steps under a strategy, of the slowest ones."""
    series = figures.last_rounds(facts, name)
    by_own = sorted(series, key=lambda rank: -statistics.fmean(series[rank]["own"]))
    rows = [_rank(rank, series[rank]) for rank in sorted(by_own[:MOST_RANKS])]
    heads = ("rank", *PHASES, "core wait", "first collective after")
    note = "ms, medians; backward until all of the rank's own gradients are there, hooks included, then wait"
    return plots.Table(f"a step under {name}", heads, rows, note, screen="quiet")


def _rank(rank: int, own: "TimedSteps") -> tuple[str, ...]:
    core, first = sum(own["core_wait"].values()), own["first_collective"]
    ms = [*(own["phases"][phase] for phase in PHASES), core]
    return (str(rank), *(f"{seconds * 1e3:.1f}" for seconds in ms), "-" if first is None else f"{first * 1e3:.1f}")
