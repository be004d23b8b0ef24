"""Variants that the user asked for, and that cannot run here. (By default they do not belong to the check.)"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from preflight.check import Code, Finding, Option, Run, words

if TYPE_CHECKING:
    from preflight.train_smoke.strategies.training import Facts

NOT_RUN = Code(
    "A variant that was asked for cannot run here.",
    fix="See the message; --set ...variants=NAMES chooses others, and preflight describe of the check lists them.",
)


def of(facts: "Mapping[int, Facts]") -> dict[str, str]:
    """{variant: why it was not run}."""
    some = next(iter(facts.values()))["variants"] if facts else {}
    return {name: compared["unfit"] for name, compared in some.items() if compared["unfit"]}


def in_words(reasons: Mapping[str, str]) -> str:
    """Variants that were not run, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, why in reasons.items():
        by_reason.setdefault(why, []).append(name)
    return "; ".join(f"{words.some(names)} ({why})" for why, names in by_reason.items())


def judge(facts: "Mapping[int, Facts]", run: Run, asked: Option[tuple[str, ...]] | None) -> Iterator[Finding]:
    if asked is not None and run[asked] and (reasons := of(facts)):
        yield NOT_RUN.not_measured(f"not run, though asked for: {in_words(reasons)}")
