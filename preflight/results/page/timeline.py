"""The run itself: when each check ran, how long its slowest rank took, and what hung."""

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from preflight.core import words
from preflight.core.finding import RUN
from preflight.results.page import marks
from preflight.results.page.marks import Scale, tag, text
from preflight.results.report import CheckEntry

WIDTH, ROW, LEFT, RIGHT = 900, 20, 150, 200
NARROW = 8.0
"""Pixels; a bar that is no wider would be hidden by its median's line."""
HUNG = ("timed_out", "lost", "crashed")


def draw(checks: Sequence[CheckEntry], seconds: float) -> Markup:
    """`seconds`: of the whole run. Reports of an older preflight have no start times: checks follow each other."""
    rows = [*_starts([check for check in checks if check.check != RUN and check.seconds.rank is not None])]
    ends = [start + check.seconds.max for start, check in rows]
    scale = Scale(0.0, max([seconds, 0.1, *ends]), LEFT, WIDTH - RIGHT)
    height = 34 + ROW * len(rows)
    content = [*marks.time_axis(scale, height, "{:g} s".format)]
    for number, (start, check) in enumerate(rows):
        content += _bar(check, scale, start, 28 + number * ROW)
    slowest = max((check.seconds.max, check.check) for _, check in rows) if rows else (0.0, "none")
    title = f"{len(rows)} checks in {seconds:g} s; the longest was {slowest[1]}, {words.duration(slowest[0])}"
    return tag("p", title) + marks.scrolled(title, WIDTH, height, content)


def _starts(checks: Sequence[CheckEntry]) -> Iterator[tuple[float, CheckEntry]]:
    at = 0.0
    for check in checks:
        at = at if check.began_s is None else check.began_s
        yield at, check
        at += check.seconds.max


def _bar(check: CheckEntry, scale: Scale, start: float, y: int) -> Iterator[Markup]:
    took, middle = check.seconds.max, check.seconds.median
    title = f"{check.check}: began at {start:.1f} s, median rank {words.duration(middle)}, {_slowest(check)}"
    yield text(LEFT - 8, y + 11, check.check, "end")
    wide = max(1.5, scale(start + took) - scale(start))
    yield tag("rect", tag("title", title), x=scale(start), y=y, width=wide, height=13, class_=f"s-{check.status}")
    if wide > NARROW:
        yield tag("line", x1=scale(start + middle), x2=scale(start + middle), y1=y, y2=y + 13, class_="median")
    yield text(scale(start) + wide + 6, y + 11, f"{words.duration(took)}{_hung(check)}")


def _slowest(check: CheckEntry) -> str:
    return f"slowest rank {check.seconds.rank} with {words.duration(check.seconds.max)}"


def _hung(check: CheckEntry) -> str:
    """ "! rank 3 timed out"."""
    odd = [entry for entry in check.outcomes if entry.outcome.kind in HUNG]
    odd = [entry for entry in odd if not entry.outcome.aborted] or odd
    if not odd:
        return ""
    ranks, kind = odd[0].ranks, odd[0].outcome.kind
    return f" ! {'ranks' if not ranks.isdecimal() else 'rank'} {ranks[:20]} {kind.replace('_', ' ')}"


def table(checks: Sequence[CheckEntry]) -> tuple[list[str], list[list[str]]]:
    rows = [
        [check.check, f"{start:.1f}", f"{check.seconds.median:.3g}", f"{check.seconds.max:.3g}",
         str(check.seconds.rank), _hung(check).lstrip(" !")]
        for start, check in _starts([check for check in checks if check.seconds.rank is not None])
    ]  # fmt: skip
    return ["check", "began, s", "median, s", "slowest, s", "slowest rank", ""], rows
