"""Which of all theories is the cause, what follows from it, and how sure that is."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from preflight import ranges
from preflight.explain import ends, exceptions, members, progress, reports, theory, timeouts
from preflight.explain.hint import Hint
from preflight.explain.line import Line
from preflight.explain.signatures import Book, Signature
from preflight.explain.story import Story
from preflight.explain.theory import AS_GOOD, EVIDENCE, Theory

OTHERS = 3
"""Further candidates that are told, at most; and slower paths."""
SURE, CLEAR = 60, 50
"""Weights: from SURE on a line that names a cause is believed, where no other contradicts; from CLEAR on a failure
is not a mere guess."""
SUPERSEDED = {"watchdog.timeout"}
"""Rows of which `timeouts` makes more than each line says."""
CONTENDER = 30
"""A candidate may weigh so much less than the cause."""
MEDIUM = 30
"""Weight from which on a line that names a cause is no surmise."""
FAINT = 10
"""Weight below which a theory is told only where there is no other."""
WARNED, SURMISE = reports.WEIGHTS["warn"], reports.SECOND
"""Weights of hints of live checks: of a warning, and of a code's further causes."""
LEVELS = ("low", "medium", "high")
AFTERWARDS = {
    "remote_peer_failure": "only lost their peer",
    "slow_rank_timeout": "only waited until their time-out",
    "external_signal": "were only ended by their launcher",
    "app_crash": "ended only after it",
    "rdzv_master_unreachable": "only lost the store",
}
"""What a consequence is called."""


LOOPBACK = re.compile(r"127\.|\[?::1\b|localhost\b")
"""A peer's address that names nobody."""


@dataclass(frozen=True)
class Explained:
    """A cause, a slower path or a consequence, as it is told."""

    slug: str
    severity: str
    """fail, warn or info."""
    message: str
    where: dict[str, Any]
    """The culprit."""
    noticed_by: tuple[int, ...]
    evidence: tuple[Line, ...]
    """The deciding line first."""
    confidence: str
    """high, medium or low."""
    fix: str
    code: str = ""
    """Of a live finding that no cause fits; else it is explain.<slug>."""
    hints: tuple[Hint, ...] = ()


def explain(story: Story, hints: Sequence[Hint], book: Book) -> list[Explained]:
    """The most probable cause first; then other candidates and slower paths (warn), then consequences (info). Nothing
    for the log of a job that did not fail."""
    told_by_logs = _theories(story, theory.counted(story, book))
    found = _joined([*told_by_logs, *_of_hints(hints, {one.slug for one in told_by_logs})])
    slower = theory.best_first(one for one in found if one.role == "slower")
    told = [_told(one, book, "medium") for one in slower[:OTHERS]]
    causes = _in_order(story, theory.best_first(one for one in found if one.role != "slower"))
    if not causes:
        return told
    first, others = causes[0], causes[1:]
    sure = _confidence(first, others)
    candidates = _candidates(first, others, sure)
    after = _consequences(first, [one for one in others if one not in candidates], book)
    victims = {rank for one in after for rank in one.noticed_by} | _noticing(first)
    cause = _told(_unseen(first), book, sure)
    return [
        replace(cause, noticed_by=tuple(sorted(victims - {first.where.get("rank")}))),
        *(replace(_told(_possible(one), book, "low"), severity="warn") for one in candidates),
        *told,
        *after,
    ]


def _in_order(story: Story, causes: Sequence[Theory]) -> list[Theory]:
    """A signal from outside is no cause of what had failed before it, as one file tells them, nor of what failed after
    another start."""
    apart = [one for one in causes if _stands_apart(story, one, causes[0])] if causes[:1] else []
    return [*apart, *(one for one in causes if one not in apart)]


def _stands_apart(story: Story, one: Theory, signal: Theory) -> bool:
    if signal.slug != "external_signal" or one.slug == signal.slug or not (one.lines and signal.lines):
        return False
    clear = (one.role == "cause" and one.weight >= MEDIUM) or (one.role == "failure" and one.weight >= CLEAR)
    line, ended = one.lines[0], signal.lines[0]
    before = line.file == ended.file and line.number < ended.number
    return clear and (before or story.began_between(ended, line))


def _theories(story: Story, rows: Iterable[Signature]) -> list[Theory]:
    superseded = SUPERSEDED | ends.superseded(story)
    plain = theory.of_rows(story, (row for row in rows if row.name not in superseded))
    reasoned = (timeouts, progress, ends, exceptions, members)
    return [*plain, *(one for module in reasoned for one in module.theories(story))]


def _of_hints(hints: Iterable[Hint], slugs: Collection[str]) -> Iterator[Theory]:
    """A live check that only warns, or may mean several causes, speaks for what a log tells (`slugs`). By itself the
    warning stays one, and the surmise is none."""
    for hint in hints:
        one = _of_hint(hint)
        if hint.slug in slugs or not hint.code or hint.weight > WARNED:
            yield one
        elif hint.weight > SURMISE:
            yield replace(one, role="slower", severity="warn", rows=frozenset({hint.code}))


def _of_hint(hint: Hint) -> Theory:
    """It weighs what a line of its weight would."""
    role = "slower" if hint.slug == "degraded_path" else "cause" if hint.weight >= CLEAR else "failure"
    return Theory(
        hint.slug or hint.code, role, hint.weight, hint.message, (float("inf"), 0, hint.file), dict(hint.where),
        frozenset(hint.noticed_by), fix=hint.fix, hints=(hint,),
    )  # fmt: skip


def _joined(theories: Iterable[Theory]) -> list[Theory]:
    """One of each cause; what is told of survivors stays apart, and so does each kind of slower path."""
    groups: dict[tuple[str, ...], list[Theory]] = {}
    for one in theories:
        apart = {"fallout": ("after",), "slower": tuple(sorted(one.rows))}.get(one.role, ())
        groups.setdefault((one.slug, *apart), []).append(one)
    return [_one_of(group) for group in groups.values()]


def _one_of(group: Sequence[Theory]) -> Theory:
    first, *others = theory.best_first(group)
    hints = tuple(hint for one in (first, *others) for hint in one.hints)
    from_log = next((one for one in (first, *others) if one.lines), first)
    of_hints = sorted((one for one in (first, *others) if one.hints), key=lambda one: not one.where)
    named = next(iter(of_hints), first)
    better = bool(named.where) or named.weight >= from_log.weight + AS_GOOD
    base = named if better and from_log.role != "cause" else from_log
    also = "".join(f" ({hint.file} says so too)" for hint in hints[:1] if base.lines)
    same = [one for one in others if one.role == first.role]
    as_launched = [one.where for one in others if "elastic.exit" in one.rows]
    lines = dict.fromkeys(line for one in (from_log, *others) for line in one.lines)
    return replace(
        base, role=first.role, weight=first.weight, message=base.message + also,
        where=_fuller(base.where, [*(one.where for one in hints), *([from_log.where] if base.where else as_launched)]),
        moment=min(one.moment for one in (first, *same)),
        ranks=first.ranks.union(*(one.ranks for one in same)), lines=tuple(lines)[:EVIDENCE],
        fix=base.fix or first.fix, count=sum(one.count for one in (first, *others)), hints=hints,
        rows=first.rows.union(*(one.rows for one in others)),
    )  # fmt: skip


def _fuller(where: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """With what the first other one adds that has something to add, and does not contradict."""
    able = (one for one in others if all(_agrees(where.get(key, value), value) for key, value in one.items()))
    told = next((one for one in able if one.keys() - where.keys()), {})
    return {**told, **where}


def _agrees(value: object, other: object) -> bool:
    """One of two paths may be relative to the folder in which the job was started."""
    paths = isinstance(value, str) and isinstance(other, str) and f"/{value}".endswith(f"/{other.lstrip('/')}")
    return value == other or paths


def _confidence(first: Theory, others: Sequence[Theory]) -> str:
    """high: a line names the cause, and no other cause is as near. low: a guess from aftermath or one rank's wait."""
    level = first.confidence
    if not level and first.role == "cause":
        level = "high" if first.weight >= SURE else "medium" if first.weight >= MEDIUM else "low"
    elif not level:
        level = "medium" if first.role == "failure" and first.weight >= CLEAR else "low"
    up = 1 if first.hints and first.lines else 0
    return LEVELS[max(0, min(2, LEVELS.index(level) + up - (1 if _contradicted(first, others) else 0)))]


def _contradicted(first: Theory, others: Sequence[Theory]) -> bool:
    near = [one for one in others if one.role == first.role == "cause" and one.weight >= first.weight - AS_GOOD]
    return any(not _same_line(first, one) for one in near)


def _same_line(one: Theory, other: Theory) -> bool:
    return bool(one.lines and other.lines and one.lines[0] == other.lines[0])


def _candidates(first: Theory, others: Sequence[Theory], sure: str) -> list[Theory]:
    """What may be a cause of its own: about as direct, and read from another line. Where the first is no more than a
    guess, the next one is told whatever it weighs."""
    if sure == "low":
        told = (one for one in others if one.role != "fallout" and one.weight >= FAINT and not _same_line(first, one))
        return list(told)[:1]
    able = [
        one for one in others
        if one.role in (first.role, "cause") and one.role != "fallout"
        and one.weight >= max(first.weight - CONTENDER, MEDIUM) and not _same_line(first, one)
    ]  # fmt: skip
    return able[:OTHERS]


def _possible(one: Theory) -> Theory:
    return replace(one, message=f"also possible: {one.message}")


def _unseen(first: Theory) -> Theory:
    """Where only survivors speak, says so, and whose log to read."""
    if first.role != "fallout" or first.slug == "unknown":  # its fix says how to make it visible
        return first
    peer, node = first.where.get("peer_rank"), str(first.where.get("peer_node") or "")
    loops = LOOPBACK.match(node)  # all ranks of a host have it
    whose = f"rank {peer}" if peer is not None else node if node and not loops else "the other ranks"
    where = {key: value for key, value in first.where.items() if key != "peer_node" or not loops}
    unseen = f"the cause is not visible in this log, read the log of {whose}"
    return replace(first, where=where, message=f"{first.message}; {unseen}")


def _noticing(one: Theory) -> set[int]:
    """Who says it, without being to blame: all but those in whose own lines a cause is named."""
    return set() if one.role == "cause" and not one.rows & set(timeouts.ROWS) else set(one.ranks)


def _consequences(first: Theory, others: Sequence[Theory], book: Book) -> list[Explained]:
    """One for each slug, with the ranks that are concerned."""
    culprit = {first.where.get("rank")}
    found: list[Explained] = []
    for one in sorted(others, key=lambda one: -len(one.ranks)):
        ranks = one.ranks - culprit
        if one.role != "fallout" and (not ranks or one.role == "cause"):
            continue
        if not one.weight or (one.slug == first.slug and not one.ranks):  # nothing that stands beside others
            continue
        if one.slug in {each.slug for each in found if ranks <= {*each.noticed_by}} and ranks:
            continue
        if ranks or not one.ranks:
            told = replace(one, message=_afterwards(one, ranks), ranks=ranks, where={}, hints=())
            found.append(replace(_told(told, book, "medium"), severity="info", noticed_by=tuple(sorted(ranks))))
    return found


def _afterwards(one: Theory, ranks: frozenset[int]) -> str:
    """ "62 ranks only lost their peer (1-31,33-63)"."""
    words = AFTERWARDS.get(one.slug)
    if not words:
        return f"a consequence: {one.message}"
    if not ranks:
        return f"{ranges.count(one.count, 'line')} of processes that {words}"
    words = words.replace("their", "its").replace("were", "was") if len(ranks) == 1 else words
    return f"{ranges.count(len(ranks), 'rank')} {words} ({ranges.to_text(ranks)})"


def _told(one: Theory, book: Book, confidence: str) -> Explained:
    cause = book.causes.get(one.slug)
    code = next((hint.code for hint in one.hints if not hint.slug), "")
    fix = one.fix or (cause.fix if cause else "Read the line that is quoted, and what stands before it.")
    return Explained(
        slug="" if code else one.slug, severity=one.severity or (cause.severity if cause else "fail"),
        message=one.message, where=dict(one.where), noticed_by=tuple(sorted(one.ranks)), evidence=one.lines,
        confidence=confidence, fix=fix, code=code, hints=one.hints,
    )  # fmt: skip
