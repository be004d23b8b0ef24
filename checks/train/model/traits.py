"""What makes many ranks train a user's model differently than one, and what was done about it."""

from collections.abc import Iterator, Mapping

from preflight.check import Code, Finding, ranges, words
from preflight.checks.train.model.facts import Facts
from preflight.train_smoke.trainer.names import NEEDS_NUMPY, STEPS

UNUSED = Code(
    "Parameters get no gradient.",
    fix="Remove them, or use them in the loss, or give DDP find_unused_parameters=True: else its second step raises.",
)
BATCH_NORM = Code(
    "BatchNorm normalizes by the rows of one rank.",
    fix="Nothing with enough rows per rank. On GPUs torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) normalizes by "
    "all ranks' rows (it does not run on CPUs); GroupNorm and LayerNorm normalize each row by itself.",
)
NOT_A_MEAN = Code(
    "The loss of all rows is not the mean of the losses of their parts.",
    fix="If tokens are masked, divide their sum by the valid tokens of all ranks (all_reduce the count), times the "
    "number of ranks; if rows are compared, gather them first.",
)
DROPOUT = Code(
    "Dropout was set to 0 for the comparison.",
    fix="Nothing: each rank draws its own, so with dropout no two trainings are the same.",
)
RANDOM_NUMBERS = Code(
    "Forward or the loss draws random numbers; they were drawn from one seed for the comparison.",
    fix="Seed by the data-parallel rank after the model is built: ranks with other rows need other masks and noise. "
    "Ranks that share a layer (tensor parallel) need the same: else each masks a piece of another draw.",
)
MASKS_DIFFER = Code(
    "Ranks that share layers (tensor parallel) draw different masks and noise.",
    fix="Seed the ranks of a tensor-parallel group alike, by the data-parallel rank: each has a piece of one draw.",
)
MASKS_REPEAT = Code(
    "The function seeds all ranks alike: they draw the same masks and noise for different rows.",
    fix="Call torch.manual_seed(seed + data-parallel rank) once the model is built.",
)
FEW_ROWS = Code(
    "There are fewer rows than ranks.",
    fix="Return a global batch with at least one row per rank.",
)
UNEQUAL_ROWS = Code(
    "The rows of the batch do not divide by the number of ranks; the last ones are left out.",
    fix="Nothing: each rank has equally many. Return a multiple of the number of ranks to train on all rows.",
)
LEFT_OUT = Code(
    "Variants or steps were left out with this model.",
    fix="Nothing, if they cannot be compared; if time is short, return fewer rows, or set --deadline.",
)
SYNTHETIC = Code(
    "The batch or the loss was made up, since the model was given without one.",
    fix="Nothing: only the equality of gradients matters. Return (model, batch, loss_fn) to train on your own.",
)
SMALLER = Code(
    "A configuration's model is too big to train alone on each rank, and was made smaller.",
    fix="Nothing: its layers are unchanged. Give a smaller configuration to choose what is left out.",
)


def told(facts: Mapping[int, Facts], *, shares_layers: bool = False) -> Iterator[Finding]:
    """`shares_layers`: whether the user asks for tensor parallelism."""
    first = facts[min(facts)]
    seen = first["traits"]
    assert seen is not None, "only called for ranks that have some"
    yield from _unused(facts)
    if seen["apart"] and not exchanges(first):
        yield NOT_A_MEAN.warn(_by_tokens(facts) or _apart(seen["apart"]), evidence={"apart": seen["apart"]})
    if seen["batch_norms"] and exchanges(first):
        modules = words.examples(seen["batch_norms"], "module")
        text = f"BatchNorm normalizes by its running statistics here, in {modules}: the loss exchanges values"
        yield BATCH_NORM.info(f"{text} between ranks, and one process would normalize by all rows")
    elif seen["batch_norms"]:
        rows = " or ".join(sorted({str(own["own"]) for own in facts.values()})[:2])
        modules = words.examples(seen["batch_norms"], "module")
        text = (
            f"BatchNorm normalizes by the {rows} rows of one rank, and in one process by all {first['rows']}, in "
            f"{modules}: so training alone is split like the ranks, for comparison"
        )
        yield BATCH_NORM.info(text, evidence={"modules": seen["batch_norms"][:20]})
    if seen["dropouts"]:
        text = f"dropout was set to 0 in {words.examples(seen['dropouts'], 'module')}, since each rank draws its own"
        yield DROPOUT.info(text, evidence={"modules": seen["dropouts"][:20]})
    if seen["draws"]:
        text = (
            "forward or loss_fn draws random numbers: here from one seed before each forward, so that a rank draws "
            "the same under a strategy and alone, and training alone is split like the ranks"
        )
        yield RANDOM_NUMBERS.info(text)
    if seen["draws"] or seen["dropouts"]:
        yield from _seeds(facts, shares_layers=shares_layers)
    yield from _what_was_done(facts, first)


def _seeds(facts: Mapping[int, Facts], *, shares_layers: bool) -> Iterator[Finding]:
    """Of generators before the first forward: what the user's function has left in them, where it seeds them."""
    seeds = {rank: own["seeded"] for rank, own in facts.items() if own.get("seeded")}
    if len(facts) < 2 or len(seeds) < len(facts):
        return
    if shares_layers and len(set(seeds.values())) > 1:
        (rank, seed), *_, (last, other) = seeds.items()
        text = f"before forward the generator of rank {rank} is seeded with {seed}, that of rank {last} with {other}"
        yield MASKS_DIFFER.warn(f"{text}, expected the same: they share layers, and forward draws random numbers")
    if not shares_layers and len(set(seeds.values())) == 1:
        text = (
            f"before forward the generators of {ranges.ranks(sorted(seeds))} are all seeded with {min(seeds.values())}"
        )
        yield MASKS_REPEAT.info(f"{text}, expected one seed per rank: they have different rows")


def exchanges(own: Facts) -> bool:
    """Whether forward or the loss exchange values with other ranks."""
    forward = own.get("forward")
    return bool(forward and forward["exchanged"])


def _what_was_done(facts: Mapping[int, Facts], first: Facts) -> Iterator[Finding]:
    """What was changed in, or added to, what was given."""
    if first["smaller"]:
        yield SMALLER.info(first["smaller"])
    if first["made_up"]:
        yield SYNTHETIC.info("; ".join(first["made_up"]))
    idle = [rank for rank, own in facts.items() if not own["own"]]
    if idle:
        yield FEW_ROWS.info(f"{ranges.ranks(idle)} have none of the {first['rows']} rows, and contribute nothing")
    if first["dropped"]:
        rows = first["rows"] + first["dropped"]
        text = f"{len(facts)} ranks cannot share {rows} rows equally, so they train on {first['rows']}"
        yield UNEQUAL_ROWS.info(f"{text}: {first['own']} each")
    yield from _left_out(first)
    if 0 < first["steps"] < STEPS:
        step_s = (first["traits"] or {})["step_s"]
        text = f"{first['steps']} of {STEPS} steps were trained: one on all rows takes {step_s:.2g} s here"
        yield LEFT_OUT.info(text)


def _left_out(first: Facts) -> Iterator[Finding]:
    """What cannot be compared is left out; what there was no time for, or no package, was not measured."""
    late = first.get("late", [])
    for say, named in (
        (LEFT_OUT.info, {name: why for name, why in first["left_out"].items() if name not in late}),
        (LEFT_OUT.not_measured, {name: first["left_out"][name] for name in late}),
        (LEFT_OUT.not_measured, {name: why for name, why in first["not_run"].items() if NEEDS_NUMPY in why}),
    ):
        why: dict[str, list[str]] = {}
        for name, reason in named.items():
            why.setdefault(reason, []).append(name)
        reasons = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in why.items())
        yield from [say(f"not run: {reasons}")] if reasons else []


def _apart(apart: float) -> str:
    return (
        f"the loss of all rows is {_percent(apart)} off the mean of its halves' losses, expected the same: "
        "ranks that average theirs train a different function than one process (here it is split like theirs)"
    )


def _by_tokens(facts: Mapping[int, Facts]) -> str:
    """A message if the loss is a mean over a rank's own valid tokens, or ""."""
    counts = {rank: own["traits"]["own_tokens"] for rank, own in facts.items() if own["own"] and own["traits"]}
    where = {own["traits"]["weighs_by"] for own in facts.values() if own["traits"]}
    if len(where) != 1 or "" in where or not any(counts.values()):
        return ""
    fewest, most = (by(counts, key=lambda rank: counts[rank]) for by in (min, max))
    none = [rank for rank, count in counts.items() if not count]
    weighs = (
        f": {ranges.ranks(none)} without any weigh as much as the others"
        if none
        else f": a token of rank {fewest}, which has {counts[fewest]}, weighs {counts[most] / counts[fewest]:.2g} "
        f"times as much as one of rank {most}, which has {counts[most]}"
        if counts[fewest] < counts[most]
        else ""
    )
    off = (facts[min(facts)]["traits"] or {})["apart"]
    return (
        f"the loss is averaged per rank, over its own valid tokens ({where.pop()}), expected an average over those of "
        f"all ranks{weighs}; of all rows it, or its gradient, is {_percent(off)} off the mean of its halves' "
        "(here training alone is split like the ranks)"
    )


def _unused(facts: Mapping[int, Facts]) -> Iterator[Finding]:
    everywhere = {name for own in facts.values() for name in (own["traits"] or {})["unused"]}
    here = {rank: names for rank, own in facts.items() if (names := (own["traits"] or {})["unused_here"])}
    left = "; here they are left unchanged"
    if everywhere:
        names = words.examples(sorted(everywhere), "parameter")
        text = f"{names} get no gradient, expected one for all that require it{left}"
        yield UNUSED.warn(text, parameter=min(everywhere), evidence={"parameters": sorted(everywhere)[:20]})
    if here:
        some = sorted({name for unused in here.values() for name in unused})
        names = words.examples(some, "parameter")
        text = f"{names} get no gradient from the rows of {ranges.ranks(here)}, but from others' rows{left}"
        yield UNUSED.warn(text, parameter=some[0], evidence={"parameters": some[:20]})


def _percent(value: float) -> str:
    return f"{abs(value):.2g} times" if abs(value) > 1 else f"{abs(value):.2%}"
