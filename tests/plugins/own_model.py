"""Calls a model of the user's on all ranks, if one is given."""

from collections.abc import Iterator, Mapping
from typing import Any

from preflight.check import Code, Context, Finding, Level, Plan, Run, Scope, UserCode, UserError, option

MODEL = option(UserCode.parse, None, "the model, as MODULE:FUNCTION")
PLAN = Plan(Scope.WORLD, lambda asked: Level.STANDARD if asked.sets(MODEL) else None, deadline_s=20, fresh=True)
WRONG = Code("The model cannot be called.", fix="Mend it.")


def measure(ctx: Context) -> Any:
    code = ctx[MODEL]
    assert code is not None
    ctx.process_group()
    try:
        model = code.call()
        with code.blamed():
            model(ctx.rank)
    except UserError as error:
        return {"level": ctx.level, "user_error": error.to_json()}
    return {"level": ctx.level, "user_error": None}


def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    for rank, error in ((rank, of_rank["user_error"]) for rank, of_rank in facts.items()):
        if error:
            yield WRONG.fail(error["text"], file=error["file"], line=error["line"], **run.job.where(rank))
