"""DDP: ten steps of training give what they give in one process.

Every rank trains a small transformer (float32, SGD with momentum, made-up tokens) three times from the same weights:
alone on the whole global batch; alone with its own part of that batch apart from the rest; and under
DistributedDataParallel on its own part. Where ranks differ alone, a device computes wrongly. Where DDP differs, the
first value that does tells what went wrong: a rank's own loss or gradient, the all-reduce, or the parameters of a rank.

The two trainings alone differ in the order of their sums only. So they tell how this hardware rounds, and how much
DDP may differ. What all ranks compute wrongly in the same way is not seen.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypedDict, TypeVar

from preflight.check import Code, Context, Finding, Job, Level, Plan, Run, Scope, ranges, vote
from preflight.train_smoke import compare
from preflight.train_smoke.compare import Curve, Furthest, Limits, Number, Point

T = TypeVar("T")


def _deadline(job: Job) -> float:
    """90 s for many ranks on few cores (33 on 2 took 45 s, half of it for imports), and a second for every 64 ranks."""
    return 90.0 + job.world_size / 64


PLAN = Plan(Scope.WORLD, Level.STANDARD, deadline_s=_deadline, estimate_s=3.0, needs=("comm.init",))

WRONG_ALONE = Code(
    "Alone, on the same batch and from the same weights, a rank trains otherwise than the others, or than before.",
    fix="Compare device, libraries and NVIDIA_TF32_OVERRIDE with the other ranks'; if they are equal, test the device.",
)
NOT_FINITE = Code(
    "A loss or a gradient is NaN or infinite.",
    fix="Run --only train.ddp again: if it is the same rank, test its device; if it is none, run --only comm.",
)
WRONG_STEP = Code(
    "Under DDP a rank's own loss or gradient is not what it is alone.",
    fix="Run --only train.ddp again: if it is the same rank, test its device's arithmetic and memory.",
)
NOT_AVERAGED = Code(
    "Under DDP the gradient is the mean over the ranks times their number, or divided by it.",
    fix="Look for what changes DDP or the all-reduce: a communication hook, a patched torch, a plugin.",
)
NOT_EXCHANGED = Code(
    "Under DDP a rank steps with its own gradient only.",
    fix="Look for what changes DDP or the all-reduce: a communication hook, no_sync(), a patched torch.",
)
WRONG_EXCHANGE = Code(
    "Under DDP the gradient is not the mean of what the ranks have sent.",
    fix="Do not train here: run --only comm.all_reduce; look at links, NICs, NCCL_ALGO, NCCL_PROTO and hooks of DDP.",
)
OUT_OF_SYNC = Code(
    "Under DDP a rank's parameters are not those of the other ranks.",
    fix="Run --only train.ddp again: if it is the same rank, test its device's memory and arithmetic.",
)


class Facts(TypedDict):
    alone: Curve
    """Of the whole batch at once."""
    in_parts: Curve
    """Of the whole batch in two parts, with the losses and own norms of this rank's."""
    spread: Furthest
    """Between the parameters of these two."""
    ddp: Curve
    first: Furthest
    """Between the gradients of the first step under DDP and alone."""
    end: Furthest
    """Between the parameters under DDP and alone."""


def measure(ctx: Context) -> Facts:
    from preflight.train_smoke import train

    group = ctx.process_group()
    ctx.doing("importing torch._dynamo")
    train.import_dynamo()
    with train.plain_arithmetic():
        ctx.doing("training alone")
        batch = train.batch_for(ctx.group_rank, len(ctx.members), ctx.device)
        alone = train.train([batch.whole], ctx.device)
        in_parts = train.train(batch.parts, ctx.device)
        ctx.doing("training under DDP")
        ddp = train.train([batch.own], ctx.device, train.ddp(group), ctx.collective)
    return {
        "alone": alone.curve,
        "in_parts": in_parts.curve,
        "spread": train.furthest_end(in_parts, alone),
        "ddp": ddp.curve,
        "first": train.furthest_gradient(ddp, alone),
        "end": train.furthest_end(ddp, alone),
    }


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    limits = compare.limits(_each(facts, _spread).values())
    unsteady = {rank: point for rank, point in _each(facts, _differs_from_itself, limits).items() if point}
    for rank, point in unsteady.items():
        text = f"alone again, with the batch in two parts, {compare.told(point, facts[rank]['spread'], limits)}"
        yield WRONG_ALONE.fail(text, step=point.step, **run.job.where(rank))
    found = [*_differ_alone({rank: one["alone"] for rank, one in facts.items() if rank not in unsteady}, run, limits)]
    yield from found
    if not unsteady and not found:
        yield from _differ_under_ddp(facts, run, limits)


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    losses = next(iter(facts.values()))["alone"]["losses"]
    apart = max(compare.way_off(one["end"]) for one in facts.values())
    went = f"loss {compare.text(losses[0], 3)} to {compare.text(losses[-1], 3)}"
    return f"{len(losses)} steps on {ranges.count(len(facts), 'rank')}: {went}, parameters as alone to {apart:.0e}"


def _each(facts: Mapping[int, Facts], make: Callable[..., T], *more: Limits) -> dict[int, T]:
    """By rank. Ranks with equal facts share one object, and what is made of it."""
    made = {id(one): make(one, *more) for one in {id(one): one for one in facts.values()}.values()}
    return {rank: made[id(one)] for rank, one in facts.items()}


# Alone


def _spread(one: Facts) -> Limits:
    """How far apart this rank's two trainings alone are."""
    return compare.spread(one["in_parts"], one["alone"], one["spread"])


def _differs_from_itself(one: Facts, limits: Limits) -> Point | None:
    """Against such a rank no vote is needed."""
    if isinstance(one["alone"]["norms"][-1], str):
        return None
    points = compare.points(one["in_parts"], one["alone"], one["spread"], limits)
    return compare.first_beyond([point for point in points if point.quantity in (*compare.WHOLE, "parameters")])


def _differ_alone(curves: Mapping[int, Curve], run: Run, limits: Limits) -> Iterator[Finding]:
    """At the first value that is not the same on all ranks, or a number on none."""
    for step, quantity in compare.places(curves.values()):
        counted = vote(compare.alike({rank: curve[quantity][step] for rank, curve in curves.items()}, limits.curves))
        what = f"alone the {'loss' if quantity == 'losses' else 'gradient norm'} at step {step} is"
        if counted.unanimous and isinstance(counted.usual, str):
            yield NOT_FINITE.fail(f"{what} {counted.usual} on all ranks, expected a number", step=step)
        elif not counted.unanimous and not counted.decided:
            yield WRONG_ALONE.fail(f"{what} {counted.sides()}, expected the same on all", step=step)
        for rank, value in counted.odd():
            yield WRONG_ALONE.fail(f"{what} {value}, expected {counted.among()}", step=step, **run.job.where(rank))
        if not counted.unanimous or isinstance(counted.usual, str):
            return


# Under DDP


def _differ_under_ddp(facts: Mapping[int, Facts], run: Run, limits: Limits) -> Iterator[Finding]:
    parting = compare.parting(_each(facts, _points, limits))
    if parting is None:
        return
    in_sync = compare.in_sync([one["end"] for one in facts.values()], limits)
    for rank in parting.first if parting.blamed else [min(parting.first)]:
        point, one = parting.first[rank], facts[rank]
        if point.quantity in compare.WHOLE:
            code, why = _meaning_of_gradient(point, one["ddp"]["own_norms"][point.step], len(run.members), limits)
        else:
            code, why = _meaning(point, in_sync=in_sync, blamed=parting.blamed)
        told = f"under DDP {compare.told(point, one['end'], limits)}{why}"
        where, victims = run.job.where(rank), parting.later
        if not parting.blamed:
            where, victims = {}, (*parting.first, *parting.later)
            told = f"{told} (rank {rank}'s; {len(parting.first):,} of {ranges.count(len(facts), 'rank')} differ there)"
        if code is OUT_OF_SYNC and isinstance(one["end"]["off"], float):
            where["parameter"] = one["end"]["parameter"]
        elif code is WRONG_EXCHANGE and point.step == 0:
            where["parameter"] = one["first"]["parameter"]
        evidence = {"measured": point.measured, "expected": point.expected, "first": one["first"], "end": one["end"]}
        yield code.fail(told, noticed_by=victims, evidence=evidence, step=point.step, **where)


def _points(one: Facts, limits: Limits) -> list[Point]:
    return compare.points(one["ddp"], one["in_parts"], one["end"], limits)


def _meaning(point: Point, *, in_sync: bool, blamed: bool) -> tuple[Code, str]:
    """Of a loss, an own gradient or parameters that are the first to differ."""
    if isinstance(point.measured, str):
        return NOT_FINITE, ""
    if not in_sync:
        return OUT_OF_SYNC, ": the ranks no longer have the same parameters"
    if point.quantity == "parameters" or (point.quantity == "losses" and point.step > 0 and not blamed):
        return WRONG_EXCHANGE, ": all ranks have taken the same wrong step"
    return WRONG_STEP, ""


def _meaning_of_gradient(point: Point, own_norm: Number, ranks: int, limits: Limits) -> tuple[Code, str]:
    """Of the gradient after the all-reduce, where it is the first to differ."""
    if isinstance(point.measured, str) or isinstance(point.expected, str):
        return NOT_FINITE, f"; the norm of its own gradient is {compare.text(own_norm)}"
    if ranks > 1 and point.quantity == "norms":
        ratio = point.measured / point.expected
        if compare.difference(point.measured, own_norm) <= limits.curves:
            return NOT_EXCHANGED, ", which is the norm of its own gradient"
        if abs(ratio / ranks - 1) < 0.01:
            return NOT_AVERAGED, f": {ranks} times as much, so it is the sum over the ranks and not their mean"
        if abs(ratio * ranks - 1) < 0.01:
            return NOT_AVERAGED, f": 1/{ranks} of it, so it was divided by the number of ranks twice"
    return WRONG_EXCHANGE, ", though every rank's own gradient is right"
