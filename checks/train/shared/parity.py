"""What the strategies' checks share: which variants run, whether they train as the training alone does, and a line.

A variant is held against the training alone of its recipe, on the same rank and so the same hardware. How far they may
be apart is measured: 8 times as far as this hardware's own roundings take the training alone (see compare.py), of the
middle rank; in float32 at least 2e-5.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from preflight.check import Code, Context, Finding, Level, Option, Plan, Run, Scope, Skip, option, ranges
from preflight.checks.train.shared import diagnosis, divergence, expected
from preflight.checks.train.shared.divergence import Pair
from preflight.checks.train.shared.variant import Case, Meaning
from preflight.train_smoke import compare
from preflight.train_smoke.compare import Limits, Spread
from preflight.train_smoke.names import PLAIN, VARIANTS

if TYPE_CHECKING:
    from preflight.train_smoke.strategies import Compared, Facts

NOT_FINITE = Code(
    "A loss or a gradient is NaN or infinite.",
    fix="Run the check again: if it is the same rank, test its device; if it is none, run --only comm.",
)
WRONG_START = Code(
    "Under the strategy training starts from other weights than alone.",
    fix="Look for what loads or draws weights while the model is wrapped; run the check again: if it is the same rank, "
    "test its device's memory.",
)
OTHER_DATA = Code(
    "Ranks train on another rank's part of the batch.",
    fix="Look for what hands out the data: a DistributedSampler with the wrong rank, a patched DataLoader, one seed.",
)
WRONG_STEP = Code(
    "Under the strategy a rank's own loss or gradient is not what it is alone.",
    fix="Run the check again: if it is the same rank, test its device's arithmetic and memory.",
)
NOT_AVERAGED = Code(
    "Under the strategy the gradient is the mean over the ranks times their number, or divided by it.",
    fix="Look for what changes the strategy or its collectives: a communication hook, a patched torch, a plugin.",
)
NOT_EXCHANGED = Code(
    "Under the strategy a rank steps with its own gradient only.",
    fix="Look for what changes the strategy or its collectives: a communication hook, no_sync(), a patched torch.",
)
WRONG_EXCHANGE = Code(
    "Under the strategy the gradient is not the mean of what the ranks have sent.",
    fix="Do not train here: run --only comm; look at links, NICs, NCCL_ALGO, NCCL_PROTO and communication hooks.",
)
WRONG_CLIP = Code(
    "The gradient is clipped before the ranks have exchanged it, or not by its norm over all ranks.",
    fix="Clip once a step, after backward: clip_grad_norm_ of torch.nn.utils for DDP and FSDP2, of the model for FSDP.",
)
OUT_OF_SYNC = Code(
    "Under the strategy a rank's parameters are not those of the other ranks.",
    fix="Run the check again: if it is the same rank, test its device's memory and arithmetic.",
)
DRIFT = Code(
    "Under the strategy all ranks drift off from the training alone by more than roundings do.",
    fix="Look for what rounds more coarsely under the strategy only: a compressing hook, bfloat16 in reductions, TF32.",
)
UNSTEADY = Code(
    "Alone the training is too unsteady for a strategy to be held against it.",
    fix="Nothing was shown to be wrong, and little to be right. Look for what jumps when a number "
    "moves by one rounding (top-k, a threshold, BatchNorm over few values); float64 or more rows help.",
)
CODES = {name.lower(): code for name, code in tuple(globals().items()) if isinstance(code, Code)}

TITLES = {"ddp": "DDP", "fsdp": "FSDP", "fsdp2": "FSDP2"}
ALL = "all"
NAMED = 52
"""Characters of a summary in which variants are named, each; more are counted."""


LIKE_ALONE: tuple[compare.Quantity, ...] = ("losses", "norms")
"""What the summary compares."""


# What runs


def plan(level: Level, *, deadline_s: float, estimate_s: float) -> Plan:
    """Of a strategy's check. `deadline_s`: for all variants of many ranks on few cores; it grows by a second for every
    64 ranks."""
    return Plan(
        Scope.WORLD,
        level,
        deadline_s=lambda job: deadline_s + job.world_size / 64,
        estimate_s=estimate_s,
        needs=("comm.init", "train.alone"),
        aside=True,
    )


def variants_of(strategy: str) -> Option[tuple[str, ...]]:
    """The option that names variants, with commas between them, or all."""
    known, unset = VARIANTS[strategy], tuple[str, ...]()
    without = ", or all; unset: plain, at level full all" if PLAIN in known else "; unset or all: all"

    def parse(text: str) -> tuple[str, ...]:
        if text.strip() == ALL:
            return tuple(known)
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        for name in names:
            if name not in known:
                raise ValueError(f"{name!r} is no variant of {strategy}; known are {', '.join(known)}, or {ALL}")
        return names

    return option(parse, unset, f"which, with commas between them{without}")


def measure(ctx: Context, strategy: str, variants: Option[tuple[str, ...]]) -> "Facts":
    """The variants that the option names; where none is named, the plain one, at level full all."""
    from preflight.train_smoke import strategies, task
    from preflight.train_smoke.wrapped import Setting

    known = VARIANTS[strategy]
    names = ctx[variants] or ((PLAIN,) if PLAIN in known and ctx.level is not Level.FULL else tuple(known))
    group = ctx.process_group()
    ctx.doing("importing torch._dynamo")
    task.import_dynamo()
    ranks = len(ctx.members)
    built_in = task.built_in(ctx.group_rank, ranks, ctx.device)
    setting = Setting(group, ctx.device, ranks, ctx.part)
    facts = strategies.run(built_in, strategy, names, setting, ctx.collective, ctx.doing)
    reasons = {name: compared["unfit"] for name, compared in facts["variants"].items()}
    if all(reasons.values()):
        raise Skip("; ".join(f"{name}: {why}" for name, why in reasons.items()))
    return facts


# What it means


@dataclass(frozen=True)
class Told:
    """One thing that is wrong with a variant."""

    variant: str
    meaning: Meaning
    evidence: Mapping[str, Any]
    also: tuple[str, ...] = ()
    """Other variants that show it."""

    def is_of(self, other: "Told") -> bool:
        """Whether both are consequences of one fault: the same of the same rank; or at the same place, where it does
        not lie with two ranks."""
        mine, theirs = self.meaning, other.meaning
        if mine.kind != theirs.kind and "unsteady" in (mine.kind, theirs.kind):
            return False
        if mine.rank == theirs.rank:
            return mine.kind == theirs.kind or mine.point.place == theirs.point.place
        return mine.point.place == theirs.point.place and None in (mine.rank, theirs.rank)


def judge(facts: Mapping[int, "Facts"], run: Run, strategy: str = "ddp", *, is_known: bool = True) -> Iterator[Finding]:
    """What the trainings under a strategy show. A fault that several variants show is told once, of the first.
    `is_known`: on sound hardware the model trains alone without NaN, as the built-in one does."""
    listed: list[Told] = []
    of_rank: dict[int | None, list[int]] = {}
    for variant in variants_in(facts):
        for told in _of_variant(facts, variant, is_known):
            rank = told.meaning.rank
            near = range(len(listed)) if rank is None else sorted(of_rank.get(rank, []) + of_rank.get(None, []))
            same = next((place for place in near if listed[place].is_of(told)), None)
            if same is None:
                of_rank.setdefault(rank, []).append(len(listed))
                listed.append(told)
            elif told.variant not in (listed[same].variant, *listed[same].also):
                listed[same] = replace(listed[same], also=(*listed[same].also, told.variant))
    for told in listed:
        yield _finding(told, run, strategy)


def variants_in(facts: Mapping[int, "Facts"]) -> tuple[str, ...]:
    """In the order of names.py, since JSON has none: the plain one comes first."""
    names = next(iter(facts.values()))["variants"] if facts else {}
    known = next((own for own in VARIANTS.values() if names.keys() <= own.keys()), names)
    return tuple(name for name in known if name in names)


def _unfit(facts: Mapping[int, "Facts"]) -> dict[str, str]:
    some = next(iter(facts.values()))["variants"] if facts else {}
    return {name: compared["unfit"] for name, compared in some.items() if compared["unfit"]}


def _of_variant(facts: Mapping[int, "Facts"], variant: str, is_known: bool) -> Iterator[Told]:
    pairs, spreads = _pairs(facts, variant), _spreads(facts, variant)
    limits = compare.limits(spreads)
    kinds = Spread.__annotations__
    middle = {kind: compare.middle(spread[kind] for spread in spreads) for kind in kinds}  # type: ignore[literal-required]
    for found in _meanings(facts, variant, is_known, pairs, limits, spreads):
        some = found.rank if found.rank is not None else min(pairs)
        yield Told(variant, found, _evidence(found, pairs[some], limits, middle))


def _meanings(
    facts: Mapping[int, "Facts"], variant: str, is_known: bool, pairs: Mapping[int, Pair], limits: Limits,
    spreads: Sequence[Spread],
) -> Iterator[Meaning]:  # fmt: skip
    if alone := [*expected.of(pairs, limits, spreads, is_known=is_known)]:
        yield from alone
    elif parted := divergence.of(pairs, limits):
        clips = next(iter(facts.values()))["variants"][variant]["recipe"] == "clip"
        yield from diagnosis.of(Case(pairs, limits, parted, clips))
    elif found := expected.unsteady(limits):
        yield found


def _pairs(facts: Mapping[int, "Facts"], variant: str) -> dict[int, Pair]:
    """By rank; ranks with equal facts share one."""

    def make(own: "Facts") -> Pair | None:
        compared: Compared = own["variants"][variant]
        if compared["curve"] is None or compared["apart"] is None:
            return None
        return Pair(compared["curve"], own["alone"][compared["recipe"]]["curve"], compared["apart"])

    return divergence.with_least(
        {rank: pair for rank, pair in divergence.each(facts, make).items() if pair is not None}
    )


def _spreads(facts: Mapping[int, "Facts"], variant: str) -> list[Spread]:
    recipes = ((own["alone"], own["variants"][variant]["recipe"]) for own in facts.values())
    return [alone[recipe]["spread"] for alone, recipe in recipes if recipe in alone]


def _evidence(found: Meaning, pair: Pair, limits: Limits, middle: Mapping[str, float]) -> dict[str, Any]:
    """`middle`: the middle rank's spread, by kind."""
    point = found.point
    quantity = point.place.quantity
    kind = quantity if quantity in ("gradient", "end", "state") else "curves"
    is_loaded = quantity == "start"
    bound = "none: weights are loaded, not computed" if is_loaded else _bound(getattr(limits, kind), middle[kind])
    return {
        "measured": point.measured, "expected": point.expected, "bound": bound,
        "apart": pair.apart["whole"], "own_piece": pair.apart["own"], "along_own_gradient": pair.apart["along"],
    }  # fmt: skip


def _bound(limit: float, spread: float) -> str:
    is_it = "is" if limit <= compare.TIMES * spread * 1.001 else "is more than"
    spread_of = f"{compare.TIMES} x the spread of {spread:.1e} that this hardware's own roundings make"
    return f"{limit:.1e}, which {is_it} {spread_of}"


def _finding(told: Told, run: Run, strategy: str) -> Finding:
    found = told.meaning
    under = TITLES.get(strategy, strategy) + ("" if told.variant == PLAIN else f" ({told.variant})")
    also = f"; so it is under {', '.join(told.also)}" if told.also else ""
    where = run.job.where(found.rank) if found.rank is not None else {}
    if found.parameter:
        where["parameter"] = found.parameter
    is_alone = found.kind == "unsteady" and told.variant == PLAIN  # whichever strategy asks
    text = f"{'' if is_alone else f'under {under} '}{found.told}{also}"
    details = {"noticed_by": found.noticed_by, "evidence": told.evidence, "step": found.point.place.step}
    code = CODES[found.kind]
    return (code.warn if code is UNSTEADY else code.fail)(text, **details, **where)


# In a line


def summarize(facts: Mapping[int, "Facts"], _run: Run) -> str:
    """ "plain on 2 ranks: loss 4.16 to 0.697, as alone to 3e-07"."""
    unfit = _unfit(facts)
    ran = [name for name in variants_in(facts) if name not in unfit]
    if not ran:
        return "no variant was run"
    names = ", ".join(ran)
    what = names if len(names) <= NAMED else ranges.count(len(ran), "variant")
    left_out = f"; not run: {', '.join(f'{name} ({why})' for name, why in unfit.items())}" if unfit else ""
    return f"{what} on {ranges.count(len(facts), 'rank')}: {_went(facts, ran[0])}, {_near(facts, ran)}{left_out}"


def _went(facts: Mapping[int, "Facts"], variant: str) -> str:
    """The mean loss over the ranks, at the first step and the last that all have taken."""
    losses = [pair.measured["losses"] for pair in _pairs(facts, variant).values()]
    first, last = ([curve[place] for curve in losses] for place in (0, min(map(len, losses)) - 1))
    return f"loss {_mean(first)} to {_mean(last)}"


def _mean(values: Sequence[compare.Number]) -> str:
    return compare.text(compare.as_json(sum(map(float, values)) / len(values)), 3)


def _near(facts: Mapping[int, "Facts"], ran: Sequence[str]) -> str:
    """How far losses and gradients are from those alone, at most: in float32, and in each coarser variant."""
    limits = {name: compare.limits(_spreads(facts, name)) for name in ran}
    fine = [name for name in ran if limits[name].curves == compare.LEAST.curves]
    coarse = [name for name in ran if name not in fine]
    told = {name: _furthest(facts, name, limits[name]) for name in ran}
    near = max(told[name] for name in fine or coarse)
    more = [f", {name} to {told[name]:.0e}" for name in coarse if fine and told[name] > near]
    return f"{f'as alone to {near:.0e}' if near else 'exactly as alone'}{''.join(more)}"


def _furthest(facts: Mapping[int, "Facts"], variant: str, limits: Limits) -> float:
    def furthest(pair: Pair) -> float:
        steps = range(len(pair.measured["losses"]))
        places = [divergence.Place(step, quantity) for step in steps for quantity in LIKE_ALONE]
        return max((point.over for place in places if (point := divergence.at(pair, place, limits))), default=0.0)

    return max(divergence.each(_pairs(facts, variant), furthest).values(), default=0.0) * limits.curves
