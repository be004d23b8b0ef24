"""Ranks that compute late, told from those that wait for them."""

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from preflight.check import Action, Code, Finding, Job, Run, option, ranges, words
from preflight.checks.train.speed import causes
from preflight.checks.train.speed.facts import AllFacts

if TYPE_CHECKING:
    from preflight.train_smoke.speed.training import TimedSteps

LATE = option(
    float, None, "warn of a rank that computes longer than the others by this share, in nearly every step; unset: 0.5, "
    "on GPUs 0.2",
)  # fmt: skip
LATE_ON = {"gloo": 0.5, "nccl": 0.2}
"""By the backend. On two cores with one or two busy loops beside 2 to 4 ranks their medians differ by 1.35 at most,
without what they wait for a core; GPUs of one model by some percent."""
LATE_S = 0.01
"""Seconds a step, at least: less is not worth a finding."""
EACH_STEP = 0.8
"""The share of the steps in which it must be late: a machine with other work slows a rank in some."""
WAITED = 0.5
"""Of what the rank takes longer, the others must have waited at least so much."""

STARVED, TIMES_LESS, FED = 0.75, 3.0, 0.25
"""A rank that waits for a core for so much of its time, and gets so many times less of one than the median rank, which
gets so much of one at least. Where two cores had a load of 10 all ranks got about a fifth of one, and none half of what
another got; where it was 40 they got 0 to 9%, by chance."""
TIMES_LONGER = 4.0
"""Where all wait for cores, a rank that takes so many times longer than the median rank in nearly every step of every
round has less of one than they: a scheduler is fair in the long run. At a load of 15 on two cores the medians of three
ranks differed by 1.15 at most."""

STRAGGLER = Code(
    "A rank computes longer than the others in each step, and they wait for it.",
    fix="On its node: top, nvidia-smi -q -d PERFORMANCE,CLOCK; look for other processes, a throttled GPU or CPU, fewer "
    "cores, a slow disk under the loader; py-spy dump shows where its time goes.",
    action=Action.NONE,
    see=("node.limits", "node.leftovers", "node.kernel", "gpu.health", "gpu.pcie", "gpu.compute", "comm.all_reduce"),
)
OF_PHASE = {
    "data": "in fetching its batch",
    "forward": "in forward",
    "backward": "in backward",
    "optimizer": "in the optimizer's step",
}


class Late(NamedTuple):
    rank: int
    starved: bool
    """It waits for a core; else it computes longer itself."""
    phase: str
    own: float
    """Seconds a step that it computes, also waiting for a core."""
    usual: float
    """Of the others."""
    in_phase: tuple[float, float]
    """Of the phase in which it is late: its own, and the others' seconds."""
    waited: float
    """Seconds a step that the others wait."""
    step: float


def least_share(chosen: float | None, job: Job) -> float:
    """`chosen`: the option `LATE`."""
    return LATE_ON.get(job.backend, LATE_ON["gloo"]) if chosen is None else chosen


def core_share(own: "TimedSteps") -> float:
    """Of the time in which the rank computes: how much it waits for a core."""
    whole = sum(own["phases"][phase] for phase in OF_PHASE)
    return sum(own["core_wait"][phase] for phase in OF_PHASE) / whole if whole else 0.0


def is_suspicious(
    shares: Sequence[float], own: Sequence[Sequence[float]], starved: Sequence[Sequence[float]], late: float
) -> bool:
    """Whether any rank looks late, by each rank's `core_share`, what its steps took and what they waited for a core."""
    if _computing(dict(enumerate(own)), late) or _starved(dict(enumerate(shares))):
        return True
    return bool(_far_longer({rank: _gross(*both) for rank, both in enumerate(zip(own, starved, strict=True))}))


def _computing(own: Mapping[int, Sequence[float]], late: float) -> list[int]:
    """Those that compute longer themselves. More than half are never late: the (lower) median is what is usual."""
    if len(own) < 2:
        return []
    usual = [statistics.median_low(steps) for steps in zip(*own.values(), strict=False)]
    least = max(LATE_S, late * statistics.median(usual))
    return [rank for rank, steps in own.items() if _is_late(steps, usual, least)]


def _is_late(own: Sequence[float], usual: Sequence[float], least: float) -> bool:
    late = [mine - others >= least for mine, others in zip(own, usual, strict=False)]
    return sum(late) >= EACH_STEP * len(late)


def _starved(shares: Mapping[int, float]) -> list[int]:
    """Those that wait for a core most of their time, and get far less of one than the others."""
    if len(shares) < 2:
        return []
    got = 1 - statistics.median_low(shares.values())
    if got < FED:
        return []
    return [rank for rank, share in shares.items() if share >= STARVED and (1 - share) * TIMES_LESS <= got]


def _gross(own: Sequence[float], starved: Sequence[float]) -> list[float]:
    """What each step took to compute, also waiting for a core."""
    return [sum(both) for both in zip(own, starved, strict=False)]


def _far_longer(gross: Mapping[int, Sequence[float]]) -> list[int]:
    """Those that take TIMES_LONGER in nearly every step, where none computes longer itself."""
    if len(gross) < 2:
        return []
    usual = [statistics.median_low(steps) for steps in zip(*gross.values(), strict=False)]
    least = max(LATE_S, (TIMES_LONGER - 1) * statistics.median(usual))
    return [rank for rank, steps in gross.items() if _is_late(steps, usual, least)]


def late(rounds: "Mapping[int, Sequence[TimedSteps]]", share: float) -> list[Late]:
    """Who is late in every round, and is waited for."""
    of_rounds: list[dict[int, Late]] = []
    for number in range(min(map(len, rounds.values()), default=0)):
        every = {rank: own[number] for rank, own in rounds.items()}
        of_rounds.append({found.rank: found for found in _late(every, share)})
    last = of_rounds[-1] if of_rounds else {}
    return [found for rank, found in last.items() if all(rank in its for its in of_rounds)]


def _late(every: "Mapping[int, TimedSteps]", share: float) -> Iterator[Late]:
    computing = _computing({rank: own["own"] for rank, own in every.items()}, share)
    shares = {rank: core_share(own) for rank, own in every.items()}
    gross = {rank: _gross(own["own"], own["starved"]) for rank, own in every.items()}
    # A rank that stands still wants no core, and the others seem to starve.
    starved = [] if computing else sorted({*_starved(shares), *_far_longer(gross)})
    on_time = [own for rank, own in every.items() if rank not in (*computing, *starved)]
    if not on_time:
        return
    waited = statistics.median_low(own["phases"]["wait"] for own in on_time)
    for rank in (*computing, *starved):
        net = rank in computing
        usual = {phase: statistics.median_low(_seconds(own, phase, net) for own in on_time) for phase in OF_PHASE}
        own = {phase: _seconds(every[rank], phase, net) for phase in OF_PHASE}
        phase = max(OF_PHASE, key=lambda name: own[name] - usual[name])
        longer = sum(own.values()) - sum(usual.values())
        if waited >= WAITED * longer:
            yield Late(
                rank, not net, phase, sum(own.values()), sum(usual.values()), (own[phase], usual[phase]), waited,
                statistics.median(every[rank]["steps"]),
            )  # fmt: skip


def _seconds(own: "TimedSteps", phase: str, net: bool) -> float:
    """`net`: without what the rank waited for a core."""
    return own["phases"][phase] - (own["core_wait"][phase] if net else 0.0)


def judge(
    rounds: "Mapping[int, Sequence[TimedSteps]]", facts: AllFacts, run: Run, name: str, few_cores: Collection[int] = ()
) -> Iterator[Finding]:
    """`name`: of the strategy. `few_cores`: ranks of which is told that they have too few cores to themselves."""
    every = late(rounds, least_share(run[LATE], run.job))
    found = [its for its in every if not (its.starved and its.rank in few_cores)]
    names = {straggler.rank for straggler in found}
    others = tuple(rank for rank in rounds if rank not in names)
    for straggler in found:
        evidence = {
            "phase": straggler.phase,
            "share": round(_lost(straggler), 3),
            "starved": straggler.starved,
            "ms": {phase: round(seconds * 1e3, 2) for phase, seconds in rounds[straggler.rank][-1]["phases"].items()},
            "rounds": len(rounds[straggler.rank]),
        }
        why = causes.cause(straggler.rank, facts, run, name)
        evidence |= why.evidence if why else {}
        text = _message(straggler, name, others, why)
        fix = why.fix if why else ""
        yield STRAGGLER.warn(text, noticed_by=others, evidence=evidence, fix=fix, **run.job.where(straggler.rank))


def _lost(late: Late) -> float:
    """The share of a step in which the others wait for it."""
    return min(1.0, (late.own - late.usual) / late.step)


def _message(late: Late, name: str, others: Sequence[int], why: causes.LateCause | None) -> str:
    own, usual, waited = map(words.duration, (late.own, late.usual, late.waited))
    here, there = map(words.duration, late.in_phase)
    quota = why is not None and why.evidence["cause"] == "quota"
    core = ", most of it waiting for a CPU core that other processes use" if late.starved and not quota else ""
    wait = "waits" if len(others) == 1 else "wait"
    return (
        f"under {name} it computes {own} per step{core}, the others {usual}, expected about the same; it is late "
        f"{OF_PHASE[late.phase]}: {here}, the others {there}; {ranges.ranks(others)} {wait} {waited} for it, and "
        f"{_lost(late):.0%} of each step is lost{f'; {why.text}' if why else ''}"
    )
