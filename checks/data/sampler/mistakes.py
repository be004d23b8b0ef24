"""Faults in the user's code itself, on one rank or on all."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from preflight.check import Code, Finding, Outcome, Run, ranges, vote
from preflight.checks.data.sampler import one_loader
from preflight.checks.data.shared.readings import Facts, LoaderMistake

USER_ERROR = Code(
    "The function, the loader or its dataset raises.",
    fix="Fix it at the line shown; the whole stack is in the evidence, and with --report DIR in DIR/logs.",
)
WRONG_RETURN = Code(
    "The function does not return a loader, or a list or a dict of loaders.",
    fix="Let it return what the training loop iterates, such as a DataLoader: see docs/data.md.",
)
STUCK = Code(
    "The function or the loader hangs.",
    fix="Look at the line shown: what does it wait for? If it only needs longer: "
    "--set data.sampler.patience_s=SECONDS.",
)
DIFFERENT_LOADERS = Code(
    "Ranks returned different loaders.",
    fix="Return the same loaders on all ranks; a rank that has none waits for the others in the first collective.",
)
NUMBERS = re.compile(r"\d+")
CODES = {"user_error": USER_ERROR, "wrong_return": WRONG_RETURN, "stuck": STUCK, "waits": STUCK}


def mistakes(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Findings about mistakes, one for all loaders that have it; one that all ranks make blames no rank. Ranks that
    wait for others are to blame only if nothing explains it, and fewer wait than do not."""
    by_place = _by_place(facts)
    waiting = {rank for (kind, *_), ranks in by_place.items() if kind == "waits" for rank in ranks}
    explained = waiting and (
        any(kind != "waits" for kind, *_ in by_place) or not all(map(_sound, run.outcomes.values()))
    )
    absent = [rank for rank in facts if rank not in waiting]
    if not explained and 0 < len(absent) <= len(waiting):
        yield _absent(absent, by_place, run)
        return
    for (kind, *_), ranks in by_place.items():
        if kind == "waits" and explained:
            continue
        everywhere = len(ranks) == len(facts) > 1
        noticed_by = tuple(sorted(waiting)) if explained else ()
        for rank, mistake in list(ranks.items())[: 1 if everywhere else None]:
            where = {} if everywhere else run.job.where(rank)
            proof = {"stack": stack} if (stack := mistake.get("stack")) else {}
            place = {"file": mistake["file"], "line": mistake["line"]}
            yield CODES[kind].fail(mistake["text"], noticed_by=noticed_by, evidence=proof, **place, **where)


def _absent(absent: list[int], by_place: Mapping[tuple[Any, ...], Mapping[int, LoaderMistake]], run: Run) -> Finding:
    """Blames the ranks that have not reached a collective, if they are fewer than those that wait there; if as many, no
    rank is named. `by_place`: mistakes of those that wait."""
    waiting = sorted({rank for ranks in by_place.values() for rank in ranks})
    mistake = next(iter(next(iter(by_place.values())).values()))
    where = run.job.where(absent[0]) if len(absent) == 1 < len(waiting) else {}
    wait = "waits" if len(waiting) == 1 else "wait"
    text = f"{mistake['text']}: {ranges.ranks(waiting)} {wait} there for {ranges.ranks(absent)}"
    text += "; either may be wrong" if len(absent) == len(waiting) else ""
    return STUCK.fail(text, file=mistake["file"], line=mistake["line"], noticed_by=tuple(waiting), **where)


def _by_place(facts: Mapping[int, Facts]) -> dict[tuple[Any, ...], dict[int, LoaderMistake]]:
    """Mistakes by kind and place, then by rank. Without a place, texts may have different numbers per rank."""
    by_place: dict[tuple[Any, ...], dict[int, LoaderMistake]] = {}
    for rank, facts_of in facts.items():
        for mistake in _of(facts_of):
            place = (
                mistake["kind"],
                mistake["file"],
                mistake["line"] if mistake["file"] else NUMBERS.sub("#", mistake["text"]),
            )
            by_place.setdefault(place, {}).setdefault(rank, mistake)
    return by_place


def _sound(outcome: Outcome) -> bool:
    return outcome.kind == "measured"


def _of(facts: Facts) -> list[LoaderMistake]:
    return [
        mistake for mistake in (facts["mistake"], *(reading["mistake"] for reading in facts["readings"])) if mistake
    ]


def different_loaders(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Compares ranks on which the function itself succeeded."""
    counted = vote({rank: one_loader.names(own) for rank, own in facts.items() if not own["mistake"]})
    if counted.unanimous:
        return
    if counted.decided:
        for rank, returned in counted.odd():
            expected = f"{_describe(counted.usual)} as on {counted.share()}"
            text = f"the function returns {_describe(returned)}, expected {expected}"
            yield DIFFERENT_LOADERS.fail(text, **run.job.where(rank))
        return
    sides = vote({rank: _describe(returned) for returned, ranks in counted.ranks_of.items() for rank in ranks})
    yield DIFFERENT_LOADERS.fail(f"the function returns {sides.sides()}, expected the same loaders on all ranks")


def _describe(names: tuple[str, ...]) -> str:
    """ "1 loader", "2 loaders (train, val)"."""
    number = f"{len(names)} loader{'' if len(names) == 1 else 's'}"
    return number if names == ("",) or not names or names[0].isdecimal() else f"{number} ({', '.join(names[:5])})"
