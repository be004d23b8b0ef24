"""All ranks wait for their loaders: the job is as fast as its data come."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from preflight.check import Code, Finding, words
from preflight.checks.train.speed.stragglers import LATE_S

if TYPE_CHECKING:
    from preflight.train_smoke.speed.training import TimedSteps

SHARE = 0.25
"""Of the time of a step, on the middle rank at least."""

DATA_BOUND = Code(
    "The ranks wait for their loaders in a large part of their steps.",
    fix="Let the loader work beside the training: DataLoader(num_workers=..., persistent_workers=True, "
    "prefetch_factor=..., pin_memory=True), with no more workers a rank than it has cores (node.limits). If that is so "
    "already, decode and augment less or beforehand, and read larger files from nearer storage: py-spy dump --pid PID "
    "of a worker shows what it waits for.",
    see=("data.sampler", "node.storage", "node.limits"),
)


class DataWait(NamedTuple):
    """Mean seconds a step of the middle rank, without waiting for a core. Where workers fetch ahead, some batches come
    at once."""

    data: float
    step: float

    @property
    def share(self) -> float:
        return self.data / self.step if self.step else 0.0


def waits(rounds: "Mapping[int, Sequence[TimedSteps]]") -> DataWait | None:
    """Without steps in which a loader began anew: a real epoch is longer, and its workers start once. None where these
    are all."""
    every = sorted((wait for own in rounds.values() if (wait := _of_rank(own[-1]))), key=lambda wait: wait.share)
    return every[(len(every) - 1) // 2] if every else None


def _of_rank(own: "TimedSteps") -> DataWait | None:
    numbers = [number for number in range(len(own["steps"])) if number not in own["begun"]]
    if not numbers:
        return None
    data = [own["each"]["data"][number] for number in numbers]
    steps = [own["steps"][number] - own["starved"][number] for number in numbers]
    return DataWait(statistics.fmean(data), statistics.fmean(steps))


def judge(rounds: "Mapping[int, Sequence[TimedSteps]]", name: str) -> Iterator[Finding]:
    """`name`: of the strategy."""
    wait = waits(rounds)
    if wait is None or wait.data < LATE_S or wait.share < SHARE:
        return
    data, step, rest = map(words.duration, (wait.data, wait.step, wait.step - wait.data))
    text = (
        f"under {name} the ranks wait {data} of each step of {step} for their next batch ({wait.share:.0%}), expected "
        f"less than {SHARE:.0%}; a step would take {rest} if the batch were there"
    )
    evidence = {"data_s": round(wait.data, 4), "step_s": round(wait.step, 4), "share": round(wait.share, 3)}
    yield DATA_BOUND.warn(text, evidence=evidence)
