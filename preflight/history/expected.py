"""`--baseline auto`: compares the speeds of a run with those of the last sound runs of the same kind of job."""

import math
import sqlite3
import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from preflight.core.action import Action
from preflight.core.finding import RUN, Reported
from preflight.core.words import some
from preflight.history import machines
from preflight.history.diff import least_share
from preflight.history.entry import spread
from preflight.history.rows import time_text

FEWEST, MOST = 3, 20
"""Sound runs of a figure: with fewer nothing is compared; no more than MOST are read."""
FIX = "Run preflight history FILE: it says since when, and what changed then; preflight diff on the two reports."


class Usual(NamedTuple):
    """A figure in the last sound runs."""

    value: float
    spread: float
    runs: list[str]


def findings(database: sqlite3.Connection, entry: Mapping[str, Any]) -> Iterator[Reported]:
    """One finding for each check that is slower; and an info that says which runs it was compared with."""
    beside: dict[str, None] = {}
    nodes = machines.known(database, entry)
    for check, figures in _by_check(entry).items():
        slow = []
        for name, measure, figure, unit, value in figures:
            place = nodes.get(unit, -1) if unit in entry["nodes"] else _gpu(database, unit) if unit else 0
            usual = _usual(database, entry, (check, name, measure), place)
            if usual is None:
                continue
            beside |= dict.fromkeys(usual.runs)
            share = usual.value / value if figure["less_is_better"] else value / usual.value
            least = least_share(figure["least"], math.hypot(usual.spread, figure["spread"]))
            if share < least:
                slow.append((share, least, f"{name} {value:.3g} {measure}", unit, usual))
        if slow:
            yield _finding(check, min(slow), len(slow), entry)
    yield which(list(beside), entry["kind"])


def _by_check(entry: Mapping[str, Any]) -> dict[str, list[tuple[str, str, Mapping[str, Any], str, float]]]:
    """By check: (name, unit of measure, the figure, the node or GPU or "", its value) for all judged figures."""
    found: dict[str, list[tuple[str, str, Mapping[str, Any], str, float]]] = {}
    for check, name, measure, figure in entry["figures"]:
        values = {"": figure["value"]} if figure["of_job"] else figure["units"]
        rows = [(name, measure, figure, unit, value) for unit, value in values.items() if value > 0]
        if figure["least"]:
            found.setdefault(check, []).extend(rows)
    return found


def _gpu(database: sqlite3.Connection, uuid: str) -> int:
    found = database.execute("SELECT id FROM unit WHERE name = ?", (uuid,)).fetchone()
    return int(found[0]) if found else -1


def _usual(database: sqlite3.Connection, entry: Mapping[str, Any], of: tuple[str, str, str], unit: int) -> Usual | None:
    """The usual value for all ranks together (unit 0) or for a unit. None if there are too few sound runs."""
    kind = "" if unit else entry["kind"]
    query = "SELECT id FROM series WHERE kind = ? AND test = ? AND name = ? AND measure = ?"
    series = database.execute(query, (kind, *of)).fetchone()
    rows = database.execute(
        "SELECT run.name, run.started, figure.value FROM figure JOIN run ON run.id = figure.run JOIN status ON "
        "status.run = run.id AND status.test = ? WHERE figure.series = ? AND figure.unit = ? AND run.sound AND "
        "run.kind = ? AND run.name != ? AND status.status IN ('pass', 'warn') ORDER BY figure.run DESC LIMIT ?",
        (of[0], *(series or (0,)), unit, entry["kind"], entry["run"], MOST),
    ).fetchall()
    if len(rows) < FEWEST:
        return None
    values = [value for *_, value in rows]
    return Usual(
        statistics.median(values), spread(values), [f"{run} ({time_text(started)})" for run, started, _ in rows]
    )


def _finding(check: str, worst: tuple[float, float, str, str, Usual], count: int, entry: Mapping[str, Any]) -> Reported:
    share, least, told, unit, usual = worst
    node = entry["places"].get(unit, unit)
    where = {"node": node, "uuid": unit} if node != unit else {"node": node} if node else {}
    also = f"; {count - 1} more of its figures are slower" if count > 1 else ""
    text = f"{check}: {told} is {share:.0%} of {usual.value:.3g}, the median of the last {len(usual.runs)} sound runs "
    text += f"(spread {usual.spread:.1%}), expected at least {least:.0%}{also}"
    return Reported(
        severity="warn", code=f"{RUN}.slower_than_history", message=text, where=where, fix=FIX,
        evidence={"runs": usual.runs}, action=Action.NONE,
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
