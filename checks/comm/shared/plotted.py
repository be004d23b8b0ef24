"""The plots in report.html for the checks of collectives and links."""

import statistics
from collections.abc import Iterator, Mapping

from preflight.check import Run, plots
from preflight.checks.comm.shared import expected
from preflight.checks.comm.shared.localize import Blame
from preflight.checks.comm.shared.operations import OPERATIONS
from preflight.checks.comm.shared.readings import Facts, largest, nominal, slowest

US = 1e6
TAIL = 3.0
"""A rank with a latency of this many times the median is named on the strip."""


def collective(facts: Mapping[int, Facts], run: Run, *, operation: str) -> Iterator[plots.Plot]:
    """Bus bandwidth over message size, and latency by rank."""
    if len(facts) > 1:
        series = [*_bands(facts, operation, len(facts)), *_baseline(run)]
        usual, note = _expected(facts, operation, run)
        title = "bus bandwidth by message size"
        yield plots.Chart(title, "message size, bytes", "busbw, GB/s", [*series, *usual], log="xy", note=note)
    if any(reading["latency"] for reading in facts.values()):
        yield _latency(facts, run)


def _bands(facts: Mapping[int, Facts], operation: str, ranks: int) -> Iterator[plots.Series]:
    for dtype in ("fp32", "bf16"):
        rates: dict[int, list[float]] = {}
        for reading in facts.values():
            for size in reading["sizes"]:
                if size["dtype"] == dtype and size["seconds"] > 0:
                    _, busbw = OPERATIONS[operation].bandwidths(size["bytes"], size["seconds"], ranks)
                    rates.setdefault(size["bytes"], []).append(busbw)
        if rates:
            points = [
                (size, min(speeds), statistics.median(speeds), max(speeds)) for size, speeds in sorted(rates.items())
            ]
            yield plots.Series(f"{dtype}, all ranks", points)


def _baseline(run: Run) -> Iterator[plots.Series]:
    for dtype in ("fp32", "bf16"):
        figures = [figure for figure in run.earlier if figure.labels.get("dtype") == dtype]
        points = sorted((int(figure.labels["message_size"]), figure.value) for figure in figures)
        if points:
            yield plots.Series(f"baseline {dtype}, median rank", points, "baseline")


def _expected(facts: Mapping[int, Facts], operation: str, run: Run) -> tuple[list[plots.Series], str]:
    """The published figures for these links at the largest message, and their source."""
    sizes = [size for _, size in slowest(facts)]
    top = largest(slowest(facts), "fp32")
    usual = expected.busbw(operation, top, run) if top else None
    if usual is None:
        return [], ""
    ends = (min(sizes), max(sizes))
    low, high = usual.usual
    lines = {"least expected": usual.least, "usual, from": low, "usual, to": high}
    series = [plots.Series(name, [(size, value) for size in ends], "expected") for name, value in lines.items()]
    return series, f"Expected at {nominal(top)}: {usual.source}."


def _latency(facts: Mapping[int, Facts], run: Run) -> plots.Strips:
    ranks = [rank for rank, reading in facts.items() if reading["latency"]]
    subjects = [(run.job.node_of(rank).node, f"rank {rank}") for rank in ranks]
    strips = []
    for name, key in (("half of the calls", "p50_s"), ("99 of 100 calls", "p99_s")):
        values = [US * facts[rank]["latency"][key] for rank in ranks]  # type: ignore[index, literal-required]
        most = TAIL * statistics.median(values)
        odd = [place for place, value in enumerate(values) if value > most]
        strips.append(plots.Strip(f"{name} took at most", "µs", values, odd))
    size = nominal(next(reading["latency"]["bytes"] for reading in facts.values() if reading["latency"]))
    return plots.Strips(f"latency at {size}, by rank", subjects, strips)


def between_nodes(blame: Blame, run: Run, title: str) -> plots.HeatMap:
    """From the row's node to the column's: the slowest of their links."""
    cells: dict[tuple[int, int], float] = {}
    for link, rate in blame.rates.items():
        pair = blame.node_pair(link)
        cells[pair] = min(rate, cells.get(pair, rate))
    names = [node.node for node in run.job.nodes]
    return plots.HeatMap(title, names, names, cells, "GB/s", blame.usual, blame.limit)


def by_rail(blame: Blame, run: Run, title: str) -> plots.HeatMap:
    """Node by local rank: the slower of its best sending and its best receiving link, so that a sick partner does not
    make a rank look slow."""
    best: dict[tuple[int, int], float] = {}
    for link, rate in blame.rates.items():
        for role, rank in enumerate(link):
            best[rank, role] = max(rate, best.get((rank, role), 0.0))
    cells: dict[tuple[int, int], float] = {}
    for (rank, _), rate in best.items():
        place = blame.places[rank]
        cells[place.node, place.rail] = min(rate, cells.get((place.node, place.rail), rate))
    rails = max(rail for _, rail in cells) + 1
    columns = [f"local rank {rail}" for rail in range(rails)]
    return plots.HeatMap(title, [node.node for node in run.job.nodes], columns, cells, "GB/s", blame.usual, blame.limit)
