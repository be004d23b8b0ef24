"""Measures a user's model: alone on each rank first, and together only if all ranks got that far.

So faults of the model show while no rank waits for another, and all can report them.
"""

import itertools
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from preflight.check import Context, Skip, UserCode
from preflight.checks.train.model import mistakes, together
from preflight.checks.train.model.facts import Agreement, Facts, Wanted
from preflight.checks.train.model.time_guard import TooSlow, time_guard
from preflight.checks.train.shared import model_source

if TYPE_CHECKING:
    from torch import nn
    from torch._C._distributed_c10d import Store

    from preflight.train_smoke.user.validation import Given


def measure(ctx: Context, code: UserCode, wanted: Wanted) -> Facts:
    """Raises Skip."""
    from preflight.train_smoke.trainer.task import import_dynamo
    from preflight.train_smoke.user import validation

    end = time.monotonic() + ctx.deadline_s
    ctx.process_group()
    ctx.doing("importing torch._dynamo")
    import_dynamo()
    facts = Facts(
        mistake=None, skipped="", layout="", weights="", batch="", batch_words="", traits=None, made_up=[],
        smaller="", rows=0, own=0, unlike="", loaded=False, unused=[], left_out={}, not_run={}, refused={},
        steps=0, strategies={},
    )  # fmt: skip
    given = _given_and_tried(ctx, code, facts, wanted.threads)
    layout = validation.layout(given.model) if given else []
    store = ctx.store()
    with ctx.collective("agreeing on the model", f"{len(ctx.members)} ranks"):
        answer = _answered(store, ctx, facts, layout, end - time.monotonic())
    if given and answer["layout"]:
        facts["unlike"] = _differing(layout, answer["layout"], ctx.rank, ctx.members[0])
    if answer["go"] and given:
        together.train(ctx, code, given, answer, wanted, facts, store)
    if facts["skipped"] or answer["skipped"]:
        raise Skip(facts["skipped"] or answer["skipped"], facts)
    return facts


# Alone


def _given_and_tried(ctx: Context, code: UserCode, facts: Facts, threads: int | None) -> "Given | None":
    """None if something is wrong, which the facts then describe."""
    from preflight.train_smoke.trainer.task import deterministic_arithmetic

    done = [""]

    def doing(what: str) -> None:
        done.append(what)
        ctx.doing(what)

    try:
        with deterministic_arithmetic(threads), time_guard(ctx.deadline_s, code, lambda: done[-1]):
            return _alone(ctx, code, facts, doing)
    except TooSlow as slow:
        facts["skipped"] = str(slow)
    except Exception as error:
        if not mistakes.explained(mistakes.of_backward(error), code, facts):
            raise
    return None


def _alone(ctx: Context, code: UserCode, facts: Facts, doing: Callable[[str], None]) -> "Given":
    from preflight.sdk.tensor_bits import digest
    from preflight.train_smoke.trainer.batch import tensors
    from preflight.train_smoke.user import completion, traits, validation
    from preflight.train_smoke.user import task as user_task

    rank, ranks = ctx.group_rank, len(ctx.members)

    def made() -> Any:
        told, facts["smaller"] = model_source.made(ctx, code)
        return told

    def again() -> "nn.Module":
        model: nn.Module = completion.model_of(made()).cpu()
        traits.without_dropout(model)
        return model

    doing(f"calling {code}")
    told = made()
    with code.blamed():
        form = completion.completed(told, ranks)
        facts["made_up"] = list(form.made_up)
        given = validation.given(form.made, again)
        user_task.fits(given, ctx.device, model_source.ranks_here(ctx))
        dropouts = traits.without_dropout(given.model)
        facts["rows"], own = given.rows, user_task.rows_of(given.rows, rank, ranks)
        facts["own"] = len(own) if given.rows > rank else 0
        facts["layout"] = digest(validation.layout(given.model))
        facts["weights"] = digest(validation.values(given.model))
        facts["batch"] = digest(tensors(given.batch))
        facts["batch_words"] = validation.words(given.batch)
        doing("training it alone for one step")
        facts["traits"] = vars(traits.traits(given, own, ctx.device, dropouts, doing))
    return given


# What ranks agree on


def _answered(store: "Store", ctx: Context, facts: Facts, layout: list[str], left_s: float) -> Agreement:
    first, *others = ctx.members
    said: dict[str, Any] = {key: facts[key] for key in ("mistake", "skipped", "layout", "weights", "batch", "traits")}
    said["rank"] = ctx.rank
    if ctx.rank != first:
        store.set(f"said/{ctx.rank}", json.dumps(said))
        answer: Agreement = json.loads(store.get("answer"))
        return answer
    theirs = store.multi_get([f"said/{rank}" for rank in others]) if others else []
    answer = _answer([said, *map(json.loads, theirs)], layout, left_s)
    store.set("answer", json.dumps(answer))
    return answer


def _answer(said: list[dict[str, Any]], layout: list[str], left_s: float) -> Agreement:
    """`layout`: of the first rank's model. Training stops at differences other than weights, which `judge` reports."""
    alike = {key: len({answer[key] for answer in said}) == 1 for key in ("layout", "weights", "batch")}
    whole = [answer for answer in said if not answer["mistake"] and not answer["skipped"]]
    unused = [name for answer in whole for kind in ("unused", "unused_here") for name in answer["traits"][kind]]
    return Agreement(
        go=len(whole) == len(said) and alike["layout"] and alike["batch"],
        skipped=next((f"rank {answer['rank']}: {answer['skipped']}" for answer in said if answer["skipped"]), ""),
        loaded=not alike["weights"],
        layout=[] if alike["layout"] else layout,
        traits=said[0]["traits"],
        unused=sorted(set(unused)),
        step_s=max((answer["traits"]["step_s"] for answer in whole), default=0.0),
        left_s=left_s,
    )


def _differing(layout: list[str], theirs: list[str], rank: int, first: int) -> str:
    """The first line that differs, or ""."""
    pairs = itertools.zip_longest(layout, theirs, fillvalue="nothing more")
    return next((f"{here} on rank {rank}, {there} on rank {first}" for here, there in pairs if here != there), "")
