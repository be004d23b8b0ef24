"""What preflight itself said before the job: a log often begins with its screen."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from preflight.core import rank_ranges, words
from preflight.explain.artifacts import reports
from preflight.explain.candidates import Candidate, from_lines
from preflight.explain.culprits import CULPRIT, MOST_NAMED, NUMBERS
from preflight.explain.timeline import Timeline
from preflight.failure_book.book import Match, book

ROWS = ("preflight.finding", "preflight.sentence")
WEIGHT = 100
FIX = "Read preflight's own screen in this log, from the quoted line on: it says what was measured, and what to do."
_PLACE = re.compile(rf"({'|'.join(name.replace('_', ' ') for name in CULPRIT)}) (\S.*)")
_RANKS = re.compile(r"ranks ([\d,-]+)")


def find_candidates(timeline: Timeline) -> Iterator[Candidate]:
    """One per cause of what it failed, unless the job ran nevertheless."""
    by_slug: dict[str, list[Match]] = {}
    for match in timeline.matches(*ROWS):
        code = match.groups["code"]
        if not (code.startswith(reports.FAMILY) or timeline.progressed_after(match.line)):
            slug = next(iter(reports.slugs(code, "fail", book().causes)), code)
            by_slug.setdefault(slug, []).append(match)
    for slug, matches in by_slug.items():
        found = dict.fromkeys(f"{match.groups.get('who', '')} [{match.groups['code']}]".strip() for match in matches)
        culprits = [_culprit(match.groups.get("who", "")) for match in matches]
        where = culprits[0][0] if all(where == culprits[0][0] for where, _ in culprits) else {}
        text = f"preflight's own screen in this log says FAIL: {words.clauses(found, MOST_NAMED)}"
        lines = [match.line for match in matches]
        candidate = from_lines(
            timeline, slug, "cause", WEIGHT, text, lines, where, frozenset(), "high", matches[0].signature.name, FIX
        )
        yield replace(candidate, named=frozenset().union(*(ranks for _, ranks in culprits)))


def _culprit(who: str) -> tuple[dict[str, Any], frozenset[int]]:
    """The reverse of results.console.culprit, as far as it names one node or thing; and the ranks that it names."""
    where: dict[str, Any] = {}
    ranks: frozenset[int] = frozenset()
    for place, part in enumerate(filter(None, who.split(", "))):
        if named := _PLACE.fullmatch(part):
            key = named[1].replace(" ", "_")
            where[key] = int(named[2]) if key in NUMBERS and named[2].isdecimal() else named[2]
        elif listed := _RANKS.fullmatch(part):
            ranks = frozenset(rank_ranges.from_text(listed[1]))
        elif not place and " " not in part:
            where["node"] = part
    return where, ranks | ({where["rank"]} if "rank" in where else set())
