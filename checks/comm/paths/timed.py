"""Which way of NCCL is slow: the same all-reduce is timed with more and more ways left out, and all of it again."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from preflight.check import Code, Context, Finding, NoReply, NoReplyKind, Probe, ranges, words
from preflight.checks.comm.paths.search import LEAST_S
from preflight.checks.comm.paths.trial import LONGEST, join, meet
from preflight.checks.comm.paths.ways import AS_IT_IS, FIXES, VARIANTS
from preflight.checks.comm.shared.readings import MIB

if TYPE_CHECKING:
    import torch

SLOW = Code(
    "A collective is faster without one of NCCL's transports.",
    fix="Check that transport's services, cables and settings.",
)
NOT_TIMED = Code(
    "There was no time to measure without each of NCCL's transports.",
    fix="Run --only comm.paths alone, with a longer --deadline.",
)

RUNS = (*VARIANTS, *VARIANTS)
SIZE, SIZE_ELSEWHERE = 64 * MIB, MIB
"""The second if the device is not a GPU: then NCCL is a stand-in."""
WARM_UP, TIMED, PASSES = 3, 5, 4
"""The fastest pass counts."""
FASTER, MOST = 1.25, 0.9
"""The factor that counts as faster: a sound NCCL's times at this size differ by a few percent between runs. And the
share of the largest gain that identifies the fault: of several, the one that disables least."""
NO_ANSWER = "no answer within"
"""How sdk/probe.py begins."""
NO_TIME = "not tried: the others had taken the time for all"
NOT_AGAIN = "not tried again: it had failed"


class Timing(TypedDict):
    variant: str
    seconds: float | None
    """Of one all-reduce on this rank; None if it failed."""
    failed: str
    """Why."""


Timings = Sequence[Sequence[Timing]]
"""By rank, each in the order of the runs."""


def measured(ctx: Context, patience_s: float, end: float) -> list[Timing]:
    """In lockstep on all ranks. What seems to be faster is timed a third time, and so is the job's own way: the ranks'
    cores may have been others' for a while."""
    series = _Series(ctx, patience_s, end)
    for variant in RUNS:
        series.one_more(variant)
    if suspect := faster(series.of_all):
        for variant in (AS_IT_IS, suspect):
            series.one_more(variant)
    return series.own


class _Series:
    """Each rank decides by what all have shared, also by the time that the last of them has left."""

    def __init__(self, ctx: Context, patience_s: float, end: float) -> None:
        self._ctx, self._patience_s, self._end = ctx, patience_s, end
        self._left_s = patience_s
        self.own: list[Timing] = []
        self.of_all: list[list[Timing]] = [[] for _ in ctx.members]

    def one_more(self, variant: str) -> None:
        turn = f"timed-{len(self.own)}"
        ask = partial(_seconds_of_one, self._ctx, turn, VARIANTS[variant], self._patience_s)
        with Probe({variant: ask}) as probe:  # its process lives until the others have their times
            timing = self._timing(variant, probe)
            self.own.append(timing)
            answers = meet(self._ctx, turn, [timing, self._end - time.monotonic()], 2 * self._patience_s)
        self._left_s = min(left_s for _, left_s in answers)
        for each, (their, _) in zip(self.of_all, answers, strict=True):
            each.append(their)

    def _timing(self, variant: str, probe: Probe) -> Timing:
        """What is held against the job's own way has worked each time: once is enough to leave it out."""
        if variant != AS_IT_IS and self._has_failed(variant):
            return Timing(variant=variant, seconds=None, failed=NOT_AGAIN)
        if self._left_s < LEAST_S:
            return Timing(variant=variant, seconds=None, failed=NO_TIME)
        self._ctx.doing(f"an all-reduce {variant}")
        reply = probe.ask(variant, deadline_s=min(self._patience_s, self._left_s))
        if not isinstance(reply, NoReply):
            return Timing(variant=variant, seconds=reply.value, failed="")
        was_cut = reply.kind == NoReplyKind.TIMED_OUT and self._left_s < self._patience_s
        return Timing(variant=variant, seconds=None, failed=NO_TIME if was_cut else reply.text[:LONGEST])

    def _has_failed(self, variant: str) -> bool:
        return any(
            timing["variant"] == variant and timing["failed"] not in ("", NO_TIME)
            for each in self.of_all
            for timing in each
        )


def _seconds_of_one(ctx: Context, turn: str, settings: Mapping[str, str], patience_s: float) -> float:
    import torch
    from torch import distributed as dist

    join(ctx, turn, ctx.members, settings, patience_s)
    value = torch.zeros((SIZE if ctx.device.type == "cuda" else SIZE_ELSEWHERE) // 4, device=ctx.device)
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


def seconds(timings: Timings) -> dict[str, list[float]]:
    """The times of the slowest rank per variant, without runs that failed on any rank; least disabled first."""
    found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for run in zip(*timings, strict=True):
        known = [timing["seconds"] for timing in run if timing["seconds"] is not None]
        found[run[0]["variant"]] += [max(known)] if len(known) == len(run) else []
    return found


def faster(timings: Timings) -> str | None:
    """The variant that is faster than the job's own way each time, if there is one."""
    others = seconds(timings)
    own = others.pop(AS_IT_IS)
    slowest = {variant: max(times) for variant, times in others.items() if len(times) > 1}
    if not own or not slowest:
        return None
    spread, best = max(own) / min(own), min(slowest.values())
    if best * FASTER * spread >= min(own):
        return None
    gain = min(own) - best
    return next(variant for variant, value in slowest.items() if min(own) - value >= MOST * gain)


def findings(timings: Timings) -> Iterator[Finding]:
    """Where the job's own way has worked."""
    late = dict.fromkeys(timing["variant"] for of_rank in timings for timing in of_rank if timing["failed"] == NO_TIME)
    if late:
        listed = words.some(late, last=" or ")
        text = f"an all-reduce was not timed twice {listed}: the others had taken the time for all"
        yield NOT_TIMED.not_measured(f"{text}; expected two times of each")
    if variant := faster(timings):
        times = seconds(timings)
        gain = f"{words.duration(min(times[AS_IT_IS]))} {AS_IT_IS}, and {words.duration(max(times[variant]))} {variant}"
        yield SLOW.warn(f"an all-reduce takes {gain}, expected no gain", fix=FIXES[variant])


def why_failed(timings: Mapping[int, Sequence[Timing]], *, at_first_too_late: bool = True) -> str:
    """Of the job's own way: "ranks 0-1: no answer within 30 s". `at_first_too_late`: also where its first process alone
    did not answer in time, as a cold one may."""
    why: dict[str, list[int]] = {}
    for rank, of_rank in timings.items():
        own = [each["failed"] for each in of_rank if each["variant"] == AS_IT_IS]
        if not at_first_too_late and own[0].startswith(NO_ANSWER):
            own = own[1:]
        if tried := [text for text in own if text not in ("", NO_TIME)]:
            why.setdefault(tried[-1], []).append(rank)
    return words.clauses([f"{ranges.ranks(those)}: {text}" for text, those in why.items()], 2)
