"""A training that goes wrong without an error: its loss or its gradients are no numbers from a step on."""

import re
from collections.abc import Iterator, Mapping

from preflight.explain.candidates import Candidate, from_lines
from preflight.explain.culprits import describe_sources, find_source
from preflight.explain.logs.ends import ALIVE
from preflight.explain.timeline import Timeline
from preflight.failure_book.book import Match
from preflight.failure_book.line import Line

SLUG, ROWS = "diverged", "loss."
"""Of its rows: the prefix of their names."""
WEIGHT = 45
LASTING = {"loss": 2, "norm": 3}
"""Lines from which it lasts: a scaler of fp16 skips a step or two whose gradients overflow."""
_SOUND = re.compile(r"(?i)loss['\"]?\W{0,8}\d")
Source = tuple[str, int | None]
"""File and rank."""


def superseded(timeline: Timeline) -> set[str]:
    """Its rows: a value that is no number counts only where it stays so."""
    return {name for name in timeline.seen if name.startswith(ROWS)}


def find_candidates(timeline: Timeline) -> Iterator[Candidate]:
    """Of the rank that shows it first, if it does so to the end of its log."""
    lasting = [found for found in _lasting(timeline) if found]
    if not lasting:
        return
    first = min(lasting, key=lambda found: timeline.moment(found[0].line))
    line = first[0].line
    who = describe_sources([line])
    sound = _sound(timeline, (line.file, line.rank))
    again = any(match.line.order < sound[-1].line.order for match in _wrong(timeline, line.file)) if sound else False
    text = f"{who}{': ' if who else ''}{first[0].groups['what']} is {first[0].groups['value']} "
    text += f"{'at the latest ' if again else ''}{_since(first[0].groups)}, to the end of the log"
    lines = [line, *(match.line for match in sound[-1:]), *(match.line for match in first[1:])]
    where = find_source(line) if _alone(timeline, line) else {}
    yield from_lines(
        timeline, SLUG, "failure", WEIGHT, text, lines, where, frozenset(), "medium", first[0].signature.name
    )


def _since(groups: Mapping[str, str]) -> str:
    step, epoch = groups.get("step") or groups.get("count"), groups.get("epoch") or groups.get("after")
    return f"from step {step} on" if step else f"from epoch {epoch} on" if epoch else "from this line on"


def _alone(timeline: Timeline, line: Line) -> bool:
    """Whether no other rank shows it, and another shows a sound loss after it. (Mostly rank 0 alone writes a loss.)"""
    others = {match.line.rank for match in _wrong(timeline)} - {line.rank}
    alive = (match.line for match in _alive(timeline) if match.line.rank not in (None, line.rank))
    return (
        line.rank is not None
        and not others
        and any(other.file != line.file or other.order > line.order for other in alive)
    )


def _lasting(timeline: Timeline) -> Iterator[list[Match]]:
    """By source: the lines since its last sound step, in order; [] where they are too few."""
    by_source: dict[Source, dict[int, Match]] = {}
    for match in _wrong(timeline):
        by_source.setdefault((match.line.file, match.line.rank), {})[match.line.order] = match
    for source, matches in by_source.items():
        since = max((match.line.order for match in _sound(timeline, source)), default=0)
        left = [match for order, match in sorted(matches.items()) if order > since]
        few = LASTING["norm" if left and "norm" in left[0].groups["what"].lower() else "loss"]
        yield left if len(left) >= few else []


def _wrong(timeline: Timeline, file: str = "") -> list[Match]:
    return [match for match in timeline.matches(*superseded(timeline)) if file in ("", match.line.file)]


def _alive(timeline: Timeline) -> Iterator[Match]:
    """Steps with a loss that is a number."""
    wrong = {match.line.order for match in _wrong(timeline)}
    alive = (match for name, kept in timeline.seen.items() if name.startswith(ALIVE) for match in kept.matches())
    yield from (match for match in alive if match.line.order not in wrong and _SOUND.search(match.line.text))


def _sound(timeline: Timeline, source: Source) -> list[Match]:
    """Those of this source, in order."""
    those = (match for match in _alive(timeline) if (match.line.file, match.line.rank) == source)
    return sorted(those, key=lambda match: match.line.order)
