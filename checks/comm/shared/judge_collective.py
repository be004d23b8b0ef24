"""Judges all collectives: which rank is to blame for a wrong result, and whether it is slow."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from preflight.check import Action, Code, Figure, Finding, Job, Run, option, ranges, words
from preflight.checks.comm.shared import expected, smaller_groups
from preflight.checks.comm.shared.operations import OPERATIONS, Operation
from preflight.checks.comm.shared.readings import (
    BF16_FIRST,
    LEFT_OUT,
    MIB,
    Computed,
    Facts,
    Whose,
    largest,
    nominal,
    slowest,
)
from preflight.checks.comm.shared.wrong_again import WrongResults

BASELINE_SHARE = option(
    float, 0.0,
    "warn if the busbw is below this share of the baseline's (--baseline REPORT); 0 is as preflight diff: 0.8 on nccl, "
    "0.05 on gloo",
)  # fmt: skip
MIN_GB_PER_S = option(
    float, 0.0,
    "warn if the busbw of the largest fp32 message is below this many GB/s; 0 uses figures published for the links",
)  # fmt: skip
"""For most links and collectives nothing is published: users who know their cluster can set it."""
SEVERAL = -1
"""Stands for a rank if there are several."""
KEPT = {"nccl": 0.8, "gloo": 0.05}
"""The share of the busbw that a sound machine keeps between runs. On gloo, other work on the processor decides: 0.15
to 1.5 GB/s were seen within two minutes on two cores with a load of 6."""
SMALL, KEPT_OF_SMALL = 16 * MIB, 0.5
"""Below this size latency counts, which varies more. It is the largest only where memory or time is short."""
T = TypeVar("T")

WRONG_RESULT = Code(
    "A collective gave a wrong result: wrong sums, or data that differs from what was sent.",
    fix="Do not train here. Run it again without this rank's node; test its GPU, memory and links.",
    action=Action.REPLACE,
    see=("gpu.compute", "gpu.health", "gpu.nvlink", "gpu.pcie", "net.rdma_errors", "node.kernel", "train.alone"),
)
FIX_PAIR = "Do not train here. Run it again with each of the two among other ranks: the fault follows the sick one."
FIX_NOBODY = "Do not train here. Run --only comm on halves of the nodes, then on halves of the wrong half."
FIX_ALONE = "Do not train here. Run it again; test this machine's memory and GPU (see gpu.compute), reinstall torch."
SLOW_LINKS = (
    "comm.rails", "comm.pairs", "comm.nodes", "net.mesh", "net.interfaces", "net.rdma", "net.rdma_errors",
)  # fmt: skip
"""The checks that would have found a link slower than the others, or with errors."""
CLEARED_LINKS = (
    "No link is slower than the others: compare their rate with the nominal one. If it is far below, look at what they "
    "all share (switch, MTU, tc -s qdisc); else the ranks lose the time: see what else runs there (top), how many CPUs "
    "each rank has, and OMP_NUM_THREADS."
)
FIX_ON_ONE_NODE = (
    "All ranks are on one node, so no network is in the way: see what else runs there (top), how many CPUs the ranks "
    "share (nproc, taskset -p), and with GPUs nvidia-smi topo -m."
)
TOO_SLOW = Code(
    "A collective is so slow that its larger sizes could not be measured.",
    fix="Look for the slow link: speed and errors of the interfaces between the nodes (ethtool), MTU, the cabling.",
    action=Action.NONE,
    see=SLOW_LINKS,
    cleared=CLEARED_LINKS,
)
BELOW_EXPECTED = Code(
    "A collective is slower than the machine's links allow, or than the minimum you set.",
    fix="See comm.transports for what NCCL chose, and comm.nodes, comm.rails and comm.pairs for where it is slow.",
    action=Action.NONE,
    see=(*SLOW_LINKS, "comm.transports"),
    cleared="No link is slower than the others: compare their rate with the nominal one. If it is far below, look at "
    "what they all share (switch, MTU, limits); else see with NCCL_DEBUG=INFO which algorithm and channels NCCL chose.",
)
SLOWER_THAN_BASELINE = Code(
    "A collective is slower than in the baseline.",
    fix="Run preflight diff BASELINE REPORT: it names the software, variables, links and GPU clocks that changed.",
    action=Action.NONE,
)


def judge(facts: Mapping[int, Facts], run: Run, *, operation: str) -> Iterator[Finding]:
    """All findings about this operation, whose check is `comm.<operation>`."""
    yield from _wrong_results(OPERATIONS[operation], facts, run)
    if not any(run.outcomes[rank].kind == "skipped" for rank in facts if rank in run.outcomes):
        yield from _too_slow(facts, run)  # else a type is missing for another reason, which the skip states
    yield from _below_expected(OPERATIONS[operation], facts, run)


def few(wrong: Collection[int], asked: int) -> bool:
    """Whether to blame the ranks that got a wrong result: if at least as many got it right, the data sent was right.
    With a single rank no other can confirm that."""
    return 0 < len(wrong) <= asked / 2


# Wrong results


def _wrong_results(operation: Operation, facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    looks = WrongResults(facts)
    wrong = {rank: found for rank in facts if (found := looks.of(rank))}
    if not wrong:
        return
    source = _common_source(operation, wrong, len(facts))
    if source is not None:
        yield looks.confirmed(_sender(source, wrong, facts, run), wrong)
    elif (by_groups := smaller_groups.named(facts)) is not None:
        yield looks.confirmed(_by_groups(*by_groups, wrong, run), wrong)
    elif few(wrong, len(facts)) and (operation.addressed or operation.part_received or len(facts) == 2):
        for finding, ranks in _ends(operation, wrong, facts, run):
            yield looks.confirmed(finding, ranks)
    elif few(wrong, len(facts)):
        yield looks.confirmed(_receivers(wrong, facts, run), wrong)
    else:
        yield looks.confirmed(_unknown(wrong, facts), wrong)


def _sender(source: int, wrong: Mapping[int, list[Computed]], facts: Mapping[int, Facts], run: Run) -> Finding:
    others = tuple(rank for rank in wrong if rank != source)
    sizes = wrong[min(others)]
    share = f"{len(wrong):,} of {ranges.count(len(facts), 'rank')} see wrong results"
    text = f"{_describe(_clearest(sizes))}; {share}, always in data from rank {source}"
    return WRONG_RESULT.fail(text, noticed_by=others, evidence=_proof(sizes), **run.job.where(source))


def _by_groups(source: int, groups: int, wrong: Mapping[int, list[Computed]], run: Run) -> Finding:
    sizes = wrong[min(wrong)]
    text = (
        f"{_describe(_clearest(sizes))}; summed in smaller groups it is wrong in each of {groups} with rank {source} "
    )
    text += f"and different ranks, and right without rank {source}"
    others = tuple(rank for rank in wrong if rank != source)
    return WRONG_RESULT.fail(text, noticed_by=others, evidence=_proof(sizes), **run.job.where(source))


def _receiver(rank: int, sizes: list[Computed], right: int, run: Run) -> Finding:
    text = f"{_describe(_clearest(sizes))}; {ranges.count(right, 'other rank')} got it right"
    return WRONG_RESULT.fail(text, evidence=_proof(sizes), **run.job.where(rank))


def _receivers(wrong: Mapping[int, list[Computed]], facts: Mapping[int, Facts], run: Run) -> Finding:
    """Ranks pass data on in a ring or tree: if several got it wrong, the first of them may be to blame, or its sender,
    which has it right itself. So no rank is named, only a node that all of them are on."""
    right = len(facts) - len(wrong)
    if len(wrong) == 1:
        return _receiver(*next(iter(wrong.items())), right, run)
    first = wrong[min(wrong)]
    node = _only({run.job.node_of(rank).node for rank in wrong})
    got = f"{ranges.ranks(wrong)} got it wrong, {ranges.count(right, 'other rank')} right"
    text = f"{_describe(_clearest(first))}; {got}: one of them, or a rank that sends to them, alters what is passed on"
    return WRONG_RESULT.fail(text, node=node or None, evidence=_proof(first), fix=FIX_NOBODY, action=Action.RESTART_JOB)


def _ends(
    operation: Operation, wrong: Mapping[int, list[Computed]], facts: Mapping[int, Facts], run: Run
) -> Iterator[tuple[Finding, Collection[int]]]:
    """(finding, the ranks whose results it is based on). If each receiver gets different data, that others got theirs
    right clears no rank: only one that fails with several others is named. For a pair, the node that both are on."""
    sources = {rank: _sources(operation, sizes) for rank, sizes in wrong.items()}
    if len(facts) == 2:
        sources = {rank: {other for other in facts if other != rank} for rank in wrong}
    by_source: dict[int | None, list[int]] = {}
    for rank, named in sources.items():
        by_source.setdefault(_only(named - {rank}), []).append(rank)
    for source, ranks in by_source.items():
        if source is not None and len(ranks) > 1:
            yield _sender(source, {rank: wrong[rank] for rank in ranks}, facts, run), ranks
        elif source is not None:
            yield _pair(ranks[0], source, wrong[ranks[0]], run), ranks
        else:
            for rank in ranks:
                right = len(facts) - len(wrong)
                mine = wrong[rank]
                yield _receiver(rank, mine, right, run) if sources[rank] else _part(rank, mine), (rank,)


def _pair(rank: int, source: int, sizes: list[Computed], run: Run) -> Finding:
    node = _only({run.job.node_of(rank).node, run.job.node_of(source).node})
    text = f"{_describe(_clearest(sizes))}; rank {rank} got it from rank {source}: either of them, or their link"
    return WRONG_RESULT.fail(text, node=node or None, evidence=_proof(sizes), fix=FIX_PAIR, action=Action.RESTART_JOB)


def _part(rank: int, sizes: list[Computed]) -> Finding:
    """A finding about a part of a sum whose other parts are on other ranks."""
    text = (
        f"{_describe(_clearest(sizes))}; it is rank {rank}'s part of the sum: any rank may have altered it on its way"
    )
    return WRONG_RESULT.fail(text, evidence=_proof(sizes), fix=FIX_NOBODY, action=Action.RESTART_JOB)


def _unknown(wrong: Mapping[int, list[Computed]], facts: Mapping[int, Facts]) -> Finding:
    """A finding that names no rank."""
    first = wrong[min(wrong)]
    sentence = _describe(_clearest(first))
    if len(facts) == 1:
        text = f"{sentence}; there is no other rank: it is this one's memory, libraries or device"
        return WRONG_RESULT.fail(text, evidence=_proof(first), fix=FIX_ALONE)
    if len(facts) == 2:
        text = f"{sentence}; both ranks see wrong results: either of them, or their link"
        return WRONG_RESULT.fail(text, evidence=_proof(first), fix=FIX_PAIR, action=Action.RESTART_JOB)
    decoded = [size for sizes in wrong.values() for size in sizes if size["wrong"] and size["wrong"]["whose"]]
    why = "not all for the same reason" if decoded else "one of the ranks alters values, or the library does"
    text = f"{sentence}; {ranges.ranks(wrong)} of {len(facts):,} see wrong results, and no rank can be named: {why}"
    return WRONG_RESULT.fail(text, evidence=_proof(first), fix=FIX_NOBODY, action=Action.RESTART_JOB)


def _common_source(operation: Operation, wrong: Mapping[int, list[Computed]], asked: int) -> int | None:
    """The rank from which all wrong data comes, if all that noticed agree; else None. Any wrong sum shows that; a wrong
    copy only if no rank got it right, since it may have been altered on the way to some."""
    sources = [_sources(operation, sizes) for sizes in wrong.values()]
    source = _only(set().union(*sources))
    if source is None or not all(sources):
        return None
    if operation.received is None:
        return source if asked > 2 and not few(wrong, asked) else None  # of two, the other may not have added it
    others = set(wrong) - {source}
    return source if 2 <= len(others) == asked - 1 else None


def _sources(operation: Operation, sizes: list[Computed]) -> set[int]:
    """Ranks whose contribution is wrong in one rank's results; SEVERAL if it is not a single rank's."""
    found = set()
    for wrong in (size["wrong"] for size in sizes):
        if wrong and operation.received is not None:
            found.add(SEVERAL if wrong["sender"] is None else wrong["sender"])
        elif wrong and wrong["whose"]:
            found.add(wrong["whose"]["rank"] if wrong["whose"]["what"] != "meant" else SEVERAL)
    return found  # a sum that nothing explains proves nothing either way


def _only(found: set[T]) -> T | None:
    return next(iter(found)) if len(found) == 1 and SEVERAL not in found else None


def _clearest(sizes: list[Computed]) -> Computed:
    """The smallest message among those that reveal the source."""
    return min(sizes, key=lambda size: (not size["wrong"] or size["wrong"]["whose"] is None, size["bytes"]))


def _proof(sizes: list[Computed]) -> dict[str, Any]:
    size = _clearest(sizes)
    return {"dtype": size["dtype"], "bytes": size["bytes"], **(size["wrong"] or {})}


def _describe(size: Computed) -> str:
    wrong = size["wrong"]
    assert wrong is not None
    got = wrong["got"] if isinstance(wrong["got"], str) else f"{wrong['got']:.9g}"
    first = f"the first at {wrong['index']:,}: {got}, expected {wrong['expected']:g}"
    are = "is" if wrong["elements"] == 1 else "are"
    share = f"{wrong['elements']:,} of {ranges.count(wrong['of'], 'element')} {are} wrong"
    return f"{nominal(size['bytes'])} {size['dtype']}: {share}, {first}; {_explained(wrong['whose'], wrong['sender'])}"


def _explained(whose: Whose | None, sender: int | None) -> str:
    if whose is None:
        return "no rank's contribution explains it" if sender is None else f"it should be what rank {sender} sent"
    rank, other = whose["rank"], whose["other"]
    if whose["what"] == "times":
        times = whose["times"] or 0.0
        return f"rank {rank}'s contribution {'is missing' if times == 0 else f'is counted {times:g} times'}"
    if whose["what"] == "instead":
        return f"rank {other}'s values are in the place of rank {rank}'s"
    if whose["what"] == "meant":
        return f"it is the part meant for rank {rank}"
    to = "" if other is None else f" to rank {other}"
    should = "" if sender in (None, rank) else f", and should be what rank {sender} sent"
    return f"it is what rank {rank} sent{to}{should}"


# Slow


def _too_slow(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    times = slowest(facts)
    planned = max((reading["planned"] for reading in facts.values()), default=0)
    for dtype, owed in (("fp32", planned), ("bf16", min(planned, BF16_FIRST))):
        last = largest(times, dtype)
        if last < (1 - LEFT_OUT) * owed:  # making all ranks' parts equal may leave some bytes out
            took = "not even the smallest size was timed"
            if last:
                took = f"{nominal(last)} took {words.duration(times[dtype, last])}"
            text = f"{dtype}: {took}, and nothing larger fit the check's time, expected {nominal(owed)} to fit"
            yield TOO_SLOW.warn(text, fix=FIX_ON_ONE_NODE if len(run.job.nodes) == 1 else None)
            return


def _below_expected(operation: Operation, facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    times = slowest(facts)
    size = largest(times, "fp32")
    if len(facts) < 2 or not size:
        return
    least, why = _least_expected(operation, size, run)
    _, busbw = operation.bandwidths(size, times["fp32", size], len(facts))
    if busbw < least:
        expected = f"expected at least {words.rate_of_gb(least)} ({why})"
        text = f"{nominal(size)} fp32: busbw {words.rate_of_gb(busbw)}, {expected}"
        yield BELOW_EXPECTED.warn(text)


def _least_expected(operation: Operation, size: int, run: Run) -> tuple[float, str]:
    """(GB/s, its source): the user's setting takes precedence over published figures; 0 if there is neither."""
    if run[MIN_GB_PER_S]:
        return run[MIN_GB_PER_S], f"comm.{operation.name}.min_gb_per_s"
    usual = expected.busbw(operation.name, size, run)
    if usual is None:
        return 0.0, ""
    low, high = usual.usual
    return usual.least, f"usual are {words.rate_of_gb(low)} to {words.rate_of_gb(high)}: {usual.source}"


def record(reading: Facts, job: Job, *, operation: str) -> Iterator[Figure]:
    """Runs are compared at the largest message of each type: of two runs, at the smaller of both."""
    sizes = [(size["dtype"], size["bytes"]) for size in reading["sizes"]]
    tops = {(dtype, largest(sizes, dtype)) for dtype, _ in sizes}
    for size in reading["sizes"] if job.world_size > 1 else ():
        _, busbw = OPERATIONS[operation].bandwidths(size["bytes"], size["seconds"], job.world_size)
        labels = {"message_size": str(size["bytes"]), "dtype": size["dtype"]}
        kept = KEPT[job.backend] if size["bytes"] >= SMALL else min(KEPT[job.backend], KEPT_OF_SMALL)
        least = kept if (size["dtype"], size["bytes"]) in tops else None
        yield Figure(f"{nominal(size['bytes'])} {size['dtype']} busbw", busbw, "GB/s", labels=labels, least=least)
    if delay := reading["latency"]:
        name = f"{nominal(delay['bytes'])} latency"
        yield Figure(name, delay["p50_s"] * 1e6, "microseconds", less_is_better=True)


def summarize(facts: Mapping[int, Facts], _run: Run, *, operation: str) -> str:
    """One line: the largest size of each type, and the slowest rank's latency."""
    bandwidths, times = OPERATIONS[operation].bandwidths, slowest(facts)
    size, other = largest(times, "fp32"), largest(times, "bf16")
    if not size:
        return "no size was measured"
    if len(facts) == 1:
        return f"right up to {nominal(size)}; 1 rank has no bandwidth"
    algbw, busbw = bandwidths(size, times["fp32", size], len(facts))
    parts = [f"{nominal(size)}: algbw {words.rate_of_gb(algbw)}, busbw {words.rate_of_gb(busbw)}"]
    if other:
        at = "" if other == size else f"{nominal(other)} "
        parts.append(f"bf16 {at}{words.rate_of_gb(bandwidths(other, times['bf16', other], len(facts))[1])}")
    if delays := [reading["latency"] for reading in facts.values() if reading["latency"]]:
        p50, p99 = max(delay["p50_s"] for delay in delays), max(delay["p99_s"] for delay in delays)
        parts.append(f"{nominal(delays[0]['bytes'])} in {words.duration(p50)} (p99 {words.duration(p99)})")
    return "; ".join(parts)
