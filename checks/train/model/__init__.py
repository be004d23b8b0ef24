"""Your own model trains under DDP and FSDP as in one process, and under tensor and pipeline parallelism.

`--model MODULE:NAME` names a function without arguments that returns (model, batch, loss_fn): the unwrapped model; the
*global* batch, a tensor or a tuple, list or dict of tensors with the rows in dimension 0; and `loss_fn(model, batch)`,
the mean loss over the given rows. Or it names a model, a class or function that makes one (also a LightningModule), or
a config.json of transformers: what is missing is made up and reported. Every rank makes it with the same random seed,
and trains alone on all rows and together on its own rows, a few steps each. The learning rate is chosen so that a step
changes the weights by 0.2%; dropout is off. What would make many ranks train differently than one is reported first:
see docs/model.md.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from preflight.check import (
    After,
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
    plots,
    ranges,
    vote,
    words,
)
from preflight.checks.train.model import changes, exchanged, traits, user_fixes, user_model
from preflight.checks.train.model.facts import Facts, Wanted
from preflight.checks.train.shared import model_source, parity, plotted
from preflight.sdk import effective_batch
from preflight.train_smoke.trainer.names import PLAIN
from preflight.train_smoke.user import names as user_names
from preflight.train_smoke.user.names import VARIANTS

if TYPE_CHECKING:
    from preflight.train_smoke.strategies import training


def _deadline(job: Job) -> float:
    """A model with a few million parameters takes seconds per variant on a CPU; there are 27 variants."""
    return 300.0 + job.world_size / 64


PARTS = (parity, traits, exchanged, changes)
MODEL = option(model_source.parse, None, "what makes or is the model, as MODULE:NAME, FILE.py:NAME or config.json")
PLAN = Plan(
    Scope.WORLD,
    lambda asked: Level.STANDARD if asked.sets(MODEL) else None,
    deadline_s=_deadline,
    estimate_s=5.0,
    after=dict.fromkeys(("comm.init", "train.alone"), After.NEEDS),
    fresh=True,
)


def _strategies(text: str) -> dict[str, list[str]]:
    """Variants by strategy, from "ddp,fsdp2/offload" or "all". Raises ValueError."""
    if text.strip() == "all":
        return {strategy: list(variants) for strategy, variants in VARIANTS.items()}
    found: dict[str, list[str]] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        strategy, slash, variant = word.partition("/")
        if strategy not in VARIANTS or (slash and variant not in VARIANTS[strategy]):
            known = ", ".join(VARIANTS.get(strategy, VARIANTS))
            raise ValueError(f"{word} is not a strategy; known are {known}")
        chosen = found.setdefault(strategy, [])
        chosen += [name for name in ([variant] if slash else VARIANTS[strategy]) if name not in chosen]
    if not found:
        raise ValueError(f"no strategy is named; known are {', '.join(VARIANTS)}")
    return found


STRATEGIES = option(_strategies, None, "such as ddp or fsdp2/offload, separated by commas, or all; unset: by level")
BASE_BATCH = option(count, None, "the global batch that your learning rate was tuned for, to say how to scale it")
TP_PLAN = option(
    UserCode.parse, None, "a dict of module names to ParallelStyle, or a function of the model, as MODULE:NAME"
)
TP_RANKS = option(count, None, "how many ranks share each matrix; unset: 4 or 2 of a node")
THREADS = option(count, None, "threads for arithmetic on CPUs; unset: as set for the ranks")

USER_ERROR = Code(
    "The function, the model's forward or the loss raises.",
    fix="Fix it at the line shown; the whole stack is in the evidence, and with --report DIR in DIR/logs.",
)
WRONG_RETURN = Code(
    "The function does not return (model, batch, loss_fn).",
    fix="Let it return a torch.nn.Module, the global batch and a function of both: see docs/model.md.",
)
WRONG_MODEL = Code(
    "Some strategies cannot wrap a copy of the model.",
    fix="Return the plain model with its weights: not wrapped, not on the meta device, with something to train.",
)
WRONG_BATCH = Code(
    "The batch is not a tensor, or tuple, list or dict of tensors, with as many rows each.",
    fix="Return the global batch of one step as tensors with the rows in dimension 0.",
)
WRONG_LOSS = Code(
    "The loss cannot be trained on (not one finite number that depends on the parameters).",
    fix="Return from loss_fn(model, batch) one finite number that depends on the model's parameters: the mean loss.",
)
SUM_FOR_MEAN = Code(
    "The loss is a sum over the rows instead of their mean.",
    fix="Use reduction='mean': DDP and FSDP average over ranks, so a sum makes the step depend on the number of ranks.",
)
WRONG_PLAN = Code(
    "The tensor-parallel plan does not fit the model.",
    fix="Let train.model.tp_plan name a dict of module names to ParallelStyle (or colwise, rowwise, ...), a function "
    "of the model that returns one, or a function of the model and the mesh that applies it: see docs/model.md.",
)
NOT_RUN = Code(
    "A requested strategy cannot run with this model.",
    fix="See the message; --set train.model.strategies=... excludes it.",
)
UNTIED = Code(
    "One parameter of the model becomes several under the strategy: each gets only a part of the gradient.",
    fix="Tensor parallel: tie them again right after parallelize_module, with the same style for both. A pipeline: add "
    "up the gradients of all copies before each step, or do not tie them.",
)
REFUSED = Code(
    "A strategy does not accept the model.",
    fix="See the message and the stack (--report DIR, in DIR/logs); --set train.model.strategies=... excludes it.",
)
DIFFERENT_MODELS = Code(
    "Ranks have models of different shapes.",
    fix="Let the function build the same model on all ranks: look for what depends on the rank or the node.",
)
DIFFERENT_BATCHES = Code(
    "Ranks have different batches.",
    fix="Return the same global batch on all ranks (preflight cuts it): seed what draws it, do not shard it by rank.",
)
DIFFERENT_WEIGHTS = Code(
    "Ranks have different weights; the first rank's were loaded on all, as DDP does.",
    fix="Seed the function if all ranks should start the same; FSDP does not load rank 0's weights unless told to.",
)
MISTAKES = {
    "user_error": USER_ERROR,
    "wrong_return": WRONG_RETURN,
    "wrong_model": WRONG_MODEL,
    "wrong_batch": WRONG_BATCH,
    "wrong_loss": WRONG_LOSS,
    "sum_for_mean": SUM_FOR_MEAN,
    "refused": REFUSED,
    "wrong_plan": WRONG_PLAN,
    "not_run": NOT_RUN,
}


def measure(ctx: Context) -> Facts:
    code = ctx[MODEL]
    assert code is not None, "the engine asks for it"
    at_level = _strategies("all") if ctx.level is Level.FULL else {"ddp": [PLAIN], "fsdp2": [PLAIN]}
    if ctx[TP_PLAN]:
        at_level["tp"] = [user_names.PLAN]
    chosen = ctx[STRATEGIES]
    wanted = Wanted(chosen or at_level, bool(chosen), ctx[THREADS], ctx[TP_PLAN], ctx[TP_RANKS])
    return user_model.measure(ctx, code, wanted)


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from _mistakes(facts, run)
    yield from _refused(facts[min(facts)], run)
    yield from _differing(facts, run)
    tried = {rank: own for rank, own in facts.items() if own["traits"]}
    if tried:
        yield from traits.told(tried, shares_layers=bool(run[TP_PLAN] or "tp" in (run[STRATEGIES] or ())))
        yield from changes.told(tried)
    trained = {rank: own for rank, own in tried.items() if own["strategies"] and not own["mistake"]}
    said = False
    yield from _untied(trained, run)
    for strategy in next(iter(trained.values()))["strategies"] if trained else ():
        its = {rank: _compared(own["strategies"][strategy]) for rank, own in trained.items()}
        if not next(iter(its.values()))["variants"]:
            continue
        for found in parity.judge(its, run, strategy, user_fixes.how(strategy, next(iter(trained.values())))):
            if found.code is not parity.UNSTEADY or not said:  # it concerns training alone, which strategies share
                yield user_fixes.of(found, strategy)
            said |= found.code is parity.UNSTEADY


def _mistakes(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Findings about mistakes; one that all ranks make blames no rank."""
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
    """What training raised under a strategy on all ranks: a failure if the user wants that one, or none works."""
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
        also = f"; the same under {', '.join(others)}" if others else ""
        find = code.fail if strategy in (asked or ()) or code is WRONG_PLAN or not ran else code.warn
        yield find(f"{told['text']}{also}", evidence=told["evidence"], file=told["file"], line=told["line"])


def _untied(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Untied parameters, the same on all ranks like plan and stages. A failure if the strategy was asked for."""
    for strategy, its in next(iter(facts.values()))["strategies"].items() if facts else ():
        for variant, compared in its["variants"].items():
            for names in (compared["changed"] or {"untied": []})["untied"]:
                text = f"under {strategy}/{variant} {words.some(names)} are no longer one parameter"
                again = f"tie them again (model.{names[-1]} = model.{names[0]})"
                how = "each stage trains its own" if strategy == "pp" else again
                more = f"expected one: {how}; it is a different model now, so no numbers were compared"
                find = UNTIED.fail if run[STRATEGIES] or run[TP_PLAN] else UNTIED.warn
                yield find(f"{text}, {more}", parameter=names[0], evidence={"names": names[:20]})


def _compared(its: "training.Facts") -> "training.Facts":
    """Without the variants that trained a different model, which `_untied` reports."""
    variants = {name: own for name, own in its["variants"].items() if not (own["changed"] or {"untied": []})["untied"]}
    return {"alone": its["alone"], "variants": variants}


def _differing(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """What should be the same on all ranks."""
    whole = {rank: own for rank, own in facts.items() if own["layout"]}
    texts = [own["unlike"] for own in whole.values() if own["unlike"]]
    models = vote({rank: own["layout"] for rank, own in whole.items()})
    if whole and not models.unanimous:
        yield from _parted(
            DIFFERENT_MODELS, "the model has different parameters or buffers", models, f": {texts[0]}", run
        )
        return
    batches = vote({rank: own["batch"] for rank, own in whole.items()})
    if whole and not batches.unanimous:
        yield from _parted(DIFFERENT_BATCHES, "the batch has different numbers or shapes", batches, "", run)
    elif any(own["loaded"] for own in whole.values()):
        others = [rank for rank, own in whole.items() if own["weights"] != whole[min(whole)]["weights"]]
        text = f"{ranges.ranks(others)} started with different weights than rank {min(whole)}, whose were loaded on all"
        yield DIFFERENT_WEIGHTS.info(text)


def _parted(code: Code, what: str, counted: Vote[str], more: str, run: Run) -> Iterator[Finding]:
    """If more than half agree, names the others."""
    for rank, _ in counted.odd():
        yield code.fail(f"{what} than on {counted.share()}{more}", **run.job.where(rank))
    if not counted.decided:
        sides = ", ".join(f"one on {ranges.ranks(ranks)}" for ranks in list(counted.ranks_of.values())[:4])
        yield code.fail(f"{what} on some ranks than on others ({sides}), expected the same on all{more}")


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    """ "ddp/plain, fsdp2/plain on 2 ranks: loss 4.1 to 3.9, as alone to 3e-07; 4 per rank x 2 ranks = 8"."""
    if not any(own["own"] for own in facts.values()):
        return "nothing was trained"
    batch = effective_batch.in_words([own["own"] for own in facts.values()], len(facts), 1, run[BASE_BATCH])
    trained = _all_strategies(facts)
    went = [parity.summarize(trained, run)] if any(own["variants"] for own in trained.values()) else []
    not_run = facts[min(facts)]["not_run"]
    why = [f"not run: {', '.join(f'{name} ({reason})' for name, reason in not_run.items())}"] if not_run else []
    return "; ".join([*went, batch, *why])


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    yield from plotted.plot(_all_strategies(facts), run, screen="always")


def _all_strategies(facts: Mapping[int, Facts]) -> "dict[int, training.Facts]":
    """The variants of all strategies as if of one, by names such as fsdp2/offload; in the order of names.py, since JSON
    keeps none."""
    return {rank: _joined(own["strategies"]) for rank, own in facts.items() if own["strategies"] and not own["mistake"]}


def _joined(strategies: "Mapping[str, training.Facts]") -> "training.Facts":
    joined = _nothing()
    for strategy, known in VARIANTS.items():
        its = _compared(strategies.get(strategy, _nothing()))
        rows = f", all rows of {strategy}" if strategy in user_names.OWN else ""  # others train alone on a part
        joined["alone"] |= {f"{name}{rows}": alone for name, alone in its["alone"].items()}
        joined["variants"] |= {
            f"{strategy}/{name}": {**its["variants"][name], "recipe": f"{its['variants'][name]['recipe']}{rows}"}
            for name in known
            if name in its["variants"]
        }
    return joined


def _nothing() -> "training.Facts":
    return {"alone": {}, "variants": {}}
