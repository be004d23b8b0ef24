"""Work that one rank was still doing when the others timed out."""

import re
from collections.abc import Iterator

from preflight.explain.candidates import Candidate, find_source, from_lines, ranks_of
from preflight.explain.evidence import Evidence
from preflight.explain.logs.watchdog import parse_number
from preflight.failure_book.book import Match
from preflight.failure_book.line import Line

NEAR = (0.85, 1.1)
"""A progress bar with an elapsed time in this range, relative to the time-out, started when the wait started."""


def find_candidates(evidence: Evidence) -> Iterator[Candidate]:
    """A progress bar near a time-out that is not complete."""
    bars = evidence.matches("progress.bar")
    for match in evidence.matches(*(name for name, kept in evidence.seen.items() if kept.has_group("timeout_ms"))):
        limit = parse_number(match.groups.get("timeout_ms"))
        late = next((bar for bar in reversed(bars) if limit and _beside(bar, limit / 1000)), None)
        if late and limit:
            text = (
                f"a rank was still working, {late.groups['percent']} % done after {late.groups['elapsed']}, "
                f"when the time-out of {limit / 1000:g} s ended the others' wait: slow preparation, not the network"
            )
            yield from_lines(
                evidence, "slow_rank_timeout", "cause", 70, text, (late.line, match.line),
                _culprit(late.line, match.line), ranks_of([match.line]), confidence="medium", row="progress.bar",
            )  # fmt: skip
            return


def _culprit(bar: Line, wait: Line) -> dict[str, object]:
    """Empty if the bar and another rank's text share a line."""
    return {} if bar == wait or bar.rank == wait.rank else find_source(bar)


def _beside(bar: Match, limit: float) -> bool:
    elapsed, percent = seconds(bar.groups.get("elapsed", "")), parse_number(bar.groups.get("percent"))
    return bool(elapsed) and percent is not None and percent < 100 and NEAR[0] <= (elapsed or 0) / limit <= NEAR[1]


def seconds(clock: str) -> int | None:
    """ "29:58" or "1:02:03", in seconds; None for anything else."""
    if not re.fullmatch(r"\d{1,5}(?::\d\d){1,2}", clock):
        return None
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part)
    return total
