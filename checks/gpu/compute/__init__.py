"""Compute: every device computes and copies correctly, reproduces the same bits, and is as fast as its siblings.

Each rank runs on its own device: matrix products (GEMM) in bf16 and in fp32 without TF32, of whole numbers whose
product is known exactly; repeats of another product; copies of known bits between host and device (pinned memory), on
the device (2 bytes moved per byte copied) and to and from the next GPUs that the rank sees. All ranks measure at the
same time. TFLOP/s are 2 * rows^3 / seconds, GB/s are 10^9 bytes.

A device that differs from itself, or from the known result, computes wrongly. Devices with the same model, driver,
libraries and settings choose the same kernels, so their sums must agree to the last bit; on CPUs, within a node. Speeds
are compared with the median of at least four such GPUs, P2P copies with those between the same places on other nodes;
of fewer GPUs copies are held against the card's own memory (clock and width) and link (lanes and generation).
On a CPU sizes are small, with one thread, and speeds are not judged.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from preflight.check import (
    WHERE_KEYS,
    Action,
    After,
    Code,
    Context,
    Figure,
    Finding,
    Job,
    Level,
    Plan,
    Run,
    Scope,
    Skip,
    Trait,
    grouped,
    option,
    plots,
    ranges,
    traits,
    vote,
    words,
)
from preflight.checks.gpu.compute import own_limits, plotted
from preflight.checks.gpu.compute.workload_facts import Facts, WrongResult
from preflight.checks.gpu.shared.cards import INVENTORY, cards

HEALTH, PCIE = "gpu.health", "gpu.pcie"
PARTS = (own_limits,)
PLAN = Plan(
    Scope.RANK, Level.STANDARD, deadline_s=90, estimate_s=4.0,
    after={"gpu.inventory": After.READS, HEALTH: After.USES, PCIE: After.USES},
)  # fmt: skip

REPEATS = option(int, 10, "how often to repeat a product")
PEERS = option(int, 1, "how many of the next GPUs each copies to and from; each takes 0.5 GB there until the end")
MIN_SHARE = option(float, 0.85, "warn if GEMMs and copies on the device are below this share of the median speed")
MIN_SHARE_OUTSIDE = option(float, 0.7, "the same for copies to and from host and peers")

_TEST_IT = "Run --only gpu.compute again; if it is the same device, drain its node and test it (dcgmi diag -r 3)."
WRONG_PRODUCT = Code(
    "A matrix product of whole numbers is wrong.",
    fix=f"Do not train here. {_TEST_IT}",
    action=Action.REPLACE,
    see=("gpu.health", "node.kernel"),
)
WRONG_COPY = Code(
    "Bits were altered between host and device, on the device, or between GPUs.",
    fix=f"Do not train here. {_TEST_IT} Between GPUs: turn ACS and the IOMMU off (see node.kernel).",
    action=Action.REPLACE,
    see=("gpu.health", "gpu.pcie", "node.kernel"),
)
UNSTABLE = Code(
    "Repeating a product gives different bits.",
    fix=f"Do not train here. {_TEST_IT}",
    action=Action.REPLACE,
    see=("gpu.health", "node.kernel"),
)
CORRUPT = Code(
    "A device computes different bits than all others with its model, driver and libraries.",
    fix=f"Do not train here. {_TEST_IT}",
    action=Action.REPLACE,
    see=("gpu.health", "node.kernel"),
)
DIFFERENT_BITS = Code(
    "Several devices agree on bits that differ from their siblings': probably different software, not faulty hardware.",
    fix="Compare the nodes' libraries and settings: env.software, env.variables, LD_LIBRARY_PATH, LD_PRELOAD.",
    see=("env.software", "env.variables"),
)
DEVICE_ERROR = Code(
    "CUDA returned an error instead of a result.",
    fix="On {node}: dmesg | grep -i xid; nvidia-smi -q. Reset the GPU, else drain the node.",
    action=Action.RESET_GPU,
    see=("gpu.health", "node.kernel"),
)
SLOW = Code(
    "A GPU is slower than others of its kind.",
    fix="See gpu.health; under load: nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE shows the reason.",
    action=Action.NONE,
    see=("gpu.health", "gpu.released", "gpu.pcie"),
)
_FREE = "On that node: nvidia-smi shows who holds the other GPU's memory; end it, then run again: --only gpu.compute."
FIX_OUTSIDE = (
    "See gpu.pcie, gpu.nvlink and gpu.topology: width and speed of the links, and whether the rank's CPUs and memory "
    "are on its GPU's NUMA node (numactl --show)."
)

FEWEST = 4
"""The fewest GPUs to compare: with fewer, the odd one cannot be identified."""
CLEARLY = 5.0
"""Standard deviations below the median, estimated by the median absolute deviation. Among thousands of sound GPUs none
is that far off; and if half are slower by design, none is odd."""
MAD_TO_DEVIATION = 1.4826
"""For normally distributed values."""


def measure(ctx: Context) -> Facts:
    from preflight.checks.gpu.compute import workload

    device = ctx.device
    facts = workload.nothing_yet(device)
    doing = "first use of the GPU"
    ctx.doing(doing)
    try:
        with workload.at_work_on(device):
            for doing, step in workload.steps(facts, device, ctx.environ, ctx[REPEATS], ctx[PEERS]):
                ctx.doing(doing)
                step()
    except RuntimeError as error:
        first_line = str(error).partition("\n")[0]
        if workload.is_of_memory(error):
            raise Skip(f"{doing}: {first_line}") from None
        if not workload.is_of_device(error):
            raise
        facts["error"] = f"{doing}: {first_line}"
    return facts


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Findings name NVML's GPU numbers besides UUIDs, since torch numbers GPUs differently."""
    numbers = {uuid: card.gpu for (_, uuid), card in cards(run.facts(INVENTORY), run).items()}
    for finding in _found(facts, run):
        where = dict(finding.where)
        named = {"gpu": numbers.get(where.get("uuid", "")), "peer_gpu": numbers.get(where.get("peer_gpu", ""))}
        where |= {key: number for key, number in named.items() if number is not None}
        yield replace(finding, where={key: where[key] for key in WHERE_KEYS if key in where})


def _found(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    for rank, measured in facts.items():
        if measured["error"]:
            text = f"{measured['error']}; expected a result"
            yield DEVICE_ERROR.fail(text, uuid=measured["uuid"], **run.job.where(rank))
        if untried := measured.get("no_memory"):
            text = f"not measured: {words.clauses(untried, 2)}; expected free memory there"
            yield SLOW.not_measured(text, fix=_FREE, **run.job.where(rank))
    yield from _wrong(facts, run)
    yield from _unstable(facts, run)
    sound = {
        rank: measured
        for rank, measured in facts.items()
        if not measured["error"] and not measured["wrong"] and not _differing(measured)
    }
    for alike in _by(sound, lambda rank, measured: _bits_kind(rank, measured, run)):
        yield from _other_bits(alike, run)
    limits = own_limits.of_ranks(sound, run.facts(PCIE), run.facts(HEALTH), run)
    for alike in _by(sound, lambda _, measured: _kind(measured)):
        yield from _slow(alike, run)
        yield from own_limits.findings(alike, limits, run) if len(alike) < FEWEST else ()


def record(reading: Facts, _job: Job) -> Iterator[Trait | Figure]:
    yield from traits("hardware", {"device": reading["kind"]["name"]}, reading["uuid"] or "")
    for name, speed in reading["speeds"].items():
        unit, least = "TFLOP/s" if "GEMM" in name else "GB/s", 0.8 if reading["uuid"] else 0.2
        yield Figure(name, speed, unit, reading["uuid"] or "", least=least)  # on a CPU the speed depends on other work


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    kinds = _by(facts, lambda _, measured: _kind(measured))
    most = max(kinds, key=len)
    typical = next(iter(most.values()))
    parts = [_figures("GEMM", ("bf16", "fp32"), "TFLOP/s", most)]
    parts += [_figures("copy", ("device", "H2D", "D2H", "P2P"), "GB/s", most)]
    parts += [f"and {ranges.count(len(kinds) - 1, 'other kind')} of device"] if len(kinds) > 1 else []
    parts += dict.fromkeys(f"not measured: {why}" for each in facts.values() for why in each["not_measured"][:1])
    return f"{len(most):,} x {typical['kind']['name']}: {'; '.join(filter(None, parts))}"


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    slow: dict[str, list[int]] = {}
    for alike in _by(facts, lambda _, measured: _kind(measured)):
        for name, _, odd in _slow_speeds(alike, run):
            slow.setdefault(name, []).extend(rank for rank, _, _ in odd)
    yield from plotted.strips(facts, run, slow)


def _by(facts: Mapping[int, Facts], key: Callable[[int, Facts], str]) -> list[dict[int, Facts]]:
    return [dict(alike) for alike in grouped(facts.items(), lambda pair: key(*pair)).values()]


def _kind(measured: Facts) -> str:
    return json.dumps(measured["kind"])


def _bits_kind(rank: int, measured: Facts, run: Run) -> str:
    """What devices must share to give equal bits. For CPUs also caches and cores, which libraries consider."""
    return _kind(measured) + (run.job.node_of(rank).node if measured["kind"]["type"] == "cpu" else "")


# Wrong results


def _wrong(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    by_what: dict[str, dict[int, WrongResult]] = {}
    for rank, measured in facts.items():
        for wrong in measured["wrong"]:
            by_what.setdefault(wrong["what"], {})[rank] = wrong
    for what, of_rank in by_what.items():
        code = WRONG_PRODUCT if what.endswith("GEMM") else WRONG_COPY
        if not _is_most(of_rank, facts):
            for rank, wrong in of_rank.items():
                where = {"uuid": facts[rank]["uuid"], "peer_gpu": wrong["peer"], **run.job.where(rank)}
                yield code.fail(f"{what}: {_describe(wrong)}", evidence=wrong, **where)
        else:
            first = next(iter(of_rank.values()))
            share = f"{len(of_rank):,} of {ranges.count(len(facts), 'rank')}"
            text = (
                f"{what}: {_describe(first)}; the same or similar on {share}: look at the library and the driver first"
            )
            yield code.fail(text, noticed_by=tuple(of_rank), evidence=first)


def _describe(wrong: WrongResult) -> str:
    values = (wrong["got"], wrong["expected"])
    got, expected = (value if isinstance(value, str) else f"{value:,.0f}" for value in values)
    first = f"the first at {wrong['index']:,}: {got}, expected {expected}"
    return f"{wrong['elements']:,} of {ranges.count(wrong['of'], 'element')} are wrong, {first}"


def _is_most(ranks: Iterable[int], facts: Mapping[int, Facts]) -> bool:
    """Whether most devices do the same, which then is hardly each one's fault."""
    return len(facts) > 1 and 2 * len([*ranks]) > len(facts)


def _differing(measured: Facts) -> list[str]:
    return [name for name, repeats in measured["repeats"].items() if repeats["unlike"]]


def _unstable(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """A library without a fixed order of addition differs from itself on most devices, and is not wrong."""
    differing = {rank: names for rank, measured in facts.items() if (names := _differing(measured))}
    if _is_most(differing, facts):
        share = f"{len(differing):,} of {ranges.count(len(facts), 'rank')}"
        text = f"repeating a product gives different bits on {share}, expected the same"
        yield UNSTABLE.warn(
            f"{text}: the library adds in varying order, or most devices are faulty", noticed_by=tuple(differing)
        )
        return
    for rank, names in differing.items():
        for name in names:
            found = facts[rank]["repeats"][name]
            times = f"{found['unlike']} of {ranges.count(found['repeats'], 'repeat')} differ from the first"
            text = f"{name} GEMM: {times} in up to {ranges.count(found['elements'], 'element')}, expected the same bits"
            yield UNSTABLE.fail(text, uuid=facts[rank]["uuid"], evidence=found, **run.job.where(rank))


def _other_bits(alike: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    repeats = {rank: measured["repeats"] for rank, measured in alike.items()}
    for name in dict.fromkeys(name for of_rank in repeats.values() for name in of_rank):
        votes = vote((rank, of_rank[name]["digest"]) for rank, of_rank in repeats.items() if name in of_rank)
        if votes.unanimous:
            continue
        if not votes.decided:
            text = f"{name} GEMM: the bits are {votes.sides()}, expected the same on devices of one kind"
            yield (
                CORRUPT.fail(text)
                if any(len(ranks) == 1 for ranks in votes.ranks_of.values())
                else DIFFERENT_BITS.warn(text)
            )
        for rank, digest in votes.odd():
            shared = len(votes.ranks_of[digest]) > 1  # two faulty devices hardly make the same mistake
            say = DIFFERENT_BITS.warn if shared else CORRUPT.fail
            text = f"{name} GEMM: the bits are {digest!r}, expected {votes.among()} of this kind"
            yield say(text, uuid=alike[rank]["uuid"], **run.job.where(rank))


# Speeds


def _slow(alike: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    for name, speeds, odd in _slow_speeds(alike, run):
        outside, unit = _is_outside(name), "TFLOP/s" if name.endswith("GEMM") else "GB/s"
        share = run[MIN_SHARE_OUTSIDE if outside else MIN_SHARE]
        for rank, least, median in odd:
            of = f"{share:g} of the median of {len(speeds):,} of its kind, {_number(median)}"
            text = f"{name} runs at {_number(speeds[rank])} {unit}, expected at least {_number(least)} ({of})"
            where = {"uuid": alike[rank]["uuid"], **run.job.where(rank)}
            yield SLOW.warn(text, fix=FIX_OUTSIDE if outside else None, **where)


def _slow_speeds(
    alike: Mapping[int, Facts], run: Run
) -> Iterator[tuple[str, dict[int, float], list[tuple[int, float, float]]]]:
    """(name, values by rank, the odd ones) for each speed."""
    if next(iter(alike.values()))["kind"]["type"] == "cpu":
        return
    for name in dict.fromkeys(name for measured in alike.values() for name in measured["speeds"]):
        speeds = {rank: measured["speeds"][name] for rank, measured in alike.items() if name in measured["speeds"]}
        share = run[MIN_SHARE_OUTSIDE if _is_outside(name) else MIN_SHARE]
        yield name, speeds, [*_odd_ones(speeds, share)]


def _is_outside(name: str) -> bool:
    """Whether the data leaves the device, to the host or a peer."""
    return not name.endswith("GEMM") and name != "device copy"


def _odd_ones(speeds: Mapping[int, float], share: float) -> Iterator[tuple[int, float, float]]:
    """(rank, least speed expected, median)."""
    if len(speeds) < FEWEST:
        return
    median = statistics.median(speeds.values())
    deviation = MAD_TO_DEVIATION * statistics.median(abs(speed - median) for speed in speeds.values())
    least = share * median
    yield from ((rank, least, median) for rank, v in speeds.items() if v < min(least, median - CLEARLY * deviation))


def _figures(what: str, names: Iterable[str], unit: str, facts: Mapping[int, Facts]) -> str:
    """ "GEMM bf16 640-655, fp32 49.5-51 TFLOP/s" """
    figures = []
    for name in names:
        known = [pair for measured in facts.values() for pair in measured["speeds"].items()]
        if speeds := [speed for own, speed in known if own.startswith(f"{name} {what}")]:
            least, most = _number(min(speeds)), _number(max(speeds))
            figures.append(f"{name} {least if least == most else f'{least}-{most}'}")
    return f"{what} {', '.join(figures)} {unit}" if figures else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
