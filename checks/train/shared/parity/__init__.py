"""Shared by the strategies' checks: which variants run, whether they train like training alone, and a summary.

`divergence` finds the first value that differs, `diagnosis` and `gradient_exchange` say what it means, and `variant`
which ranks to name. Before any number `structure` judges what wrapping changed, `expected` the trainings alone.

A variant is compared with training alone by the same recipe, on the same rank and so the same hardware. The tolerance
is measured: 8 times the distance that this hardware's own roundings cause in training alone (see compare.py), of the
median rank; in float32 at least 2e-5.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from preflight.check import (
    Action,
    After,
    Code,
    Context,
    Finding,
    Level,
    Option,
    Plan,
    Run,
    Scope,
    Skip,
    option,
    ranges,
)
from preflight.checks.train.shared import setting
from preflight.checks.train.shared.parity import diagnosis, divergence, expected, replicas, structure, unfit
from preflight.checks.train.shared.parity.divergence import TrainingPair
from preflight.checks.train.shared.parity.structure import MODEL_CHANGED
from preflight.checks.train.shared.parity.variant import Case, Meaning
from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.compare import Limits, Spread
from preflight.train_smoke.trainer.names import ON_REQUEST, PLAIN, STRATEGIES

if TYPE_CHECKING:
    from preflight.train_smoke.strategies.training import Compared, Facts

NOT_FINITE = Code(
    "A loss or a gradient is NaN or infinite.",
    fix="Run the check again: if it is the same rank, test its device; if not, run --only comm.",
    action=Action.NONE,
    see=("gpu.compute", "gpu.health", "node.kernel", "train.alone", "comm"),
)
WRONG_START = Code(
    "Under the strategy, training starts from different weights than alone.",
    fix="Look for what loads or draws weights while the model is wrapped; run the check again: if it is the same rank, "
    "test its device's memory.",
    action=Action.NONE,
    see=("gpu.compute", "gpu.health", "node.kernel", "train.alone"),
)
WRONG_DATA = Code(
    "Ranks train on another rank's part of the batch.",
    fix="Look for what distributes the data: a DistributedSampler with the wrong rank, a patched DataLoader, one seed.",
)
WRONG_STEP = Code(
    "Under the strategy, a rank's own loss or gradient differs from training alone.",
    fix="Run the check again: if it is the same rank, test its device's arithmetic and memory; if it is on all ranks, "
    "look for what changes forward under the strategy: a layer plan, a cast, the order of the microbatches.",
    action=Action.NONE,
    see=("gpu.compute", "gpu.health", "node.kernel", "train.alone"),
)
NOT_AVERAGED = Code(
    "Under the strategy, the gradient is the mean over the ranks times their number, or divided by it.",
    fix="Look for what changes the strategy or its collectives: a communication hook, a patched torch, a plugin.",
)
NOT_EXCHANGED = Code(
    "Under the strategy, a rank steps only with its own gradient.",
    fix="Look for what changes the strategy or its collectives: a communication hook, no_sync(), a patched torch.",
)
WRONG_EXCHANGE = Code(
    "Under the strategy, the gradient is not the mean of what the ranks sent.",
    fix="Do not train here: run --only comm; check links, NICs, NCCL_ALGO, NCCL_PROTO and communication hooks.",
    action=Action.NONE,
    see=("comm", "net.rdma_errors", "gpu.nvlink"),
    cleared="Do not train here. By themselves the collectives are right: look for communication hooks and a patched "
    "torch, and try without NCCL_ALGO and NCCL_PROTO.",
)
WRONG_CLIP = Code(
    "The gradient is clipped before the ranks exchange it, or not by its norm over all ranks.",
    fix="Clip once a step, after backward: clip_grad_norm_ of torch.nn.utils for DDP and FSDP2, of the model for FSDP.",
)
OUT_OF_SYNC = Code(
    "Under the strategy, a rank's parameters differ from the other ranks'.",
    fix="Run the check again: if it is the same rank, test its device's memory and arithmetic.",
    action=Action.NONE,
    see=("gpu.compute", "gpu.health", "node.kernel", "train.alone"),
)
DRIFT = Code(
    "Under the strategy, all ranks drift away from training alone by more than roundings explain.",
    fix="Look for what rounds more coarsely under the strategy only: a compressing hook, bfloat16 in reductions, TF32.",
)
UNSTEADY = Code(
    "Training alone is too unsteady to compare a strategy with it.",
    fix="Nothing was proven wrong, and little proven right. Look for what jumps when a number "
    "moves by one rounding (top-k, a threshold, BatchNorm over few values); float64 or more rows help.",
)
SHARED = (MODEL_CHANGED,)
CODES = {name.lower(): code for name, code in tuple(globals().items()) if isinstance(code, Code)}

TITLES = {
    "ddp": "DDP", "fsdp": "FSDP", "fsdp2": "FSDP2", "tp": "tensor parallel", "pp": "pipeline parallel",
    "hybrid": "hybrid parallel", "compile": "torch.compile", "expert": "expert parallel",
}  # fmt: skip
ALL = "all"
NAMED = 52
"""Characters for names of variants in a summary; more are counted."""


LIKE_ALONE: tuple[compare.Quantity, ...] = ("losses", "norms")
"""What the summary compares."""


# What runs


def plan(level: Level, *, deadline_s: float, estimate_s: float) -> Plan:
    """The plan of a strategy's check. `deadline_s`: for all variants with many ranks on few cores; it grows by a second
    per 64 ranks."""
    return Plan(
        Scope.WORLD,
        level,
        deadline_s=lambda job: deadline_s + job.world_size / 64,
        estimate_s=estimate_s,
        after=dict.fromkeys(("comm.init", "train.alone"), After.NEEDS),
    )


def variants_of(strategy: str) -> Option[tuple[str, ...]]:
    """The option that names variants, separated by commas, or all."""
    known, unset = STRATEGIES[strategy], tuple[str, ...]()
    without = ", or all; unset: plain, at level full all" if PLAIN in known else "; unset or all: all"
    if left_out := ON_REQUEST.get(strategy):
        without = f", or all; unset: all but {', '.join(left_out)}"

    def parse(text: str) -> tuple[str, ...]:
        if text.strip() == ALL:
            return tuple(known)
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        for name in names:
            if name not in known:
                raise ValueError(f"{name!r} is not a variant of {strategy}; known are {', '.join(known)}, or {ALL}")
        return names

    return option(parse, unset, f"which, separated by commas{without}")


def measure(ctx: Context, strategy: str, variants: Option[tuple[str, ...]]) -> "Facts":
    """Runs the variants that the option names; by default the plain one, at level full all."""
    from preflight.train_smoke.strategies import training
    from preflight.train_smoke.trainer import task

    known = STRATEGIES[strategy]
    names = ctx[variants] or ((PLAIN,) if PLAIN in known and ctx.level is not Level.FULL else _unasked(strategy))
    among = setting.of_members(ctx)
    ctx.doing("importing torch._dynamo")
    task.import_dynamo()
    facts = training.run(task.built_in(ctx.group_rank, among.ranks, ctx.device), strategy, names, among)
    reasons = {name: compared["unfit"] for name, compared in facts["variants"].items()}
    if all(reasons.values()):
        raise Skip(unfit.in_words(reasons))
    return facts


def _unasked(strategy: str) -> tuple[str, ...]:
    return tuple(name for name in STRATEGIES[strategy] if name not in ON_REQUEST.get(strategy, ()))


# What it means


@dataclass(frozen=True)
class VariantFault:
    variant: str
    meaning: Meaning
    evidence: Mapping[str, Any]
    also: tuple[str, ...] = ()
    """Other variants that show the same."""

    def is_of(self, other: "VariantFault") -> bool:
        """Whether both come from one fault: the same kind and rank; or the same place, unless two different ranks are
        blamed."""
        mine, theirs = self.meaning, other.meaning
        if mine.kind != theirs.kind and "unsteady" in (mine.kind, theirs.kind):
            return False
        if mine.rank == theirs.rank:
            return mine.kind == theirs.kind or mine.point.place == theirs.point.place
        return mine.point.place == theirs.point.place and None in (mine.rank, theirs.rank)


@dataclass(frozen=True)
class Judging:
    """How a strategy is judged."""

    meanings: Callable[[Case], Iterator[Meaning]] = diagnosis.of
    codes: Mapping[str, Code] = field(default_factory=lambda: CODES)
    """Codes by kind of meaning."""
    is_known: bool = True
    """Whether the model trains alone without NaN on sound hardware, as the built-in one does."""


def judge(
    facts: Mapping[int, "Facts"], run: Run, strategy: str = "ddp", how: Judging = Judging(),
    asked: Option[tuple[str, ...]] | None = None,
) -> Iterator[Finding]:  # fmt: skip
    """Judges the trainings under a strategy. A fault that several variants show is reported once, for the first.
    `asked`: the option that names variants."""
    listed: list[VariantFault] = []
    of_rank: dict[int | None, list[int]] = {}
    for variant in variants_in(facts):
        for told in _of_variant(facts, variant, how):
            rank = told.meaning.rank
            near = range(len(listed)) if rank is None else sorted(of_rank.get(rank, []) + of_rank.get(None, []))
            same = next((place for place in near if listed[place].is_of(told)), None)
            if same is None:
                of_rank.setdefault(rank, []).append(len(listed))
                listed.append(told)
            elif told.variant not in (listed[same].variant, *listed[same].also):
                listed[same] = replace(listed[same], also=(*listed[same].also, told.variant))
    same_data = any(told.meaning.kind == "wrong_data" for told in listed)
    for told in listed:
        if not (same_data and told.meaning.kind == "not_exchanged"):  # then an average is each rank's own gradient
            yield _finding(told, run, strategy, how.codes)
    yield from unfit.judge(facts, run, asked)


def variants_in(facts: Mapping[int, "Facts"]) -> tuple[str, ...]:
    """The variants in the order of names.py, since JSON keeps none; the plain one comes first."""
    names = next(iter(facts.values()))["variants"] if facts else {}
    known = next((own for own in STRATEGIES.values() if names.keys() <= own.keys()), names)
    return tuple(name for name in known if name in names)


def _of_variant(facts: Mapping[int, "Facts"], variant: str, how: Judging) -> Iterator[VariantFault]:
    if changed := [*structure.of(facts, variant)]:
        its = facts[min(facts)]["variants"][variant]
        yield from (VariantFault(variant, found, {"changed": its["changed"], "mesh": its["mesh"]}) for found in changed)
        return
    pairs, spreads = _pairs(facts, variant), _spreads(facts, variant)
    limits = compare.limits(spreads)
    kinds = Spread.__annotations__
    middle = {kind: compare.middle(spread[kind] for spread in spreads) for kind in kinds}  # type: ignore[literal-required]
    for found in _meanings(facts, variant, how, pairs, limits, spreads):
        some = found.rank if found.rank is not None else min(pairs)
        yield VariantFault(variant, found, _evidence(found, pairs[some], limits, middle))


def _meanings(
    facts: Mapping[int, "Facts"], variant: str, how: Judging, pairs: Mapping[int, TrainingPair], limits: Limits,
    spreads: Sequence[Spread],
) -> Iterator[Meaning]:  # fmt: skip
    if alone := [*expected.of(pairs, limits, spreads, is_known=how.is_known)]:
        yield from alone
    elif parted := divergence.of(pairs, limits):
        clips = next(iter(facts.values()))["variants"][variant]["recipe"].startswith("clip")
        case = Case(pairs, limits, parted, clips)
        yield from replicas.named(how.meanings(case), case)
    elif differing := [*replicas.of(pairs)]:
        yield from differing
    elif found := expected.unsteady(limits):
        yield found


def _pairs(facts: Mapping[int, "Facts"], variant: str) -> dict[int, TrainingPair]:
    """Pairs by rank; ranks with equal facts share one."""

    def make(own: "Facts") -> TrainingPair | None:
        compared: Compared = own["variants"][variant]
        if compared["curve"] is None or compared["apart"] is None:
            return None
        return TrainingPair(
            compared["curve"], own["alone"][compared["recipe"]]["curve"], compared["apart"],
            clipped=compared["clipped"], sizes=compared["sizes"], made=compared["made"], replicas=compared["replicas"],
            product=compared["product"],
        )  # fmt: skip

    return divergence.with_least(
        {rank: pair for rank, pair in divergence.each(facts, make).items() if pair is not None}
    )


def _spreads(facts: Mapping[int, "Facts"], variant: str) -> list[Spread]:
    recipes = ((own["alone"], own["variants"][variant]["recipe"]) for own in facts.values())
    return [alone[recipe]["spread"] for alone, recipe in recipes if recipe in alone]


def _evidence(found: Meaning, pair: TrainingPair, limits: Limits, middle: Mapping[str, float]) -> dict[str, Any]:
    """`middle`: the median rank's spread, by kind."""
    point = found.point
    quantity = point.place.quantity
    kind = quantity if quantity in ("gradient", "end", "state") else "curves"
    if found.point.place.quantity == "end" and found.point.expected == replicas.EQUAL_BITS:
        return {"replicas": pair.replicas}
    is_loaded = quantity == "start"
    bound = "none: weights are loaded, not computed" if is_loaded else _bound(getattr(limits, kind), middle[kind])
    return {
        "measured": point.measured, "expected": point.expected, "bound": bound,
        "apart": pair.apart["whole"], "own_piece": pair.apart["own"], "along_own_gradient": pair.apart["along"],
        "gradients": pair.apart["gradients"], "clipped": [*pair.clipped], "collectives": [*pair.made],
        "replicas": pair.replicas, "product": pair.product,
    }  # fmt: skip


def _bound(limit: float, spread: float) -> str:
    is_it = "is" if limit <= compare.TIMES * spread * 1.001 else "is more than"
    spread_of = f"{compare.TIMES} x the spread of {spread:.1e} that this hardware's own roundings cause"
    return f"{limit:.1e}, which {is_it} {spread_of}"


def _finding(told: VariantFault, run: Run, strategy: str, codes: Mapping[str, Code]) -> Finding:
    found = told.meaning
    under = TITLES.get(strategy, strategy) + ("" if told.variant == PLAIN else f" ({told.variant})")
    also = f"; the same under {', '.join(told.also)}" if told.also else ""
    where = run.job.where(found.rank) if found.rank is not None else {}
    if found.parameter:
        where["parameter"] = found.parameter
    is_alone = found.kind == "unsteady" and told.variant == PLAIN  # whichever strategy is judged
    text = f"{'' if is_alone else f'under {under} '}{found.told}{also}"
    details = {"noticed_by": found.noticed_by, "evidence": told.evidence, "step": found.point.place.step}
    code = codes[found.kind]
    return (code.warn if code is UNSTEADY else code.fail)(text, **details, **where)


# The summary


def summarize(facts: Mapping[int, "Facts"], _run: Run) -> str:
    """ "plain on 2 ranks: loss 4.16 to 0.697, as alone to 3e-07"."""
    reasons = unfit.of(facts)
    ran = [name for name in variants_in(facts) if name not in reasons]
    if not ran:
        return "no variant was run"
    names = ", ".join(ran)
    what = names if len(names) <= NAMED else ranges.count(len(ran), "variant")
    left_out = f"; not run: {unfit.in_words(reasons)}" if reasons else ""
    first = facts[min(facts)]["variants"]
    meshes = dict.fromkeys(first[name]["mesh"] for name in ran if first[name]["mesh"])
    mesh = f", mesh {' or '.join(meshes)}" if meshes else ""
    trained = [name for name in ran if _pairs(facts, name)]
    if not trained:
        return f"{what} on {ranges.count(len(facts), 'rank')}{mesh}: not trained, since the model has changed{left_out}"
    told = f"{_went(facts, trained[0])}, {_near(facts, trained)}"
    return f"{what} on {ranges.count(len(facts), 'rank')}{mesh}: {told}{left_out}"


def _went(facts: Mapping[int, "Facts"], variant: str) -> str:
    """The ranks' mean loss at the first step, and at the last that all took."""
    losses = [pair.measured["losses"] for pair in _pairs(facts, variant).values()]
    first, last = ([curve[place] for curve in losses] for place in (0, min(map(len, losses)) - 1))
    return f"loss {_mean(first)} to {_mean(last)}"


def _mean(values: Sequence[compare.Number]) -> str:
    return compare.text(compare.as_json(sum(map(float, values)) / len(values)), 3)


def _near(facts: Mapping[int, "Facts"], ran: Sequence[str]) -> str:
    """The largest distance of losses and gradients from those alone: in float32, and in each coarser variant."""
    limits = {name: compare.limits(_spreads(facts, name)) for name in ran}
    fine = [name for name in ran if limits[name].curves == compare.LEAST.curves]
    coarse = [name for name in ran if name not in fine]
    told = {name: _furthest(facts, name, limits[name]) for name in ran}
    near = max(told[name] for name in fine or coarse)
    more = [f", {name} to {told[name]:.0e}" for name in coarse if fine and told[name] > near]
    return f"{f'as alone to {near:.0e}' if near else 'exactly as alone'}{''.join(more)}"


def _furthest(facts: Mapping[int, "Facts"], variant: str, limits: Limits) -> float:
    def furthest(pair: TrainingPair) -> float:
        steps = range(len(pair.measured["losses"]))
        places = [divergence.CurvePlace(step, quantity) for step in steps for quantity in LIKE_ALONE]
        return max((point.over for place in places if (point := divergence.at(pair, place, limits))), default=0.0)

    return max(divergence.each(_pairs(facts, variant), furthest).values(), default=0.0) * limits.curves
