"""Your own model trains under DDP and FSDP as it does in one process.

`--model MODULE:FUNCTION` names a function without arguments. It returns (model, batch, loss_fn): the model as it is
before any wrapper; the *global* batch, a tensor or a tuple, list or dict of tensors with the rows in dimension 0; and
`loss_fn(model, batch)`, the mean loss over the rows that it is given. Every rank calls it, with the same random seed,
and trains alone on all rows and together on its own ones, a few steps each. The learning rate is chosen so that a step
changes the weights by 0.2%; dropout is off. What would make many ranks train otherwise than one is told first: see
docs/model.md.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from preflight.check import (
    Code,
    Context,
    Finding,
    Job,
    Level,
    Plan,
    Run,
    Scope,
    UserCode,
    Vote,
    count,
    option,
    ranges,
    vote,
)
from preflight.checks.train.model import user_model
from preflight.checks.train.model.user_model import Facts
from preflight.checks.train.shared import curves, parity
from preflight.train_smoke.names import PLAIN, STEPS, VARIANTS

if TYPE_CHECKING:
    from preflight.train_smoke import strategies


def _deadline(job: Job) -> float:
    """A model of a few million parameters takes seconds a variant on a CPU; there are 26 of them."""
    return 300.0 + job.world_size / 64


PARTS = (parity,)
PLAN = Plan(
    Scope.WORLD,
    Level.FULL,
    deadline_s=_deadline,
    estimate_s=5.0,
    needs=("comm.init", "train.alone"),
    given=("model",),
    fresh=True,
)


def _strategies(text: str) -> dict[str, list[str]]:
    """Variants by their strategies: of "ddp,fsdp2/offload" or "all". Raises ValueError."""
    if text.strip() == "all":
        return {strategy: list(variants) for strategy, variants in VARIANTS.items()}
    found: dict[str, list[str]] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        strategy, slash, variant = word.partition("/")
        if strategy not in VARIANTS or (slash and variant not in VARIANTS[strategy]):
            known = ", ".join(VARIANTS.get(strategy, VARIANTS))
            raise ValueError(f"{word} is no strategy; known are {known}")
        chosen = found.setdefault(strategy, [])
        chosen += [name for name in ([variant] if slash else VARIANTS[strategy]) if name not in chosen]
    if not found:
        raise ValueError(f"no strategy is named; known are {', '.join(VARIANTS)}")
    return found


MODEL = option(UserCode.parse, None, "the function that returns (model, batch, loss_fn), as MODULE:FUNCTION")
STRATEGIES = option(_strategies, None, "such as ddp or fsdp2/offload, by commas, or all; unset: by the level")
BASE_BATCH = option(count, None, "the global batch that your learning rate was chosen for, to say how to scale it")
THREADS = option(count, None, "threads for a CPU's arithmetic; unset: as the ranks have them")

USER_ERROR = Code(
    "The function, the model's forward or the loss raises.",
    fix="Mend it at the line that is named; with --report DIR the whole stack is in DIR/logs.",
)
WRONG_RETURN = Code(
    "The function does not return (model, batch, loss_fn).",
    fix="Let it return a torch.nn.Module, the global batch and a function of both: see docs/model.md.",
)
WRONG_MODEL = Code(
    "The model is none that every strategy can wrap a copy of.",
    fix="Return the plain model with its weights: not wrapped, not on the meta device, with something to train.",
)
WRONG_BATCH = Code(
    "The batch is not a tensor, or tuple, list or dict of tensors, with as many rows each.",
    fix="Return the global batch of one step as tensors with the rows in dimension 0.",
)
WRONG_LOSS = Code(
    "The loss is none to train on.",
    fix="Return from loss_fn(model, batch) one finite number that depends on the model's parameters: the mean loss.",
)
SUM_FOR_MEAN = Code(
    "The loss is a sum over the rows and not their mean.",
    fix="Use reduction='mean': DDP and FSDP average over ranks, so a sum makes the step depend on the number of ranks.",
)
REFUSED = Code(
    "A strategy does not take the model.",
    fix="See the message and the stack (--report DIR, in DIR/logs); --set train.model.strategies=... leaves it out.",
)
OTHER_MODEL = Code(
    "Ranks have models of other shapes.",
    fix="Let the function build the same model on all ranks: look for what depends on the rank or the node.",
)
OTHER_BATCH = Code(
    "Ranks have other batches.",
    fix="Return the same global batch on all ranks (preflight cuts it): seed what draws it, do not shard it by rank.",
)
OTHER_WEIGHTS = Code(
    "Ranks have other weights; the first rank's were loaded into all, as DDP does.",
    fix="Seed the function if all ranks shall begin alike; FSDP does not load rank 0's weights unless told to.",
)
UNUSED = Code(
    "Parameters get no gradient.",
    fix="Remove them, or use them in the loss, or give DDP find_unused_parameters=True: else its second step raises.",
)
BATCH_NORM = Code(
    "BatchNorm normalises by the rows of one rank.",
    fix="torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) normalises by all ranks' rows; or use another norm.",
)
NOT_A_MEAN = Code(
    "The loss of all rows is not the mean of the losses of their parts.",
    fix="Where rows weigh unequally (padding), divide by all ranks' count; where rows are compared, gather them first.",
)
DROPOUT = Code(
    "Dropout was set to 0 for the comparison.",
    fix="Nothing to do: each rank draws its own, so that with it no two trainings are alike.",
)
DRAWS = Code(
    "Forward or the loss draws random numbers; they were drawn from one seed for the comparison.",
    fix="Nothing to do, if each rank has its own seed in training: else all drop and add the same.",
)
FEW_ROWS = Code(
    "There are fewer rows than ranks.",
    fix="Give a global batch of at least a row for each rank.",
)
LEFT_OUT = Code(
    "Variants or steps were left out with this model.",
    fix="Nothing to do where they cannot be compared; where time is short, return fewer rows, or give --deadline.",
)
MISTAKES = {
    "user_error": USER_ERROR,
    "wrong_return": WRONG_RETURN,
    "wrong_model": WRONG_MODEL,
    "wrong_batch": WRONG_BATCH,
    "wrong_loss": WRONG_LOSS,
    "sum_for_mean": SUM_FOR_MEAN,
    "refused": REFUSED,
}


def measure(ctx: Context) -> Facts:
    code = ctx[MODEL]
    assert code is not None, "the engine asks for it"
    at_level = _strategies("all") if ctx.level is Level.FULL else {"ddp": [PLAIN], "fsdp2": [PLAIN]}
    chosen = ctx[STRATEGIES]
    return user_model.measure(ctx, code, chosen or at_level, ctx[THREADS])


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from _mistakes(facts, run)
    yield from _refused(facts[min(facts)], run)
    yield from _unlike(facts, run)
    tried = {rank: own for rank, own in facts.items() if own["traits"]}
    if tried:
        yield from _traits(tried)
    trained = {rank: own for rank, own in tried.items() if own["strategies"] and not own["mistake"]}
    said = False
    for strategy in next(iter(trained.values()))["strategies"] if trained else ():
        its = {rank: own["strategies"][strategy] for rank, own in trained.items()}
        for found in parity.judge(its, run, strategy, is_known=False):
            if found.code is not parity.UNSTEADY or not said:  # it is of the training alone, which strategies share
                yield found
            said |= found.code is parity.UNSTEADY


def _mistakes(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """One that all ranks make is nobody's."""
    made: dict[str, list[int]] = {}
    for rank, own in facts.items():
        if own["mistake"]:
            made.setdefault(own["mistake"]["text"], []).append(rank)
    for text, ranks in made.items():
        for rank in ranks if len(ranks) < len(facts) else ranks[:1]:
            told = facts[rank]["mistake"]
            assert told is not None
            where = run.job.where(rank) if len(ranks) < len(facts) else {}
            place = {"file": told["file"], "line": told["line"]}
            yield MISTAKES[told["kind"]].fail(text, evidence=told["evidence"], **place, **where)


def _refused(own: Facts, run: Run) -> Iterator[Finding]:
    """What all ranks' training raised under a strategy: a failure where the user wants that one, or none takes it."""
    asked, ran = run[STRATEGIES], any(its["variants"] for its in own["strategies"].values())
    alike: dict[tuple[str, str], list[str]] = {}
    for strategy, name in (
        (strategy, f"{strategy}/{variant}") for strategy, its in VARIANTS.items() for variant in its
    ):
        if told := own["refused"].get(name):
            alike.setdefault((strategy, told["text"].replace(name, "")), []).append(name)
    for (strategy, _), (name, *others) in alike.items():
        told = own["refused"][name]
        code = MISTAKES[told["kind"]]
        also = f"; so it is under {', '.join(others)}" if others else ""
        find = code.fail if strategy in (asked or ()) or not ran else code.warn
        yield find(f"{told['text']}{also}", evidence=told["evidence"], file=told["file"], line=told["line"])


def _unlike(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """What ranks should have alike."""
    whole = {rank: own for rank, own in facts.items() if own["layout"]}
    texts = [own["unlike"] for own in whole.values() if own["unlike"]]
    models = vote({rank: own["layout"] for rank, own in whole.items()})
    if whole and not models.unanimous:
        yield from _parted(OTHER_MODEL, "the model has other parameters or buffers", models, f": {texts[0]}", run)
        return
    batches = vote({rank: own["batch"] for rank, own in whole.items()})
    if whole and not batches.unanimous:
        yield from _parted(OTHER_BATCH, "the batch has other numbers or shapes", batches, "", run)
    elif any(own["loaded"] for own in whole.values()):
        others = [rank for rank, own in whole.items() if own["weights"] != whole[min(whole)]["weights"]]
        text = f"{ranges.ranks(others)} began with other weights than rank {min(whole)}, whose were loaded into all"
        yield OTHER_WEIGHTS.info(text)


def _parted(code: Code, what: str, counted: Vote[str], more: str, run: Run) -> Iterator[Finding]:
    """Where more than half agree, the others are named."""
    for rank, _ in counted.odd():
        yield code.fail(f"{what} than on {counted.share()}{more}", **run.job.where(rank))
    if not counted.decided:
        sides = ", ".join(f"one on {ranges.ranks(ranks)}" for ranks in list(counted.ranks_of.values())[:4])
        yield code.fail(f"{what} on some ranks than on others ({sides}), expected the same on all{more}")


def _traits(facts: Mapping[int, Facts]) -> Iterator[Finding]:
    """What many ranks train otherwise than one, and what was done about it."""
    first = facts[min(facts)]
    seen = first["traits"]
    assert seen is not None, "only ranks that have some are asked"
    yield from _unused(facts)
    if seen["apart"]:
        text = (
            f"the loss of all rows is {_percent(seen['apart'])} off the mean of its halves' losses, expected the same: "
            "ranks that average theirs train another function than one process (here it is cut as theirs)"
        )
        yield NOT_A_MEAN.warn(text, evidence={"apart": seen["apart"]})
    if seen["batch_norms"]:
        rows = " or ".join(sorted({str(own["own"]) for own in facts.values()})[:2])
        text = (
            f"BatchNorm normalises by the {rows} rows of one rank, and in one process by all {first['rows']}, in "
            f"{_listed(seen['batch_norms'])}: so training alone is cut as the ranks are, to be compared with"
        )
        yield BATCH_NORM.info(text, evidence={"modules": seen["batch_norms"][:20]})
    if seen["dropouts"]:
        text = f"dropout was set to 0 in {_listed(seen['dropouts'])}, since each rank draws its own"
        yield DROPOUT.info(text, evidence={"modules": seen["dropouts"][:20]})
    if seen["draws"]:
        text = (
            "forward or loss_fn draws random numbers: here from one seed before each forward, so that a rank draws "
            "under a strategy what it draws alone, and training alone is cut as the ranks are"
        )
        yield DRAWS.info(text)
    idle = [rank for rank, own in facts.items() if not own["own"]]
    if idle:
        yield FEW_ROWS.info(f"{ranges.ranks(idle)} have none of the {first['rows']} rows, and count for nothing")
    if first["left_out"]:
        why: dict[str, list[str]] = {}
        for name, reason in first["left_out"].items():
            why.setdefault(reason, []).append(name)
        told = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in why.items())
        yield LEFT_OUT.info(f"not run: {told}")
    if 0 < first["steps"] < STEPS:
        text = f"{first['steps']} of {STEPS} steps were trained: one on all rows takes {seen['step_s']:.2g} s here"
        yield LEFT_OUT.info(text)


def _unused(facts: Mapping[int, Facts]) -> Iterator[Finding]:
    everywhere = {name for own in facts.values() for name in (own["traits"] or {})["unused"]}
    here = {rank: names for rank, own in facts.items() if (names := (own["traits"] or {})["unused_here"])}
    left = "; here they are left as they are"
    if everywhere:
        names = _listed(sorted(everywhere), "parameter")
        text = f"no gradient comes to {names}, expected one to all that require it{left}"
        yield UNUSED.warn(text, parameter=min(everywhere), evidence={"parameters": sorted(everywhere)[:20]})
    if here:
        some = sorted({name for unused in here.values() for name in unused})
        names = _listed(some, "parameter")
        text = f"no gradient comes to {names} from the rows of {ranges.ranks(here)}, but from others' rows{left}"
        yield UNUSED.warn(text, parameter=some[0], evidence={"parameters": some[:20]})


def _listed(names: list[str], what: str = "module") -> str:
    """ "1 module (norm)", "9 modules (a, b, c, ...)"."""
    return f"{ranges.count(len(names), what)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


def _percent(value: float) -> str:
    return f"{abs(value):.2g} times" if abs(value) > 1 else f"{abs(value):.2%}"


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    """ "ddp/plain, fsdp2/plain on 2 ranks: loss 4.1 to 3.9, as alone to 3e-07; 4 a rank x 2 ranks = 8"."""
    if not any(own["own"] for own in facts.values()):
        return "nothing was trained"
    batch = curves.effective_batch([own["own"] for own in facts.values()], len(facts), 1, run[BASE_BATCH])
    trained = _all_strategies(facts)
    return f"{parity.summarize(trained, run)}; {batch}" if trained else batch


def draw(facts: Mapping[int, Facts], run: Run) -> Iterator[str]:
    yield from curves.draw(_all_strategies(facts), run)


_NONE: "strategies.Facts" = {"alone": {}, "variants": {}}


def _all_strategies(facts: Mapping[int, Facts]) -> "dict[int, strategies.Facts]":
    """The variants of all strategies as those of one, by names such as fsdp2/offload; in the order of names.py, since
    JSON has none."""
    return {
        rank: {
            "alone": {name: alone for its in own["strategies"].values() for name, alone in its["alone"].items()},
            "variants": {
                f"{strategy}/{name}": own["strategies"][strategy]["variants"][name]
                for strategy, known in VARIANTS.items()
                for name in known
                if name in own["strategies"].get(strategy, _NONE)["variants"]
            },
        }
        for rank, own in facts.items()
        if own["strategies"] and not own["mistake"]
    }
