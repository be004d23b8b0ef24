"""Measures a user's model: alone on each rank first, and together only if all ranks got that far.

So what is wrong with the model is seen where no rank waits for another, and all can tell it.
"""

import itertools
import json
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from preflight.check import Context, Skip, UserCode, UserError

if TYPE_CHECKING:
    from torch import nn
    from torch._C._distributed_c10d import Store

    from preflight.train_smoke import strategies
    from preflight.train_smoke.task import Task
    from preflight.train_smoke.user_given import Given, Mistake, Told

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
    refused: "dict[str, Told]"
    """Variants under which every rank's training raised."""
    steps: int
    """Of each training."""
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
    step_s: float
    """Forward and backward over all rows, on the slowest rank."""
    left_s: float
    """Of the deadline."""


def measure(ctx: Context, code: UserCode, names: Mapping[str, list[str]], threads: int | None) -> Facts:
    """`names`: variants by their strategies. Raises Skip."""
    from preflight.train_smoke import user_given
    from preflight.train_smoke.task import import_dynamo

    end = time.monotonic() + ctx.deadline_s
    ctx.process_group()
    ctx.doing("importing torch._dynamo")
    import_dynamo()
    facts = Facts(
        mistake=None, skipped="", layout="", weights="", batch="", batch_words="", traits=None, rows=0, own=0,
        unlike="", loaded=False, unused=[], left_out={}, refused={}, steps=0, strategies={},
    )  # fmt: skip
    given = _given_and_tried(ctx, code, facts, threads)
    layout = user_given.layout(given.model) if given else []
    store = ctx.store()
    with ctx.collective("agreeing on the model", f"{len(ctx.members)} ranks"):
        answer = _answered(store, ctx, facts, layout, end - time.monotonic())
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

    user_given.seed()
    ctx.doing(f"calling {code}")

    def again() -> "nn.Module":
        user_given.seed()
        model: nn.Module = code.call()[0].cpu()
        user_traits.without_dropout(model)
        return model

    given = user_given.given(code.call(), again)
    rank, ranks = ctx.group_rank, len(ctx.members)
    with code.blamed():
        user_task.fits(given, ctx.device, len(set(ctx.job.node_of(ctx.rank).ranks) & set(ctx.members)))
        dropouts = user_traits.without_dropout(given.model)
        facts["rows"], own = given.rows, user_task.rows_of(given.rows, rank, ranks)
        facts["own"] = len(own) if given.rows > rank else 0
        facts["layout"] = user_given.digest(iter(user_given.layout(given.model)))
        facts["weights"] = user_given.digest(user_given.values(given.model))
        facts["batch"] = user_given.digest(tensor for _, tensor in user_given.tensors(given.batch))
        facts["batch_words"] = user_given.words(given.batch)
        ctx.doing("training it alone for one step")
        facts["traits"] = vars(user_traits.traits(given, own, ctx.device, dropouts))
    return given


def _explained(error: Exception, code: UserCode, facts: Facts) -> bool:
    """Whether it is an exception that facts can tell; they then do."""
    from preflight.train_smoke import user_given, user_task
    from preflight.train_smoke.user_given import Mistake
    from preflight.train_smoke.user_traits import Incomparable

    if user_given.is_out_of_memory(error):
        facts["skipped"] = str(error) if isinstance(error, user_task.TooBig) else f"memory has run out: {_said(error)}"
    elif isinstance(error, Incomparable) or isinstance(error.__cause__, Incomparable):
        facts["skipped"] = f"{str(error).replace('Incomparable: ', '')}, and strategies cannot be compared"
    elif isinstance(error, UserError | Mistake):
        facts["mistake"] = _as_told(error, code)
    else:
        return False
    return True


def _as_told(error: "UserError | Mistake", code: UserCode) -> "Told":
    """A mistake stands at the function's first line, where no other is known."""
    from preflight.train_smoke.user_given import Told

    if isinstance(error, UserError):
        return Told(kind="user_error", text=error.text, file=error.file, line=error.line, evidence={})
    told, place = error.to_json(), code.place()
    if place is not None:
        told["file"], told["line"] = place
        told["text"] = f"{place[0]}:{place[1]} in {code.function}(): {told['text']}"
    return told


def _said(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0][:300]


# What ranks agree on


def _answered(store: "Store", ctx: Context, facts: Facts, layout: list[str], left_s: float) -> Answer:
    first, *others = ctx.members
    said: dict[str, Any] = {key: facts[key] for key in ("mistake", "skipped", "layout", "weights", "batch", "traits")}
    said["rank"] = ctx.rank
    if ctx.rank != first:
        store.set(f"said/{ctx.rank}", json.dumps(said))
        answer: Answer = json.loads(store.get("answer"))
        return answer
    theirs = store.multi_get([f"said/{rank}" for rank in others]) if others else []
    answer = _answer([said, *map(json.loads, theirs)], layout, left_s)
    store.set("answer", json.dumps(answer))
    return answer


def _answer(said: list[dict[str, Any]], layout: list[str], left_s: float) -> Answer:
    """`layout`: of the first rank's model. Differences beside weights are no reason to go on: `judge` tells them."""
    alike = {key: len({answer[key] for answer in said}) == 1 for key in ("layout", "weights", "batch")}
    whole = [answer for answer in said if not answer["mistake"] and not answer["skipped"]]
    unused = [name for answer in whole for kind in ("unused", "unused_here") for name in answer["traits"][kind]]
    return Answer(
        go=len(whole) == len(said) and alike["layout"] and alike["batch"],
        skipped=next((f"rank {answer['rank']}: {answer['skipped']}" for answer in said if answer["skipped"]), ""),
        loaded=not alike["weights"],
        layout=[] if alike["layout"] else layout,
        traits=said[0]["traits"],
        unused=sorted(set(unused)),
        step_s=max((answer["traits"]["step_s"] for answer in whole), default=0.0),
        left_s=left_s,
    )


def _unlike(layout: list[str], theirs: list[str], rank: int, first: int) -> str:
    """The first line that differs; "" where none does."""
    pairs = itertools.zip_longest(layout, theirs, fillvalue="nothing more")
    return next((f"{here} on rank {rank}, {there} on rank {first}" for here, there in pairs if here != there), "")


def _all_failed(ctx: Context, store: "Store", name: str) -> bool:
    """Whether every rank's training under this variant has failed: then none waits for another, and each tells it by
    its facts."""
    if store.add(f"failed {name}", 1) == len(ctx.members):
        store.set(f"all failed {name}", "")
        return True
    try:
        store.wait([f"all failed {name}"], timedelta(seconds=ALL_FAIL_S))
    except RuntimeError:  # torch's DistStoreError
        return False
    return True


# Together


def _train_together(
    ctx: Context, code: UserCode, given: "Given", answer: Answer, names: Mapping[str, list[str]],
    threads: int | None, facts: Facts, store: "Store",
) -> None:  # fmt: skip
    try:
        _trained(ctx, code, given, answer, names, threads, facts, store)
    except Exception as error:
        if not _explained(error, code, facts) or not facts["skipped"]:
            raise


def _trained(
    ctx: Context, code: UserCode, given: "Given", answer: Answer, names: Mapping[str, list[str]],
    threads: int | None, facts: Facts, store: "Store",
) -> None:  # fmt: skip
    from preflight.train_smoke import reference, user_schedule, user_task
    from preflight.train_smoke.task import Rates
    from preflight.train_smoke.user_given import Mistake

    traits = answer["traits"] or {}
    exactly = bool(traits["batch_norms"] or traits["draws"] or traits["apart"])
    facts["unused"] = answer["unused"]
    for name, parameter in given.model.named_parameters():
        if name in facts["unused"]:
            parameter.requires_grad_(False)
    if answer["loaded"]:
        _load_first(ctx, given)
        facts["loaded"] = True
    rates = Rates(traits["rate"], traits["adamw_rate"])
    rank, ranks = ctx.group_rank, len(ctx.members)
    unfit = user_task.left_out(names, exactly=exactly, calls=traits["calls"])
    planned = user_schedule.schedule(names, unfit, answer["step_s"], answer["left_s"], ranks, exactly=exactly)
    facts["left_out"], facts["steps"], facts["skipped"] = unfit | planned.left_out, planned.steps, planned.skipped
    task = user_task.task(given, rank, ranks, ctx.device, rates, threads, planned.steps, exactly=exactly)
    last, longest_s, end = None, 0.0, time.monotonic() + answer["left_s"]
    for recipe, strategy, variant in user_task.by_recipe(names, facts["left_out"]):
        name, start = f"{strategy}/{variant}", time.monotonic()
        if not _has_time(ctx, store, name, longest_s < end - start):
            facts["left_out"][name] = "the variants before it took so long that there was no time for it"
            continue
        if recipe != last:
            reference.forget()
        last = recipe
        try:
            _run_one(ctx, code, task, strategy, variant, facts)
        except (UserError, Mistake) as error:
            if not _all_failed(ctx, store, name):
                raise
            facts["refused"][name] = _as_told(error, code)
        longest_s = max(longest_s, time.monotonic() - start)
    reference.forget()


def _has_time(ctx: Context, store: "Store", name: str, here: bool) -> bool:
    """Whether the first rank has time for this variant, by which all go."""
    if ctx.rank == ctx.members[0]:
        store.set(f"time for {name}", "yes" if here else "no")
    with ctx.collective("agreeing on the time", name):
        return bool(store.get(f"time for {name}") == b"yes")


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
        ctx.page.leave()
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
