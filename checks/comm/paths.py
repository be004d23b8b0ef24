"""Paths: after a finding on NCCL, which of its transports is slow or broken, found by disabling some of them.

Times the same all-reduce as the job runs it, without NVLS and NVLink between nodes, without P2P, and over the network
only; then all of it again. NCCL reads its variables once per process, so each runs in a new one, which may hang. If it
is faster both times without a transport, or works only without it, that transport is at fault: NCCL chooses what
should be fastest. There is no variable for NVLink alone: without P2P neither NVLink nor PCIe connects two GPUs. That
the network alone is as fast proves nothing between nodes, where it limits a sound job, too.
"""

import os
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from preflight.check import (
    After,
    Code,
    Context,
    Finding,
    Job,
    Level,
    NotApplicable,
    Plan,
    Run,
    Scope,
    Skip,
    ranges,
    words,
)
from preflight.checks.comm.shared import localize
from preflight.checks.comm.shared.readings import MIB
from preflight.sdk.probe import NoReply, Probe, Reply

if TYPE_CHECKING:
    import torch

AS_IT_IS = "as the job runs it"
_NO_NVLS = {"NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0"}
_NO_P2P = {**_NO_NVLS, "NCCL_P2P_DISABLE": "1"}
NETWORK = "over the network only"
VARIANTS: Mapping[str, Mapping[str, str]] = {
    AS_IT_IS: {},
    "without NVLS and NVLink between nodes": _NO_NVLS,
    "without P2P": _NO_P2P,
    NETWORK: {**_NO_P2P, "NCCL_SHM_DISABLE": "1"},
}
"""Each disables more than the one before (NCCL's user guide, "Environment Variables")."""
RUNS = (*VARIANTS, *VARIANTS)


SHARES, FOR_ALL = 5, 4
"""Of the check's deadline a process has one share at most, and all of them together have four: where every way hangs
they do not take eight."""


def _deadline(job: Job) -> float:
    """30 s for each: a process makes its CUDA context, and NCCL starts. Other backends have nothing to try, which must
    not be an error if the run has no 40 s left."""
    return 5.0 if job.backend != "nccl" else SHARES * (30.0 + job.world_size / 64)


PLAN = Plan(
    Scope.WORLD, Level.STANDARD, deadline_s=_deadline, estimate_s=40.0, fresh=True,
    after={"comm.init": After.NEEDS, **localize.AFTER_SYMPTOMS},
)  # fmt: skip

_FIXES = {
    "without NVLS and NVLink between nodes": "There: systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A3 "
    "Fabric; with NVLink between nodes also nvidia-imex-ctl -N. Until then: NCCL_NVLS_ENABLE=0.",
    "without P2P": "There: nvidia-smi nvlink -s and -e; nvidia-smi topo -p2p r; ACS and the IOMMU (node.kernel). Until "
    "then: NCCL_P2P_DISABLE=1.",
    NETWORK: "There: df /dev/shm; numactl --hardware; top, for what else uses the memory. Until then: "
    "NCCL_SHM_DISABLE=1 and NCCL_P2P_DISABLE=1.",
}
_NO_WAY = "No transport is to blame: see comm.init, and the end of NCCL's log (--report DIR, in DIR/logs)."
BROKEN = Code(
    "A collective fails, or works only without one of NCCL's transports.",
    fix="Check that transport's services, cables and settings.",
)
SLOW = Code(
    "A collective is faster without one of NCCL's transports.",
    fix="Check that transport's services, cables and settings.",
)

NOT_TIMED = Code(
    "There was no time to measure without each of NCCL's transports.",
    fix="Run --only comm.paths alone, with a longer --deadline.",
)

SIZE, SIZE_ELSEWHERE = 64 * MIB, MIB
"""The second if the device is not a GPU: then NCCL is a stand-in."""
WARM_UP, TIMED, PASSES = 3, 5, 4
"""The fastest pass counts."""
FASTER, MOST = 1.25, 0.9
"""The factor that counts as faster: a sound NCCL's times at this size differ by a few percent between runs. And the
share of the largest gain that identifies the fault: of several, the one that disables least."""
LEAST_S = 5.0
"""For a process: with less time nothing is measured."""
NO_TIME = "not tried: the others had taken the time for all"
NOT_AGAIN = "not tried again: it had failed"


class Timing(TypedDict):
    variant: str
    seconds: float | None
    """Of one all-reduce on this rank; None if it failed."""
    failed: str
    """Why."""


class Facts(TypedDict):
    bytes: int
    timings: list[Timing]


def measure(ctx: Context) -> Facts:
    if ctx.job.backend != "nccl":
        raise NotApplicable(f"the backend is {ctx.job.backend}, and only NCCL has transports to disable")
    if len(ctx.members) < 2:
        raise NotApplicable("one rank: there is no way to another")
    patience_s = ctx.deadline_s / SHARES
    if patience_s < LEAST_S:
        raise Skip(f"the run has left {patience_s:.1f} s for each process, expected {LEAST_S:g} s or more")
    end, store = time.monotonic() + FOR_ALL * patience_s, ctx.store()
    timings, broken = list[Timing](), set[str]()
    for number, variant in enumerate(RUNS):
        left_s = end - time.monotonic()
        with Probe({variant: partial(_timed, ctx, str(number), VARIANTS[variant], patience_s)}) as probe:
            if variant in broken:
                timing = Timing(variant=variant, seconds=None, failed=NOT_AGAIN)
            elif left_s < LEAST_S:
                timing = Timing(variant=variant, seconds=None, failed=NO_TIME)
            else:
                ctx.doing(f"an all-reduce {variant}")
                timing = _told(variant, probe.ask(variant, deadline_s=min(patience_s, left_s)))
            # Its process lives until the others have their times.
            if not _all_have_it(ctx, store, number, timing, 2 * patience_s) and variant != AS_IT_IS:
                broken.add(variant)  # what is held against the job's own way has worked twice
        timings.append(timing)
    return {"bytes": SIZE, "timings": timings}


def _told(variant: str, reply: Reply | NoReply) -> Timing:
    if isinstance(reply, NoReply):
        return Timing(variant=variant, seconds=None, failed=reply.text[:200])
    return Timing(variant=variant, seconds=reply.value, failed="")


def _all_have_it(
    ctx: Context, store: "torch._C._distributed_c10d.Store", number: int, timing: Timing, within_s: float
) -> bool:
    """Whether it has worked on every rank: all meet here, and learn the same."""
    keys = [f"{number}/{rank}" for rank in ctx.members]
    with ctx.collective("meeting", timing["variant"]):
        store.set(f"{number}/{ctx.rank}", "failed" if timing["failed"] else "worked")
        store.wait(keys, timedelta(seconds=within_s))
    return all(store.get(key) == b"worked" for key in keys)


def _timed(ctx: Context, number: str, settings: Mapping[str, str], patience_s: float) -> float:
    """Runs in a new process, where NCCL has not read the environment yet."""
    os.environ.update(settings)
    import torch
    from torch import distributed as dist

    on_gpu = ctx.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(ctx.device)
    dist.init_process_group(
        ctx.job.backend,
        store=dist.PrefixStore(f"group-{number}", ctx.store()),  # type: ignore[attr-defined]  # not in __all__
        rank=ctx.group_rank,
        world_size=len(ctx.members),
        timeout=timedelta(seconds=patience_s),
        device_id=ctx.device if on_gpu else None,
    )
    value = torch.zeros((SIZE if on_gpu else SIZE_ELSEWHERE) // 4, device=ctx.device)
    for _ in range(WARM_UP):
        dist.all_reduce(value)
    return min(_pass(value) for _ in range(PASSES))


def _pass(value: "torch.Tensor") -> float:
    from torch import distributed as dist

    value[0].item()
    start = time.perf_counter()
    for _ in range(TIMED):
        dist.all_reduce(value)
    value[0].item()
    return (time.perf_counter() - start) / TIMED


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:  # noqa: ARG001
    seconds = _seconds(facts)
    own = seconds.pop(AS_IT_IS)
    others = {variant: max(times) for variant, times in seconds.items() if len(times) == 2}
    if not own:
        yield _broken(facts, others)
        return
    yield from _untried(facts)
    if not others:
        return
    spread, best = max(own) / min(own), min(others.values())
    gain = min(own) - best
    if best * FASTER * spread < min(own):
        variant = next(name for name, value in others.items() if min(own) - value >= MOST * gain)
        told = f"{words.duration(min(own))} {AS_IT_IS}, and {words.duration(others[variant])} {variant}"
        yield SLOW.warn(f"an all-reduce takes {told}, expected no gain", fix=_FIXES[variant])


def _untried(facts: Mapping[int, Facts]) -> Iterator[Finding]:
    late = dict.fromkeys(
        it["variant"] for reading in facts.values() for it in reading["timings"] if it["failed"] == NO_TIME
    )
    if late:
        text = (
            f"an all-reduce was not timed twice {words.some(late, last=' or ')}: the others had taken the time for all"
        )
        yield NOT_TIMED.not_measured(f"{text}; expected two times of each")


def _seconds(facts: Mapping[int, Facts]) -> dict[str, list[float]]:
    """One or two times of the slowest rank per variant, without runs that failed on any rank; least disabled first."""
    found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for number, variant in enumerate(RUNS):
        times = [reading["timings"][number]["seconds"] for reading in facts.values()]
        known = [value for value in times if value is not None]
        found[variant] += [max(known)] if len(known) == len(times) else []
    return found


def _broken(facts: Mapping[int, Facts], others: Mapping[str, float]) -> Finding:
    """It has failed twice, or once where there was no time. `others`: what has worked twice."""
    why: dict[str, list[int]] = {}
    for rank, reading in facts.items():
        texts = [it["failed"] for it in reading["timings"] if it["variant"] == AS_IT_IS and it["failed"]]
        if tried := [text for text in texts if text != NO_TIME]:
            why.setdefault(tried[-1], []).append(rank)
    told = words.some([f"{ranges.ranks(those)}: {text}" for text, those in why.items()], 2, "; ", "; ")
    text = f"an all-reduce fails {AS_IT_IS} ({told})"
    if not others:
        return BROKEN.fail(
            f"{text}, and no variant with disabled transports worked twice; expected it to work", fix=_NO_WAY
        )
    variant, value = next(iter(others.items()))
    return BROKEN.fail(f"{text}, and takes {words.duration(value)} {variant}; expected it to work", fix=_FIXES[variant])


def summarize(facts: Mapping[int, Facts], run: Run) -> str:  # noqa: ARG001
    seconds = _seconds(facts)
    told = [
        f"{words.duration(min(times))} {variant}" if times else f"none {variant}" for variant, times in seconds.items()
    ]
    return f"an all-reduce of {next(iter(facts.values()))['bytes'] // MIB} MiB: {', '.join(told)}"
