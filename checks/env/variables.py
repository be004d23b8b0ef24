"""variables: not built yet."""

from collections.abc import Iterator, Mapping

from preflight.check import Context, Finding, Level, Plan, Run, Scope

PLAN = Plan(Scope.NODE, Level.QUICK)


def measure(ctx: Context) -> dict[str, str]:  # noqa: ARG001
    return {}


def judge(facts: Mapping[int, dict[str, str]], run: Run) -> Iterator[Finding]:  # noqa: ARG001
    yield from ()
