"""Alone: every rank trains a small model by itself, twice, and gets the same result both times and on all ranks.

Each rank trains the same transformer (float32, SGD with momentum, synthetic tokens, 8 steps) in its own process, twice
on the whole global batch and twice with the batch in parts, as the strategies will be compared with it. Compares bit by
bit: every loss and gradient norm, the first gradient, the weights and the optimizer's state.

A rank that differs from itself computes wrongly at times. Ranks of the same kind (device, libraries, threads, variables
that change the arithmetic; on CPUs also the node) must agree on the whole batch to the last bit. Ranks of different
kinds only need to agree within a multiple of this hardware's own rounding effects (the limits of train.ddp); so do all
if torch says that an operation has no deterministic form. What all ranks compute wrongly in the same way goes
unnoticed.
"""

import json
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from preflight.check import (
    Action,
    Code,
    Context,
    Finding,
    Job,
    Level,
    Plan,
    Run,
    Scope,
    Severity,
    Vote,
    plots,
    ranges,
    vote,
)
from preflight.checks.train.shared.parity import divergence
from preflight.train_smoke.trainer import bit_equality, compare
from preflight.train_smoke.trainer.bit_equality import Bits
from preflight.train_smoke.trainer.compare import Limits, Spread

if TYPE_CHECKING:
    from preflight.train_smoke.trainer.repeated import Facts


def _deadline(job: Job) -> float:
    """120 s for many ranks on few cores (33 on 2: about 70 s of work), plus a second per 64 ranks."""
    return 120.0 + job.world_size / 64


PLAN = Plan(Scope.RANK, Level.STANDARD, deadline_s=_deadline, estimate_s=2.0)

_TEST_IT = "Run --only train.alone again: if it is the same rank, drain its node and test device and memory."
DIFFERS_FROM_ITSELF = Code(
    "A rank trains twice alone, from the same weights on the same batch, but gets different bits.",
    fix=f"Do not train here. {_TEST_IT}",
    action=Action.REPLACE,
    see=("gpu.compute", "gpu.health", "node.kernel"),
)
WRONG_ALONE = Code(
    "A rank gets different results than the others from identical weights and data, without any communication.",
    fix=f"Do not train here. {_TEST_IT} If not, compare libraries and variables: env.software, env.variables.",
    action=Action.REPLACE,
    see=("gpu.compute", "gpu.health", "node.kernel", "env.software", "env.variables"),
)
NOT_FINITE = Code(
    "In training alone, a loss or gradient is NaN or infinite.",
    fix=f"On one rank: {_TEST_IT} On all: look at torch, its libraries, and what patches them.",
    action=Action.NONE,
    see=("gpu.compute", "gpu.health", "node.kernel"),
)
DIFFERENT_BITS = Code(
    "Within the limits, several ranks of a kind get different bits than the rest, or most differ each time.",
    fix="Compare libraries and settings of the nodes: env.software, env.variables, LD_LIBRARY_PATH, LD_PRELOAD.",
    see=("env.software", "env.variables"),
)

MOST_CURVES = 5
"""The most single ranks in the plot."""
IN_WORDS = {"parts": "with the batch in parts", "whole": "on the whole batch"}


def measure(ctx: Context) -> "Facts":
    from preflight.train_smoke.trainer import task

    ctx.doing("importing torch._dynamo")
    task.import_dynamo()
    from preflight.train_smoke.trainer import repeated  # it imports torch.distributed.tensor

    return repeated.run(task.built_in(ctx.group_rank, len(ctx.members), ctx.device), ctx.doing)


def judge(facts: Mapping[int, "Facts"], run: Run) -> Iterator[Finding]:
    """Each rank is reported once, with the strongest evidence."""
    limits = compare.limits(own["spread"] for own in facts.values())
    rest = dict(facts)
    for signs in (_not_repeated, _not_finite, _other_bits, _far_from_others, _far_in_parts):
        for about, finding in [*signs(rest, run, limits)]:
            if finding.severity is Severity.FAIL:
                rest = {rank: own for rank, own in rest.items() if rank not in about}
            yield finding


def summarize(facts: Mapping[int, "Facts"], _run: Run) -> str:
    losses = next(iter(facts.values()))["whole"]["curve"]["losses"]
    went = f"loss {compare.text(losses[0], 3)} to {compare.text(losses[-1], 3)} in {ranges.count(len(losses), 'step')}"
    who = ranges.count(len(facts), "rank")
    if differing := [rank for rank, own in facts.items() if own["unlike"]]:
        return f"{len(differing):,} of {who} did not get the same bits twice: {went}"
    who += " repeats itself" if len(facts) == 1 else " repeat themselves"
    if len(facts) > 1 and len({*divergence.each(facts, _bits).values()}) == 1:
        who += " and each other"
    return f"{who} to the last bit: {went}"


def plot(facts: Mapping[int, "Facts"], run: Run) -> Iterator[plots.Plot]:
    """The band of all ranks, and the curves of those that failures name."""
    named = [finding.where["rank"] for finding in judge(facts, run)
             if finding.severity is Severity.FAIL and "rank" in finding.where]  # fmt: skip
    losses = {rank: own["whole"]["curve"]["losses"] for rank, own in facts.items()}
    band = []
    for step in range(max(map(len, losses.values()))):
        values = [value for its in losses.values() for value in its[step : step + 1] if not isinstance(value, str)]
        band += [(step, min(values), statistics.median(values), max(values))] if values else []
    series = [plots.Series("all ranks" if len(facts) > 1 else "this rank", band)]
    for rank in [rank for rank in dict.fromkeys(named) if rank in losses][:MOST_CURVES]:
        points = [(step, value) for step, value in enumerate(losses[rank]) if not isinstance(value, str)]
        series.append(plots.Series(f"rank {rank}", points))
    yield plots.Chart("loss by step, alone on the whole batch", "step", "loss", series)


Found = Iterator[tuple[Collection[int], Finding]]
"""(the ranks it is about, finding)."""


def _bits(own: "Facts") -> str:
    return json.dumps(own["whole"], sort_keys=True)


# Against itself


def _not_repeated(facts: Mapping[int, "Facts"], run: Run, limits: Limits) -> Found:
    differing = {rank: own for rank, own in facts.items() if own["unlike"]}
    near = [rank for rank, own in differing.items() if _is_near(own["unlike"].values(), limits)]
    quiet = {rank for rank in near if facts[rank]["unordered"]}  # torch says that this is to be expected
    if len(facts) > 1 and 2 * len(near) > len(facts) and set(near) - quiet:
        share = f"{len(near):,} of {ranges.count(len(facts), 'rank')}"
        text = f"trained twice alone, {share} got different bits (within the limits), expected the same"
        text += ": the libraries add in varying order, or most are faulty"
        yield near, DIFFERENT_BITS.warn(text, noticed_by=tuple(near))
        quiet = {*near}
    for rank in [rank for rank in differing if rank not in quiet]:
        training, twice = next(iter(differing[rank]["unlike"].items()))
        first = bit_equality.first_difference(twice["again"], twice["once"])
        assert first is not None, "equal trainings are not in the facts"
        was = f"{first.what} {first.measured} the second time and {first.expected} the first"
        text = f"trained twice alone {IN_WORDS[training]}, {was}, expected the same bits"
        where = {"step": first.step, "parameter": first.parameter, **run.job.where(rank)}
        evidence = {"apart": twice["apart"], "kind": differing[rank]["kind"]}
        yield [rank], DIFFERS_FROM_ITSELF.fail(text, evidence=evidence, **where)


def _is_near(twice: Iterable[bit_equality.TrainedTwice], limits: Limits) -> bool:
    return all(over <= 1 for own in twice for _, over in _over(own["apart"], limits))


def _over(spread: Spread, limits: Limits) -> list[tuple[str, float]]:
    """(name, spread divided by its limit) for each kind."""
    measured = {
        "curves": spread["curves"],
        "gradient": spread["gradient"],
        "end": spread["end"],
        "state": spread["state"],
    }
    return [
        (name, math.inf if isinstance(value, str) else value / getattr(limits, name))
        for name, value in measured.items()
    ]


def _not_finite(facts: Mapping[int, "Facts"], run: Run, _: Limits) -> Found:
    first = {rank: found for rank, found in divergence.each(facts, _first_text).items() if found}
    if len(first) == len(facts) > 1:
        step, words, value = next(iter(first.values()))
        yield first, NOT_FINITE.fail(f"alone {words} {value} on all ranks, expected a number", step=step)
        return
    sound = f" as on {len(facts) - len(first):,} of {ranges.count(len(facts), 'rank')}" if len(facts) > 1 else ""
    for rank, (step, words, value) in first.items():
        text = f"alone {words} {value}, expected a number{sound}"
        yield [rank], NOT_FINITE.fail(text, step=step, **run.job.where(rank))


def _first_text(own: "Facts") -> tuple[int, str, str] | None:
    """(step, what it is, the value that is not a number)."""
    curve = own["whole"]["curve"]
    for step in range(len(curve["losses"])):
        for quantity, words in bit_equality.WORDS.items():
            value = curve[quantity][step]
            if isinstance(value, str):
                return step, f"{words} at step {step} is", value
    return None


# Against the others of its kind, to the last bit


def _other_bits(facts: Mapping[int, "Facts"], run: Run, limits: Limits) -> Found:
    kinds: dict[str, dict[int, Facts]] = {}
    for rank, own in facts.items():
        if not own["unordered"] and not own["unlike"]:
            kinds.setdefault(_kind(rank, own, run), {})[rank] = own
    for alike in kinds.values():
        votes = vote(divergence.each(alike, _bits))
        if not votes.unanimous and votes.decided:
            yield from _odd(alike, votes, run, limits)
        elif not votes.unanimous:
            yield [*alike], _tie(alike, votes, limits)


def _kind(rank: int, own: "Facts", run: Run) -> str:
    """What ranks must share to get equal bits. For CPUs also caches and cores, which libraries consider."""
    return json.dumps(own["kind"]) + (run.job.node_of(rank).node if own["kind"]["type"] == "cpu" else "")


def _odd(alike: Mapping[int, "Facts"], votes: Vote[str], run: Run, limits: Limits) -> Found:
    usual = alike[votes.ranks_of[votes.usual][0]]
    for rank, own in votes.odd():
        bits = alike[rank]
        first = bit_equality.first_difference(bits["whole"], usual["whole"])
        assert first is not None, "a rank with the usual bits is not odd"
        text = f"alone {first.what} {first.measured}, expected {first.expected} as on {votes.share()} of its kind"
        where = {"step": first.step, "parameter": first.parameter, **run.job.where(rank)}
        apart = _apart(bits["whole"], usual["whole"])
        # two faulty devices hardly make the same small mistake
        say = DIFFERENT_BITS.warn if len(votes.ranks_of[own]) > 1 and apart <= limits.curves else WRONG_ALONE.fail
        yield [rank], say(text, evidence={"apart": compare.as_json(apart), "kind": bits["kind"]}, **where)


def _tie(alike: Mapping[int, "Facts"], votes: Vote[str], limits: Limits) -> Finding:
    """No bits have a majority: names no rank, unless a single one of many differs."""
    sides = [(ranks, alike[ranks[0]]["whole"]) for ranks in votes.ranks_of.values()]
    usual = sides[0][1]
    found = [(ranks, bit_equality.first_difference(other, usual), _apart(other, usual)) for ranks, other in sides[1:]]
    ranks, first, _ = min(found, key=lambda side: side[1].place if side[1] else math.inf)
    assert first is not None, "the sides of a vote differ"
    text = f"alone {first.what} {first.expected} on {ranges.ranks(sides[0][0])}, {first.measured} on "
    text += f"{ranges.ranks(ranks)}{f', and different again on {len(found) - 1:,} more' if len(found) > 1 else ''}"
    is_small = all(apart <= limits.curves for *_, apart in found) and all(len(ranks) > 1 for ranks, _ in sides)
    say = DIFFERENT_BITS.warn if is_small else WRONG_ALONE.fail
    return say(f"{text}, expected the same on all", step=first.step, parameter=first.parameter)


def _apart(bits: Bits, other: Bits) -> float:
    """The largest relative difference of their curves."""
    curves, largest = (bits["curve"], other["curve"]), 0.0
    for quantity in bit_equality.WORDS:
        scales = curves[1][compare.SCALES.get(quantity, quantity)]
        for values in zip(curves[0][quantity], curves[1][quantity], scales, strict=False):
            largest = max(largest, compare.difference(*values))
    return largest


# Within the limits


def _far_from_others(facts: Mapping[int, "Facts"], run: Run, limits: Limits) -> Found:
    """Compares the first value that is not the same on all ranks, of any kind."""
    curves = {rank: own["whole"]["curve"] for rank, own in facts.items()}
    for step, quantity in compare.places(curves.values()):
        values = {rank: curve[quantity][step] for rank, curve in curves.items()}
        counted = vote(compare.alike(values, limits.curves))
        if counted.unanimous:
            continue
        what = f"alone {bit_equality.WORDS[quantity]} at step {step} is"
        if not counted.decided:
            yield [*facts], WRONG_ALONE.fail(f"{what} {counted.sides()}, expected the same on all", step=step)
        for rank, value in counted.odd():
            evidence = {"kind": facts[rank]["kind"], "of the others": facts[counted.ranks_of[counted.usual][0]]["kind"]}
            text = f"{what} {value}, expected {counted.among()}"
            yield [rank], WRONG_ALONE.fail(text, evidence=evidence, step=step, **run.job.where(rank))
        return


def _far_in_parts(facts: Mapping[int, "Facts"], run: Run, limits: Limits) -> Found:
    """Ranks that are right on the whole batch, but not with the batch in parts."""
    words = {
        "curves": "the gradient norm is", "gradient": "the first gradient is", "end": "the weights are",
        "state": "the momentum is",
    }  # fmt: skip
    for rank, own in facts.items():
        name, over = max(_over(own["spread"], limits), key=lambda pair: pair[1])
        if over > 1:
            most = getattr(limits, name)
            text = f"alone, with the batch in parts, {words[name]} {over * most:.1e} away from the training on the"
            text += f" whole batch, expected at most {most:.0e}"
            yield [rank], WRONG_ALONE.fail(text, evidence={"spread": own["spread"]}, **run.job.where(rank))
