"""Speed, for people: one line, and tables of strategies and of ranks side by side."""

import statistics
import textwrap
from collections.abc import Container, Iterator, Sequence

from preflight.check import Run, ranges, words
from preflight.checks.train.speed import figures, slow_links
from preflight.checks.train.speed.facts import AllFacts
from preflight.checks.train.speed.node_links import MOST_OF_STEP
from preflight.train_smoke.trainer.names import PHASES, TIMED

WIDTH = 90
"""Of a sentence, in characters: the table above it is as wide."""
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
        f"{name} on {ranges.count(len(series), 'rank')}: {_samples_per_s(facts, rate)}, "
        f"{figures.efficiency(rate, alone):.0%} of {len(series)} x {_samples_per_s(facts, each, unit=False)} alone",
        f"step {words.duration(steps.p50)} (p95 {words.duration(steps.p95)}, p99 {words.duration(steps.p99)})",
        f"{_exposed(facts, name)} exposed communication",
    ]
    return "; ".join([*told, *_between_nodes(facts, run, name), *_utilised(facts, steps.p50), *_shared(facts, run)])


def first(facts: AllFacts) -> str:
    """The strategy whose phases are told; "" where none was timed."""
    return next(iter(timed(facts)), "")


def timed(facts: AllFacts) -> list[str]:
    """In order; JSON has none."""
    return [name for name in TIMED if name in facts[min(facts)]["strategies"]]


def _samples_per_s(facts: AllFacts, samples_per_s: float, *, unit: bool = True) -> str:
    """In tokens, where samples are texts."""
    tokens = facts[min(facts)]["tokens"]
    value = samples_per_s * (tokens or 1)
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text} {'tokens' if tokens else 'samples'}/s" if unit else text


def _between_nodes(facts: AllFacts, run: Run, name: str) -> Iterator[str]:
    """Where most of a step is spent on it."""
    most, nodes = figures.most_exposed(facts, name), {run.job.node_of(rank).node for rank in facts}
    rate = figures.exchange_rate(facts, name) if name.startswith("ddp") else 0.0
    if most and len(nodes) > 1 and rate and most["exposed"] >= MOST_OF_STEP * most["step"]:
        links = slow_links.compared(facts, run)
        by_pairs = f"two of them exchange {slow_links.span(links.rates.values())}" if links else ""
        why = by_pairs or "no other link to compare it with: comm.rails and --baseline tell more"
        yield f"gradients travel at {words.rate(rate)} between {len(nodes):,} nodes ({why})"


def _exposed(facts: AllFacts, name: str) -> str:
    """ "6.1 ms (12%)"."""
    most = figures.most_exposed(facts, name)
    return f"{words.duration(most['exposed'])} ({most['exposed'] / most['step']:.0%})" if most else "-"


def _utilised(facts: AllFacts, step: float) -> Iterator[str]:
    shares = [share for own in facts.values() if (share := figures.utilisation(own, step)) is not None]
    if shares:
        yield f"MFU {statistics.median(shares):.0%}"


def _shared(facts: AllFacts, run: Run) -> Iterator[str]:
    """Where less than all of what ranks reach alone is to be expected."""
    found = figures.sharing(facts, run.job)
    if found and found[1] < 2 * found[0]:  # a rank computes on one, and its exchange takes another
        cores = f"{found[1]:.3g} core{'' if found[1] == 1 else 's'}"
        yield f"{ranges.count(found[0], 'rank')} and their exchange share {cores}"


# Pictures


def draw(facts: AllFacts, run: Run, too_big: Container[str]) -> Iterator[str]:
    """Strategies side by side, and the phases of each rank's steps. `too_big`: strategies that will not fit."""
    yield from grid(strategies(facts, run))
    yield OF_ALONE
    yield "exposed: communication that no computation covers, of the rank with most; seen under"
    yield f"torch.profiler, with which a step takes {_profiler_cost(facts):.1f} times as long; the rest without"
    if len(timed(facts)) > 1:
        yield f"loss off: of the ranks' mean loss after the first steps, from that under {first(facts)}, as a share"
    yield from _advice(facts, too_big)
    for name, why in facts[min(facts)]["not_timed"].items():
        yield f"{name} was not timed: {why}"
    name = first(facts)
    if name:
        yield ""
        yield from grid(_ranks(facts, name))
        yield f"ms a step under {name}, medians; backward until the last own gradient, then wait"


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
    yield from textwrap.wrap(text, WIDTH)


def strategies(facts: AllFacts, run: Run) -> Iterator[Sequence[str]]:
    yield ("", "tokens/s" if facts[min(facts)]["tokens"] else "samples/s", "of alone", "p50", "p95", "p99", "exposed",
           "held", "peak MiB", "loss off")  # fmt: skip
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
    times = (words.duration(seconds) for seconds in steps)
    return (
        name,
        _samples_per_s(facts, rate, unit=False),
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


def _ranks(facts: AllFacts, name: str) -> Iterator[Sequence[str]]:
    series = figures.last_rounds(facts, name)
    yield ("rank", *PHASES, "core wait", "first collective after")
    by_own = sorted(series, key=lambda rank: -statistics.median(series[rank]["own"]))
    for rank in sorted(by_own[:MOST_RANKS]):
        own = series[rank]
        core, first = sum(own["core_wait"].values()), own["first_collective"]
        ms = [*(own["phases"][phase] for phase in PHASES), core, *([] if first is None else [first])]
        yield (str(rank), *(f"{seconds * 1e3:.1f}" for seconds in ms))


def grid(rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    listed = list(rows)
    columns = max(map(len, listed))
    filled = [(*row, *[""] * (columns - len(row))) for row in listed]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    for row in filled:
        cells = (f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join((f"{row[0]:<{widths[0]}}", *cells)).rstrip()
