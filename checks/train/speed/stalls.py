"""Ranks that stand still now and then, as in every fifth step: the medians of their phases do not show it.

A rank's step is held against what the others compute in the same step, without waiting for a core, so a pause that all
make together is none of this. It is named where the others waited for it, in the same phase, in every round.
"""

import itertools
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from preflight.check import Action, Code, Finding, Run, ranges, words
from preflight.checks.train.speed.stragglers import EACH_STEP, OF_PHASE, WAITED

if TYPE_CHECKING:
    from preflight.train_smoke.speed.training import TimedSteps

LEAST_S, LEAST_TIMES = 0.05, 1.0
"""A pause takes so many seconds, and so many times what a rank computes in a step. At a load of 15 on two cores what a
step takes beyond its waits for a core differs by 3 ms."""
SHARE = 0.1
"""Of the time of all steps that is lost to pauses: less is not worth a finding."""

STALLS = Code(
    "A rank stands still in some steps, while the others wait for it.",
    fix="See what this rank alone does every so many steps: logging, a checkpoint, an evaluation, Python's garbage "
    "collection (gc.disable(), and gc.collect() on all ranks in the same step), a loader whose workers fall behind. "
    "py-spy dump --pid PID while it stands still shows where. What has to be done should be done by all ranks in the "
    "same step.",
    action=Action.NONE,
    see=("node.kernel", "node.storage", "gpu.health", "gpu.released", "data.sampler"),
)


class Stalls(NamedTuple):
    """Of one rank, in one phase, over all rounds."""

    rank: int
    phase: str
    places: Sequence[int]
    """The steps, counted on over the rounds."""
    steps: int
    """Of all rounds."""
    pause: float
    """Seconds of the median one, beyond what the others take."""
    share: float
    """Of the time of all steps."""


def is_suspicious(own: Sequence[Sequence[float]], starved: Sequence[Sequence[float]]) -> bool:
    """Whether any rank's pauses take more than SHARE of its time, by what each rank's steps took and what they waited
    for a core."""
    usual = [statistics.median_low(steps) for steps in zip(*own, strict=False)]
    for steps, waits in zip(own, starved, strict=True):
        longer = [mine - other for mine, other in zip(steps, usual, strict=False)]
        paused = sum(seconds for seconds in longer if seconds >= _least(usual))
        if paused > 0 and paused >= SHARE * (sum(steps) + sum(waits)):
            return True
    return False


def _least(usual: Sequence[float]) -> float:
    """Seconds of a pause. `usual`: what ranks compute, by step."""
    return max(LEAST_S, LEAST_TIMES * statistics.median(usual))


def found(rounds: "Mapping[int, Sequence[TimedSteps]]", known: Collection[int]) -> Iterator[Stalls]:
    """`known`: ranks of which is told already that others wait for them."""
    numbers = range(min(map(len, rounds.values()), default=0))
    of_rounds = [_pauses({rank: own[number] for rank, own in rounds.items()}) for number in numbers]
    for rank, phase in of_rounds[-1] if of_rounds else ():
        each = [pauses.get((rank, phase), {}) for pauses in of_rounds]
        stalls = _over_rounds(rank, phase, each, [own["steps"] for own in rounds[rank]])
        is_now_and_then = 0 < len(stalls.places) < EACH_STEP * stalls.steps
        if rank not in known and all(each) and is_now_and_then and stalls.share >= SHARE:
            yield stalls


def _over_rounds(
    rank: int, phase: str, pauses: Sequence[Mapping[int, float]], steps: Sequence[Sequence[float]]
) -> Stalls:
    begins = itertools.accumulate(map(len, steps), initial=0)
    places = [begin + step for begin, own in zip(begins, pauses, strict=False) for step in sorted(own)]
    seconds = [each for own in pauses for each in own.values()]
    whole = sum(map(sum, steps))
    pause = statistics.median(seconds) if seconds else 0.0
    return Stalls(rank, phase, places, sum(map(len, steps)), pause, min(1.0, sum(seconds) / whole) if whole else 0.0)


def _pauses(every: "Mapping[int, TimedSteps]") -> dict[tuple[int, str], dict[int, float]]:
    """By rank and phase, for each step in which it paused and was waited for: the seconds beyond the others'."""
    pauses: dict[tuple[int, str], dict[int, float]] = {}
    if len(every) < 2:
        return pauses
    usual = [statistics.median_low(steps) for steps in zip(*(own["own"] for own in every.values()), strict=False)]
    for rank, own in every.items():
        for step, seconds in enumerate(own["own"][: len(usual)]):
            if seconds - usual[step] >= _least(usual):
                others = [other for of, other in every.items() if of != rank]
                phase, longer = _phase(own, others, step)
                if _waited(others, step, phase) >= WAITED * longer and longer >= LEAST_S:
                    pauses.setdefault((rank, phase), {})[step] = longer
    return pauses


def _phase(own: "TimedSteps", others: "Sequence[TimedSteps]", step: int) -> tuple[str, float]:
    """In which the rank took longest beyond the others, in this step."""
    longer = {
        phase: own["each"][phase][step] - statistics.median_low(other["each"][phase][step] for other in others)
        for phase in OF_PHASE
    }
    phase = max(longer, key=lambda name: longer[name])
    return phase, longer[phase]


def _waited(others: "Sequence[TimedSteps]", step: int, phase: str) -> float:
    """Seconds of the middle one. For a pause in the optimizer, which comes last, they wait in the next step; of the
    round's last one nothing is seen of it."""
    at = step + (phase == "optimizer")
    return statistics.median_low(
        waits[at] if at < len(waits := other["each"]["wait"]) else float("inf") for other in others
    )


def judge(stalls: Sequence[Stalls], ranks: Sequence[int], run: Run, name: str) -> Iterator[Finding]:
    """`ranks`: all that were timed. `name`: of the strategy."""
    for stall in stalls:
        others = [rank for rank in ranks if rank != stall.rank]
        where, pause = OF_PHASE[stall.phase], words.duration(stall.pause)
        who_waits = f"{ranges.ranks(others)} {'waits' if len(others) == 1 else 'wait'}"
        text = (
            f"under {name} it stands still {where} {how_often(stall)}, {pause} each, expected as long as the others "
            f"take; {who_waits} for it, and {stall.share:.0%} of the time is lost"
        )
        evidence = {
            "phase": stall.phase, "steps": stall.places, "of_steps": stall.steps, "pause_s": round(stall.pause, 3),
            "share": round(stall.share, 3),
        }  # fmt: skip
        yield STALLS.warn(text, noticed_by=others, evidence=evidence, **run.job.where(stall.rank))


def how_often(stalls: Stalls) -> str:
    """ "every 5 steps (7 of 36)", "in 4 of 36 steps"."""
    gaps = {after - before for before, after in itertools.pairwise(stalls.places)}
    count = f"{len(stalls.places)} of {stalls.steps}"
    is_regular = len(gaps) == 1 and len(stalls.places) > 2
    return f"every {gaps.pop()} steps ({count})" if is_regular else f"in {count} steps"
