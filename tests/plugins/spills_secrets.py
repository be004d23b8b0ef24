"""Puts a secret into everything that leaves a worker, then raises on one rank."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from preflight.check import Code, Context, Finding, Level, Plan, Run, Scope, option

PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=10)
HINT = option(str, "", "goes into the report's options")
TOKEN = option(str, "", "a secret option of a plugin's own")
SPILLED = Code("A secret in a finding.", fix="Say {secret} no more.")


def measure(ctx: Context) -> Any:
    secret = os.environ["TEST_API_KEY"]
    ctx.doing(f"using {secret}", device=f"https://user:{secret}@host/")
    print("the key is", secret, "and the token", ctx[TOKEN], flush=True)
    print(f"{{'apiKey': '{ctx.environ['CAMEL']}'}} from {ctx.environ['LINK']}; the training goes on", flush=True)
    print(*(f"{name}={value}" for name, value in os.environ.items()), sep="\n", flush=True)
    if ctx.rank == 1:
        raise RuntimeError(f"cannot log in with {secret}")
    if ctx.rank == 2:
        os.abort()
    return {"text": f"password={secret}", "nested": [{"token": secret}], secret: 1, "environ": dict(os.environ)}


def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    secret = os.environ["TEST_API_KEY"]
    yield SPILLED.warn(f"found {secret}", evidence={"secret": secret}, device=secret)
