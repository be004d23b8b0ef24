"""Candidate causes: what lines or another file say about why the job failed. `diagnosis` compares them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight.core.action import Action
from preflight.explain.culprits import ranks_of
from preflight.explain.timeline import Moment, Timeline
from preflight.failure_book.book import ROLES, Cause, book
from preflight.failure_book.line import Line

MOST_LINES = 5
"""Lines that a candidate quotes."""
CLEAR = 50
"""Weight from which a failure is more than a guess."""
SURE = 60
"""Weight from which a line that names a cause is believed, unless another contradicts it."""
MEDIUM = 30
"""Weight from which a line that names a cause is more than a guess."""
NONE = "none"
"""The confidence of what names no cause."""
AS_GOOD = 15
"""If two candidates differ by no more than this weight, the earlier one is the cause."""
UNLISTED = Cause("", "", "Read the quoted line, and the lines before it.", "fail", action=Action.NONE)
"""For the code of a check that stands for no cause."""
PORT = re.compile(r"\bport (\d{2,5})\b")
"""In a message; it takes the place of :PORT in the cause's fix."""


@dataclass(frozen=True)
class Candidate:
    """A possible cause, and what supports it."""

    slug: str
    """Of the cause; a whole code ("gpu.health.ecc") where no cause fits it."""
    role: str
    """See book.ROLES."""
    weight: int
    """0 to 100, as a signature's: 80 and more name a cause, 50 and more say where to look, less is a guess."""
    message: str
    """One sentence: what was measured, and what was expected."""
    moment: Moment
    where: Mapping[str, Any] = field(default_factory=dict)
    """The culprit, as in a finding: rank, node, gpu, ..."""
    ranks: frozenset[int] = frozenset()
    """The ranks that report it."""
    lines: tuple[Line, ...] = ()
    """The deciding one first."""
    quotes: tuple[tuple[str, str], ...] = ()
    """File, as the user named it, and what it says: of files that are not logs (a dump, a report, stacks)."""
    fix: str = ""
    severity: str = ""
    action: str = ""
    """Those of its cause, unless given."""
    confidence: str = ""
    """Unless given, `usual_confidence`."""
    count: int = 1
    """Lines that say it."""
    rows: frozenset[str] = frozenset()
    """Names of the signatures that say it."""
    code: str = ""
    """Of the live finding that says it."""
    named: frozenset[int] = frozenset()
    """Ranks that it accuses beside the one in `where`: none of them only noticed it."""
    seen_at: Mapping[str, Any] = field(default_factory=dict)
    """Where the failure shows, with the same keys, if its cause is unknown: then nobody is the culprit."""

    def __post_init__(self) -> None:
        cause = book().causes.get(self.slug, UNLISTED)
        port = PORT.search(self.message)
        fix = (self.fix or cause.fix).replace(":PORT", f":{port[1]}" if port else ":PORT")
        for name, value in (("fix", fix), ("severity", self.severity or cause.severity)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "action", self.action or str(cause.action))
        object.__setattr__(self, "confidence", self.confidence or self.usual_confidence)

    @property
    def usual_confidence(self) -> str:
        """By role and weight: a line that names a cause says more than one that says that something failed."""
        if self.role == "cause":
            return "high" if self.weight >= SURE else "medium" if self.weight >= MEDIUM else "low"
        return "medium" if self.role == "failure" and self.weight >= CLEAR else "low"


def from_artifact(
    slug: str, message: str, where: Mapping[str, Any], ranks: Iterable[int], file: str, weight: int,
    quote: str = "", fix: str = "", code: str = "",
) -> Candidate:  # fmt: skip
    """A candidate from a file that is not a log. It weighs as much as a line of the same weight."""
    role = "slower" if slug == "degraded_path" else "cause" if weight >= CLEAR else "failure"
    return Candidate(
        slug or code, role, weight, message, (float("inf"), 0, file), where, frozenset(ranks),
        quotes=((file, quote or message),), fix=fix, code=code,
    )  # fmt: skip


def from_lines(
    timeline: Timeline, slug: str, role: str, weight: int, message: str, lines: Sequence[Line],
    where: Mapping[str, Any] | None = None, ranks: frozenset[int] | None = None, confidence: str = "", row: str = "",
    fix: str = "",
) -> Candidate:  # fmt: skip
    """From lines of logs, the deciding one first. `ranks`: those of the lines, unless given. `row`: the signature."""
    known = {key: value for key, value in (where or {}).items() if value is not None}
    return Candidate(
        slug, role, weight, message, min(timeline.moment(line) for line in lines), known,
        ranks_of(lines) if ranks is None else ranks, tuple(lines[:MOST_LINES]), confidence=confidence,
        count=len(lines), rows=frozenset({row} - {""}), fix=fix,
    )  # fmt: skip


def best_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """By role, then by weight; among about equal ones, the earliest first."""
    left = sorted(candidates, key=lambda c: (ROLES.index(c.role), -c.weight, c.moment, c.slug, c.message))
    ordered = []
    while left:
        equal = [c for c in left if c.role == left[0].role and c.weight >= left[0].weight - AS_GOOD]
        ordered.append(min(equal, key=lambda c: (c.moment, -c.weight, c.slug, c.message)))
        left.remove(ordered[-1])
    return ordered
