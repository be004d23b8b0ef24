"""Measures a user's model: alone on each rank first, and together only if all ranks got that far.

So what is wrong with the model is seen where no rank waits for another, and all can tell it.
"""

import itertools
import json
import random
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from preflight.check import Context, Skip, UserCode, UserError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from preflight.train_smoke import strategies
    from preflight.train_smoke.task import Task
    from preflight.train_smoke.user_given import Given, Told

SEED = 1
ALL_FAIL_S = 5.0
"""How long a rank whose training has failed waits for the others to fail in the same way, before it fails alone."""
REFUSALS = (ValueError, TypeError, NotImplementedError, AttributeError, AssertionError, LookupError)
"""What torch raises of a model that a strategy cannot take. (A RuntimeError may be a collective's.)"""


class Facts(TypedDict):
    mistake: "Told | None"
    """Why this rank did not train."""
    skipped: str
    """Why it could not, though nothing is wrong."""
    layout: str
    """A digest of names, shapes and types of parameters and buffers; the next two of their values, and of the batch."""
    weights: str
    batch: str
    batch_words: str
    traits: dict[str, Any] | None
    """As `user_traits.Traits`."""
    rows: int
    """Of the global batch."""
    own: int
    """Of these, this rank's."""
    unlike: str
    """The first parameter that is not as in the first rank's model."""
    loaded: bool
    """Whether the first rank's weights were loaded into all, since they were not the same."""
    unused: list[str]
    """Parameters that were left as they are: on some rank they get no gradient."""
    left_out: dict[str, str]
    """Variants that were not run, and why."""
    strategies: "dict[str, strategies.Facts]"


class Answer(TypedDict):
    """The first rank's, to all."""

    go: bool
    skipped: str
    loaded: bool
    layout: list[str]
    """Of the first rank's model, where others differ."""
    traits: dict[str, Any] | None
    """The first rank's: rates must be the same on all."""
    unused: list[str]
    """On any rank."""


def measure(ctx: Context, code: UserCode, names: Mapping[str, list[str]], threads: int | None) -> Facts:
    """`names`: variants by their strategies. Raises Skip."""
    from preflight.train_smoke import user_given
    from preflight.train_smoke.task import import_dynamo

    ctx.process_group()
    ctx.doing("importing torch._dynamo")
    import_dynamo()
    facts = Facts(
        mistake=None, skipped="", layout="", weights="", batch="", batch_words="", traits=None, rows=0, own=0,
        unlike="", loaded=False, unused=[], left_out={}, strategies={},
    )  # fmt: skip
    given = _given_and_tried(ctx, code, facts, threads)
    layout = user_given.layout(given.model) if given else []
    store = ctx.store()
    with ctx.collective("agreeing on the model", f"{len(ctx.members)} ranks"):
        answer = _answered(store, ctx, facts, layout)
    if given and answer["layout"]:
        facts["unlike"] = _unlike(layout, answer["layout"], ctx.rank, ctx.members[0])
    if answer["go"] and given:
        _train_together(ctx, code, given, answer, names, threads, facts, store)
    if facts["skipped"] or answer["skipped"]:
        raise Skip(facts["skipped"] or answer["skipped"], facts)
    return facts


# Alone


def _given_and_tried(ctx: Context, code: UserCode, facts: Facts, threads: int | None) -> "Given | None":
    """None where something is wrong, which the facts then tell."""
    from preflight.train_smoke.task import plain_arithmetic

    try:
        with plain_arithmetic(threads):
            return _alone(ctx, code, facts)
    except Exception as error:
        if not _explained(error, code, facts):
            raise
        return None


def _alone(ctx: Context, code: UserCode, facts: Facts) -> "Given":
    from preflight.train_smoke import user_given, user_task, user_traits

    _seed()
    ctx.doing(f"calling {code}")
    given = user_given.given(code.call())
    rank, ranks = ctx.group_rank, len(ctx.members)
    with code.blamed():
        user_task.fits(given, ctx.device, len(set(ctx.job.node_of(ctx.rank).ranks) & set(ctx.members)))
        dropouts = user_traits.without_dropout(given.model)
        facts["rows"], own = given.rows, user_task.rows_of(given.rows, rank, ranks)
        facts["own"] = len(own) if given.rows > rank else 0
        facts["layout"] = user_given.digest(iter(user_given.layout(given.model)))
        facts["weights"] = user_given.digest(user_given.values(given.model))
        facts["batch"] = user_given.digest(one for _, one in user_given.tensors(given.batch))
        facts["batch_words"] = user_given.words(given.batch)
        ctx.doing("training it alone for one step")
        facts["traits"] = vars(user_traits.traits(given, own, ctx.device, dropouts))
    return given


def _seed() -> None:
    """The same on all ranks: weights and batches that the function draws are then the same, too."""
    import torch

    torch.manual_seed(SEED)
    random.seed(SEED)
    if "numpy" in sys.modules:  # torch imports it, where it is installed
        sys.modules["numpy"].random.seed(SEED)


def _explained(error: Exception, code: UserCode, facts: Facts) -> bool:
    """Whether it is an exception that facts can tell; they then do."""
    from preflight.train_smoke import user_given, user_task
    from preflight.train_smoke.user_given import Mistake, Told
    from preflight.train_smoke.user_traits import Incomparable

    if user_given.is_out_of_memory(error):
        facts["skipped"] = str(error) if isinstance(error, user_task.TooBig) else f"memory has run out: {_said(error)}"
    elif isinstance(error, Incomparable) or isinstance(error.__cause__, Incomparable):
        facts["skipped"] = f"{str(error).replace('Incomparable: ', '')}, and strategies cannot be compared"
    elif isinstance(error, UserError):
        facts["mistake"] = Told(kind="user_error", text=error.text, file=error.file, line=error.line, evidence={})
    elif isinstance(error, Mistake):
        place = code.place()
        told = error.to_json()
        if place is not None:
            told["file"], told["line"] = place
            told["text"] = f"{place[0]}:{place[1]} in {code.function}(): {told['text']}"
        facts["mistake"] = told
    else:
        return False
    return True


def _said(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0][:300]


# What ranks agree on


def _answered(store: "Store", ctx: Context, facts: Facts, layout: list[str]) -> Answer:
    first, *others = ctx.members
    said: dict[str, Any] = {key: facts[key] for key in ("mistake", "skipped", "layout", "weights", "batch", "traits")}
    said["rank"] = ctx.rank
    if ctx.rank != first:
        store.set(f"said/{ctx.rank}", json.dumps(said))
        answer: Answer = json.loads(store.get("answer"))
        return answer
    theirs = store.multi_get([f"said/{rank}" for rank in others]) if others else []
    answer = _answer([said, *map(json.loads, theirs)], layout)
    store.set("answer", json.dumps(answer))
    return answer


def _answer(said: list[dict[str, Any]], layout: list[str]) -> Answer:
    """`layout`: of the first rank's model. Differences beside weights are no reason to go on: `judge` tells them."""
    alike = {key: len({one[key] for one in said}) == 1 for key in ("layout", "weights", "batch")}
    whole = [one for one in said if not one["mistake"] and not one["skipped"]]
    unused = [name for one in whole for kind in ("unused", "unused_here") for name in one["traits"][kind]]
    return Answer(
        go=len(whole) == len(said) and alike["layout"] and alike["batch"],
        skipped=next((f"rank {one['rank']}: {one['skipped']}" for one in said if one["skipped"]), ""),
        loaded=not alike["weights"],
        layout=[] if alike["layout"] else layout,
        traits=said[0]["traits"],
        unused=sorted(set(unused)),
    )


def _unlike(layout: list[str], theirs: list[str], rank: int, first: int) -> str:
    """The first line that differs; "" where none does."""
    pairs = itertools.zip_longest(layout, theirs, fillvalue="nothing more")
    return next((f"{here} on rank {rank}, {there} on rank {first}" for here, there in pairs if here != there), "")


def _all_failed(ctx: Context, store: "Store") -> bool:
    """Whether every rank's training has failed: then none waits for another, and each tells it by its facts."""
    if store.add("failed", 1) == len(ctx.members):
        store.set("all failed", "")
        return True
    try:
        store.wait(["all failed"], timedelta(seconds=ALL_FAIL_S))
    except RuntimeError:  # torch's DistStoreError
        return False
    return True


# Together


def _train_together(
    ctx: Context, code: UserCode, given: "Given", answer: Answer, names: Mapping[str, list[str]],
    threads: int | None, facts: Facts, store: "Store",
) -> None:  # fmt: skip
    try:
        _trained(ctx, code, given, answer, names, threads, facts)
    except Exception as error:
        known = _explained(error, code, facts)
        if not known or not (facts["skipped"] or _all_failed(ctx, store)):
            raise


def _trained(
    ctx: Context, code: UserCode, given: "Given", answer: Answer, names: Mapping[str, list[str]],
    threads: int | None, facts: Facts,
) -> None:  # fmt: skip
    from preflight.train_smoke import reference, user_task
    from preflight.train_smoke.task import Rates

    traits = answer["traits"] or {}
    exactly = bool(traits["batch_norms"] or traits["apart"])
    facts["unused"] = answer["unused"]
    for name, one in given.model.named_parameters():
        if name in facts["unused"]:
            one.requires_grad_(False)
    if answer["loaded"]:
        _load_first(ctx, given)
        facts["loaded"] = True
    rates = Rates(traits["rate"], traits["adamw_rate"])
    task = user_task.task(given, ctx.group_rank, len(ctx.members), ctx.device, rates, threads, exactly=exactly)
    facts["left_out"] = user_task.left_out(names, exactly=exactly, calls=traits["calls"])
    last = None
    for recipe, strategy, variant in user_task.by_recipe(names, facts["left_out"]):
        if recipe != last:
            reference.forget()
        last = recipe
        _run_one(ctx, code, task, strategy, variant, facts)
    reference.forget()


def _run_one(ctx: Context, code: UserCode, task: "Task", strategy: str, variant: str, facts: Facts) -> None:
    from preflight.train_smoke import strategies
    from preflight.train_smoke.user_given import Mistake
    from preflight.train_smoke.wrapped import Setting

    name = f"{strategy}/{variant}"
    so_far = facts["strategies"].setdefault(strategy, strategies.Facts(alone={}, variants={}))
    setting = Setting(ctx.process_group(), ctx.device, len(ctx.members), ctx.part)
    try:
        with code.blamed():
            made = strategies.run(task, strategy, [variant], setting, ctx.collective, ctx.doing)
    except UserError as error:
        ctx.page.leave()  # what a strategy does before the model's forward is marked: his line may stand there
        raise UserError(f"{error.text} (under {name})", error.file, error.line) from error
    except REFUSALS as error:
        raise Mistake("refused", f"under {name} torch raises {type(error).__name__}: {_said(error)}") from error
    so_far["alone"] |= made["alone"]
    so_far["variants"] |= made["variants"]


def _load_first(ctx: Context, given: "Given") -> None:
    """The first rank's parameters and buffers into all ranks' models."""
    import torch

    from preflight.train_smoke import user_given

    group = ctx.process_group()
    with ctx.collective("loading the first rank's weights"), torch.no_grad():
        for tensor in user_given.values(given.model):
            raw = tensor.detach().contiguous().flatten().view(torch.uint8).to(ctx.device)
            torch.distributed.broadcast(raw, group=group, group_src=0)
            tensor.copy_(raw.cpu().view(tensor.dtype).view(tensor.shape))
