"""Work that one rank was still doing when the others' time was up."""

import re
from collections.abc import Iterator

from preflight.explain.line import Line
from preflight.explain.signatures import Match
from preflight.explain.story import Story
from preflight.explain.theory import Theory, speaker
from preflight.explain.watchdog import number

NEAR = (0.85, 1.1)
"""A progress bar that stands there, as parts of the time-out, began when the wait began."""


def theories(story: Story) -> Iterator[Theory]:
    """A progress bar that stands near a time-out, and not at its end."""
    bars = story.matches("progress.bar")
    for match in story.matches(*(name for name, kept in story.seen.items() if kept.tells("timeout_ms"))):
        limit = number(match.groups.get("timeout_ms"))
        late = next((bar for bar in reversed(bars) if limit and _beside(bar, limit / 1000)), None)
        if late and limit:
            text = (
                f"work was going on, {late.groups['percent']} % done after {late.groups['elapsed']}, "
                f"when the time-out of {limit / 1000:g} s ended the others' wait: slow preparation, not the network"
            )
            yield Theory(
                "slow_rank_timeout", "cause", 70, text, story.moment(match.line), _whose(late.line, match.line),
                frozenset() if match.line.rank is None else frozenset({match.line.rank}), (late.line, match.line),
                confidence="medium", rows=frozenset({"progress.bar"}),
            )  # fmt: skip
            return


def _whose(bar: Line, wait: Line) -> dict[str, object]:
    """Nobody's, where a bar and what another rank says share a line."""
    return {} if bar == wait or bar.rank == wait.rank else speaker(bar)


def _beside(bar: Match, limit: float) -> bool:
    elapsed, percent = seconds(bar.groups.get("elapsed", "")), number(bar.groups.get("percent"))
    return bool(elapsed) and percent is not None and percent < 100 and NEAR[0] <= (elapsed or 0) / limit <= NEAR[1]


def seconds(clock: str) -> int | None:
    """ "29:58" or "1:02:03", in seconds; None for anything else."""
    if not re.fullmatch(r"\d{1,5}(?::\d\d){1,2}", clock):
        return None
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part)
    return total
