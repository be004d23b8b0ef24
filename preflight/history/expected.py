"""`--baseline auto`: compares the speeds of a run with those of the last sound runs of the same kind of job."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

from preflight.core.action import Action
from preflight.core.finding import RUN, Reported
from preflight.core.vote import grouped
from preflight.core.words import some
from preflight.history import compare
from preflight.history.compare import FigureChange
from preflight.history.reference import FEWEST, SoundRuns
from preflight.history.run_entry import RunEntry

FIX = "Run preflight history FILE: it says since when, and what changed then; preflight diff on the two reports."


def findings(database: sqlite3.Connection, entry: RunEntry) -> Iterator[Reported]:
    """One finding for each check that is slower; and an info that says which runs it was compared with."""
    judged = [figure for figure in entry.figures if figure.least]
    compared = [*compare.comparisons(judged, SoundRuns(database, entry))]
    for check, of_check in grouped(compare.slowest_first(compared), lambda comparison: comparison.of[0]).items():
        yield _finding(check, of_check, entry.places)
    yield which([*dict.fromkeys(run for comparison in compared for run in comparison.usual.runs)], entry.kind)


def _finding(check: str, slower: Sequence[FigureChange], places: Mapping[str, str]) -> Reported:
    runs = slower[0].usual.runs
    text = compare.sentence(slower, f"the median of the last {len(runs)} sound runs")
    return Reported(
        severity="warn", code=f"{RUN}.slower_than_history", message=f"{check}: {text}",
        where=slower[0].culprit(places), fix=FIX, evidence={"runs": runs}, action=Action.NONE,
    )  # fmt: skip


def which(runs: list[str], kind: str) -> Reported:
    """Which runs a run was compared with."""
    text = f"its speeds are compared with {len(runs)} sound runs of this kind ({kind}): {some(runs, 3)}"
    if not runs:
        text = f"there are fewer than {FEWEST} sound runs of this kind ({kind}): its speeds are not compared"
    fix = "Nothing: it says what was compared."
    fix = fix if runs else f"Run it {FEWEST} times with --history FILE while the machine is sound."
    return Reported(
        severity="info",
        code=f"{RUN}.compared_with_history",
        message=text,
        fix=fix,
        evidence={"runs": runs},
        action=Action.NONE,
    )


def unread(why: str) -> Reported:
    fix = "Give a history that runs with --history have written."
    text = f"{why}: nothing is compared with it"
    return Reported(severity="warn", code=f"{RUN}.baseline", message=text, fix=fix, action=Action.FIX_CONFIG)
