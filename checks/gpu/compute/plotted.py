"""The plots of device speeds in report.html."""

from collections.abc import Collection, Iterator, Mapping

from preflight.check import Run, plots
from preflight.checks.gpu.compute.workload_facts import Facts
from preflight.checks.gpu.shared.cards import INVENTORY, cards


def strips(facts: Mapping[int, Facts], run: Run, slow: Mapping[str, Collection[int]]) -> Iterator[plots.Plot]:
    """`slow`: the ranks that a finding names, by name of the speed."""
    numbers = {key: card.gpu for key, card in cards(run.facts(INVENTORY), run).items()}
    subjects, ranks = [], [*facts]
    for rank in ranks:
        node = run.job.node_of(rank).node
        number = numbers.get((node, facts[rank]["uuid"] or ""))
        subjects.append((node, f"rank {rank}" if number is None else f"gpu {number}"))
    names = dict.fromkeys(name for measured in facts.values() for name in measured["speeds"])
    drawn = [
        plots.Strip(
            name,
            "TFLOP/s" if name.endswith("GEMM") else "GB/s",
            [facts[rank]["speeds"].get(name) for rank in ranks],
            [place for place, rank in enumerate(ranks) if rank in slow.get(name, ())],
        )
        for name in names
    ]
    if drawn:
        yield plots.Strips("speed of each device", subjects, drawn)
