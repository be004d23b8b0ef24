"""Together the ranks train slower than one of them alone, since communication takes most of each step.

What one reaches is measured while all others train for themselves: so it has the cores, the memory and the power that
it has together with them, and what is left is what they lose by exchanging gradients. Where ranks share few cores that
takes cores, too: only far less is held against it.
"""

import math
import statistics
from collections.abc import Iterator
from typing import NamedTuple

from preflight.check import Code, Finding, Run, ranges, words
from preflight.checks.train.speed import figures, table
from preflight.checks.train.speed.facts import AllFacts
from preflight.checks.train.speed.node_links import MOST_OF_STEP

LEAST, LEAST_ON_FEW_CORES = 0.9, 0.33
"""So many times what one reaches. Three ranks on two cores at a load of 15 had 1.5 to 2.4 times."""

SLOWER_THAN_ONE = Code(
    "All ranks together train fewer samples per second than one of them alone.",
    fix="Train on fewer ranks, or let them exchange less: with gradients accumulated over {batches} batches under "
    "no_sync() they reach about half of what as many alone would; more rows a rank; gradients in bfloat16 "
    "(ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)). What the links give: comm.all_reduce, "
    "comm.transports, gpu.topology, gpu.pcie. Over a slow link a pipeline sends far less than DDP, FSDP more.",
    see=("comm.all_reduce", "comm.transports", "gpu.topology", "gpu.pcie", "net.interfaces"),
)


class Together(NamedTuple):
    """Samples per second."""

    rate: float
    alone: float
    """Of the middle rank alone, beside the others."""
    ranks: int


def of(facts: AllFacts, name: str) -> Together:
    series = figures.last_rounds(facts, name)
    alone = (figures.samples_per_s(facts[rank]["samples"], facts[rank]["alone"]) for rank in series)
    return Together(figures.together(facts, series), statistics.median(alone), len(series))


def judge(facts: AllFacts, run: Run, name: str) -> Iterator[Finding]:
    """`name`: of the strategy."""
    speeds, least = of(facts, name), figures.least_exposed(facts, name)
    share = least["exposed"] / least["step"] if least else 0.0
    expected = speeds.alone * (LEAST_ON_FEW_CORES if table.shares_cores(facts, run) else LEAST)
    if speeds.ranks < 2 or speeds.rate >= expected or share < MOST_OF_STEP:
        return
    rate, alone = (table.samples_per_s(facts, samples) for samples in (speeds.rate, speeds.alone))
    text = (
        f"under {name} {ranges.count(speeds.ranks, 'rank')} train {rate} together, and one of them alone {alone} while "
        f"the others train, too, expected more together; {share:.0%} of a step is exposed communication, for "
        f"{words.size(figures.travelling(facts, name))} that each rank sends{_better(facts, name, speeds)}"
    )
    evidence = {
        "samples_per_s": round(speeds.rate, 3), "alone": round(speeds.alone, 3), "exposed": round(share, 3),
        "batches": _batches(speeds),
    }  # fmt: skip
    yield SLOWER_THAN_ONE.warn(text, evidence=evidence)


def _batches(speeds: Together) -> int:
    """With so many accumulated, half of a rank's time is communication: a step takes ranks * alone / rate times what a
    batch takes alone, and all but one of these are communication."""
    return max(2, math.ceil(speeds.ranks * speeds.alone / speeds.rate - 1))


def _better(facts: AllFacts, name: str, speeds: Together) -> str:
    """The strategy that is the fastest one, where it is faster than one rank."""
    rates = {each: figures.together(facts, figures.last_rounds(facts, each)) for each in table.timed(facts)}
    best = max(rates, key=lambda each: rates[each])
    is_better = best != name and rates[best] > speeds.alone
    return f"; {best} reaches {table.samples_per_s(facts, rates[best])}" if is_better else ""
