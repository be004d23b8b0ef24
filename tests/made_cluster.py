"""A made-up report of a large cluster, with all kinds of plots, for the page: sizes, times, pictures."""

import random
from collections.abc import Iterable

from preflight.core import plots
from preflight.core.finding import Reported
from preflight.core.job import Job, Node
from preflight.core.outcome import Outcome
from preflight.planning import registry
from preflight.results.report import Report
from tests import made

GPUS = 8
USUAL = 42.0
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


def name(number: int) -> str:
    return f"gpu-{number:04}"


def job(nodes: int) -> Job:
    ranks = (tuple(range(GPUS * number, GPUS * number + GPUS)) for number in range(nodes))
    made_up = tuple(Node(name(n), n, its, (f"10.0.{n // 250}.{n % 250 + 1}",)) for n, its in enumerate(ranks))
    return Job("slurm", GPUS * nodes, "nccl", made_up)


def report(nodes: int, findings: Iterable[Reported] = (), sick: int | None = None) -> Report:
    """Every check that preflight brings, all but `findings` well. `sick`: a node that is slow in every plot."""
    random.seed(nodes)
    found: dict[str, list[Reported]] = {}
    for finding in findings:
        found.setdefault(finding.code.rpartition(".")[0], []).append(finding)
    on, drawn = job(nodes), _plots(nodes, sick)
    outcomes = {rank: Outcome("measured", random.uniform(0.4, 0.6)) for rank in range(on.world_size)}
    ids = [*registry.BUILT_IN, *(check for check in found if check not in registry.BUILT_IN)]
    results = [
        made.result(*found.get(id_, ()), check=id_, title="A made-up title.", outcomes=outcomes, summary="made up",
                    plots=[plot.to_json() for plot in drawn.get(id_, ())], began_s=0.7 * number)
        for number, id_ in enumerate(ids)
    ]  # fmt: skip
    return made.made_report(*results, on=on)


def _plots(nodes: int, sick: int | None) -> dict[str, list[plots.Plot]]:
    drawn: dict[str, list[plots.Plot]] = {f"comm.{name}": [_bandwidth(), _latency(nodes)] for name in COLLECTIVES}
    return {
        **drawn, "comm.pairs": [_pairs(nodes, sick)], "gpu.compute": [_speeds(nodes, sick)],
        "gpu.health": [_health(nodes)], "gpu.topology": [_wiring(nodes)], "train.ddp": [_losses()],
        "env.variables": [plots.Table("variables that differ", ("name", "value", "nodes"),
                                      [("NCCL_DEBUG", "INFO", name(1)), ("NCCL_DEBUG", "not set", "all others")])],
    }  # fmt: skip


def _bandwidth() -> plots.Chart:
    sizes = [2**power for power in range(10, 33, 2)]
    rates = [380 * size / (size + 3e7) for size in sizes]
    band = [(size, 0.9 * rate, rate, 1.04 * rate) for size, rate in zip(sizes, rates, strict=True)]
    series = [
        plots.Series("fp32, all ranks", band),
        plots.Series("baseline fp32, median rank", [(size, 0.95 * rate) for size, _, rate, _ in band], "baseline"),
        plots.Series("least expected", [(sizes[0], 200.0), (sizes[-1], 200.0)], "expected"),
    ]
    return plots.Chart("bus bandwidth by message size", "message size, bytes", "busbw, GB/s", series,
                       log="xy", note="Expected at 4 GiB: made up.")  # fmt: skip


def _subjects(nodes: int, word: str) -> list[tuple[str, str]]:
    return [
        (name(n), f"{word} {GPUS * n + gpu if word == 'rank' else gpu}") for n in range(nodes) for gpu in range(GPUS)
    ]


def _latency(nodes: int) -> plots.Strips:
    values = [random.gauss(31, 2) for _ in range(GPUS * nodes)]
    return plots.Strips("latency at 1 KiB, by rank", _subjects(nodes, "rank"), [
        plots.Strip("half of the calls took at most", "µs", values),
        plots.Strip("99 of 100 calls took at most", "µs", [value * random.uniform(1.2, 1.6) for value in values]),
    ])  # fmt: skip


def _speeds(nodes: int, sick: int | None) -> plots.Strips:
    strips = []
    for what, unit, usual in (("bf16 GEMM", "TFLOP/s", 640.0), ("fp32 GEMM", "TFLOP/s", 50.0),
                              ("device copy", "GB/s", 2900.0), ("H2D copy", "GB/s", 55.0),
                              ("D2H copy", "GB/s", 54.0), ("P2P copy", "GB/s", 390.0)):  # fmt: skip
        values = [random.gauss(usual, usual / 100) for _ in range(GPUS * nodes)]
        odd = [] if sick is None else [GPUS * sick + 3]
        for place in odd:
            values[place] = 0.6 * usual
        strips.append(plots.Strip(what, unit, values, odd))
    return plots.Strips("speed of each device", _subjects(nodes, "gpu"), strips)


def _health(nodes: int) -> plots.Strips:
    count = GPUS * nodes
    return plots.Strips("health of each GPU", _subjects(nodes, "gpu"), [
        plots.Strip("temperature", "°C", [float(random.randint(34, 52)) for _ in range(count)]),
        plots.Strip("SM clock", "MHz", [float(random.choice((1965, 1980))) for _ in range(count)]),
        plots.Strip("power limit", "W", [700.0] * count),
    ])  # fmt: skip


def _pairs(nodes: int, sick: int | None) -> plots.HeatMap:
    """As comm.pairs meets above 32 nodes: each with twice log2 of their number, near and far."""
    cells: dict[tuple[int, int], float] = {}
    for number in range(nodes):
        for power in range(max(1, nodes.bit_length() - 1)):
            for other in ((number + 2**power) % nodes, (number - 2**power) % nodes, (number + 37 * 2**power) % nodes):
                slow = sick in (number, other)
                cells[number, other] = random.gauss(USUAL, 1.0) * (0.3 if slow else 1.0)
    names = [name(number) for number in range(nodes)]
    title = "from the row's node to the column's: the slowest link"
    return plots.HeatMap(title, names, names, cells, "GB/s", USUAL, USUAL / 1.6)


def _wiring(nodes: int) -> plots.Wiring:
    devices = [(f"GPU{gpu}", f"NUMA {gpu // 4}") for gpu in range(GPUS)]
    devices += [(f"NIC{nic} mlx5_{nic}", f"NUMA {nic // 4}") for nic in range(GPUS)]
    links = [(a, b, "NV18") for a in range(GPUS) for b in range(a + 1, GPUS)]
    links += [(gpu, GPUS + gpu, "PIX") for gpu in range(GPUS)]
    return plots.Wiring("NVSwitch (8 GPUs, 18 links each)", [name(n) for n in range(nodes)], devices, links, [(2, 10)])


def _losses() -> plots.Chart:
    series = [
        plots.Series(variant, [(step, 4.2 / (1 + step / 4)) for step in range(9)]) for variant in ("plain", "clip")
    ]
    return plots.Chart("loss by step", "step", "loss", series)
