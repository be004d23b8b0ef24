"""Theories: what each kind of line says on its own of why the job failed. `roots` holds them against each other."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight import ranges
from preflight.explain.hint import Hint
from preflight.explain.line import RANKS, Line
from preflight.explain.signatures import ROLES, Book, Match, Signature
from preflight.explain.story import BEGUN, Moment, Story

CULPRIT = (
    "rank", "peer_rank", "local_rank", "node", "peer_node", "gpu", "device", "interface", "variable", "parameter",
    "file", "line",
)  # fmt: skip
"""Groups that say who is to blame."""
NUMBERS = ("rank", "peer_rank", "local_rank", "gpu", "line")
WAITS = ("slow_rank_timeout", "rdzv_incomplete", "remote_peer_failure")
"""Causes of which he who waits for another tells."""
WENT_ON = (*BEGUN, "progress.bar")
"""And of what comes then."""
EVIDENCE = 5
"""Lines that a theory quotes."""
TOLD = 3
"""Different culprits of one kind that a sentence names."""
AS_GOOD = 15
"""Of two that are so near in weight, the one that came first is the cause."""


@dataclass(frozen=True)
class Theory:
    """A cause, and what speaks for it."""

    slug: str
    role: str
    """See signatures.ROLES."""
    weight: int
    message: str
    moment: Moment
    where: Mapping[str, Any] = field(default_factory=dict)
    ranks: frozenset[int] = frozenset()
    """Who says it."""
    lines: tuple[Line, ...] = ()
    """The deciding one first."""
    fix: str = ""
    """Instead of its cause's."""
    severity: str = ""
    """Instead of its cause's."""
    confidence: str = ""
    """What `roots` would not know better; "" else."""
    count: int = 1
    """Lines that say it."""
    rows: frozenset[str] = frozenset()
    """Names of the signatures that say it."""
    hints: tuple[Hint, ...] = ()


def best_first(theories: Iterable[Theory]) -> list[Theory]:
    """By role, and by weight; of those that are about equal, the first in time."""
    left, found = sorted(theories, key=_by_weight), []
    while left:
        equal = [one for one in left if one.role == left[0].role and one.weight >= left[0].weight - AS_GOOD]
        first = min(equal, key=lambda one: (one.moment, -one.weight, one.slug, one.message))
        found.append(first)
        left.remove(first)
    return found


def _by_weight(one: Theory) -> tuple[Any, ...]:
    return (ROLES.index(one.role), -one.weight, one.moment, one.slug, one.message)


def counted(story: Story, book: Book) -> list[Signature]:
    """The signatures that are seen, and whose conditions hold."""
    seen = [book.by_name[name] for name in story.seen if name in book.by_name]
    met = [one for one in seen if {*one.needs} <= story.seen.keys()]
    return [
        one for one in met if not any(_speaks_against(story, name, one) for name in story.seen.keys() & {*one.unless})
    ]


def _speaks_against(story: Story, name: str, row: Signature) -> bool:
    """What shows that work went on says nothing of what came after it, and before a failure: that is another attempt,
    or another job's end."""
    if name not in WENT_ON:
        return True
    last = max((match.line for match in story.matches(row.name)), key=lambda line: line.order)
    over = all(match.line.file == last.file and match.line.number < last.number for match in story.matches(name))
    return not (over and story.failed_after(last))


def of_rows(story: Story, rows: Iterable[Signature]) -> list[Theory]:
    """A theory for each signature."""
    return [_of_row(story, row) for row in rows if row.slug]


def _of_row(story: Story, row: Signature) -> Theory:
    matches, kept = story.matches(row.name), story.seen[row.name]
    said = _said(matches)
    message = "; ".join([*said[:TOLD], *([f"and {len(said) - TOLD} more like it"] if len(said) > TOLD else [])])
    first = matches[0]
    to_all = row.slug == "external_signal" and len(kept.ranks) > 1
    where = {} if to_all else _common(matches)
    return Theory(
        slug=row.slug, role=row.role, weight=row.weight, message=message, moment=story.moment(first.line),
        where=where, ranks=frozenset(kept.ranks), lines=_different([one.line for one in matches]),
        fix=_fill(row.fix, first), severity=row.severity, count=kept.count, rows=frozenset({row.name}),
    )  # fmt: skip


def _said(matches: Sequence[Match]) -> list[str]:
    """The different sentences, each with the ranks that say it, where the sentence names none."""
    speakers: dict[str, list[Line]] = {}
    told: set[Any] = set()
    for one in matches:
        text = filled(one)
        pair = {one.groups.get("rank"), one.groups.get("peer_rank")} - {None}
        key = (one.signature.says, frozenset(pair)) if len(pair) == 2 else text
        if key not in told:
            told.add(key)
            speakers[text] = []
        if text in speakers:
            speakers[text].append(one.line)
    return list(_with_speakers(speakers))


def _with_speakers(speakers: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    """Each once, where the same ones say several things."""
    before = ""
    for text, lines in speakers.items():
        who = _who(lines) if _names_nobody(text) else ""
        yield text if who == before else f"{who}{text}"
        before = who


def filled(match: Match) -> str:
    """The sentence of its signature; a group that did not take part leaves "?"."""
    return _fill(match.signature.says, match)


def _fill(text: str, match: Match) -> str:
    return text.format_map(_Groups(match.groups))


class _Groups(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def _names_nobody(text: str) -> bool:
    return not any(word in text.split() for word in ("rank", "ranks", "node"))


def _who(lines: Sequence[Line]) -> str:
    """ "rank 3 on node-a: ", or what is known of it."""
    told = {one.rank for one in lines if one.rank is not None}
    nodes = sorted({one.node for one in lines if one.node})
    words = [ranges.ranks(told)] if told else []
    words += [f"on {', '.join(nodes[:TOLD])}{' and others' if len(nodes) > TOLD else ''}"] if nodes else []
    return f"{' '.join(words)}: " if words else ""


def _common(matches: Sequence[Match]) -> dict[str, Any]:
    """The first one's culprit; of several speakers, only what is the same of all (their node)."""
    first, *others = [where_of(one) for one in matches]
    named = matches[0].groups.keys() & {*CULPRIT}
    same = {key: value for key, value in first.items() if all(one.get(key) == value for one in others)}
    return {key: value for key, value in first.items() if key in named or key in same} if same else first


def where_of(match: Match) -> dict[str, Any]:
    """The culprit: what the line names, and who says it, where that is the same. A survivor is none."""
    named = {key: _value(key, match.groups[key]) for key in CULPRIT if key in match.groups}
    named = {key: value for key, value in named.items() if value is not None}
    if match.groups.get("ranks", "").isdecimal():
        named["rank"] = int(match.groups["ranks"])
    line = match.line
    other = (
        match.signature.role == "fallout"
        or match.signature.slug in (*WAITS, "collective_mismatch")
        or ("rank" in named and line.rank not in (None, named["rank"]))
    )
    return named if other else {**speaker(line), **named}


def speaker(line: Line) -> dict[str, Any]:
    """Who wrote a line, as far as its prefixes tell."""
    told = {"node": line.node or None, "rank": line.rank, "local_rank": line.local_rank, "gpu": line.gpu}
    return {key: value for key, value in told.items() if value is not None}


def _value(key: str, text: str) -> str | int | None:
    if key not in NUMBERS:
        return text
    return int(text) if text.isdecimal() and int(text[:9]) < RANKS else None


def _different(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The first few, of as many sources as there are."""
    by_source: dict[Any, Line] = {}
    for one in lines:
        by_source.setdefault((one.file, one.rank, one.node, one.text), one)
    return tuple(_some(by_source.values()))


def _some(lines: Iterable[Line]) -> Iterator[Line]:
    for place, one in enumerate(lines):
        if place >= EVIDENCE:
            return
        yield one
