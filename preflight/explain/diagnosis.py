"""Decides which candidate is the cause, what follows from it, and how sure that is."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from preflight.core import rank_ranges
from preflight.explain.artifacts import reports
from preflight.explain.candidates import AS_GOOD, MEDIUM, MOST_LINES, NONE, Candidate, best_first
from preflight.explain.causes import (
    departures,
    divergence,
    exceptions,
    exit_codes,
    full_disk,
    preflight_screen,
    rows,
    timeouts,
)
from preflight.explain.culprits import WHO
from preflight.explain.timeline import Timeline

CAUSES = (
    timeouts, departures, exit_codes, exceptions, full_disk, divergence, preflight_screen,
)  # fmt: skip
"""Those that need more than a line."""
SUPERSEDING = (timeouts, exit_codes, full_disk, divergence)
"""Causes that explain rows better than their own sentences do."""
OTHERS = 3
"""At most this many further candidates are reported, and this many slower paths."""
CONTENDER = 30
"""A further candidate may weigh this much less than the cause."""
FAINT = 10
"""Below this weight a candidate is reported only if there is no other."""
WARNED, GUESS = reports.WEIGHTS["warn"], reports.SECOND
"""Weights of live checks' findings: of a warning, and of a code's further causes."""
LEAST = 16
"""A failure of less weight says that something failed, and not why: an exit code, a launcher's summary."""
LEVELS = ("low", "medium", "high")
UNKNOWN = "unknown"
"""The slug of it."""
OF_KERNELS = "cuda."
"""Prefix of the names of rows of CUDA's errors."""
AFTERWARDS = {
    "remote_peer_failure": "only lost their peer",
    "slow_rank_timeout": "only waited until their timeout",
    "external_signal": "were only ended by their launcher",
    "app_crash": "ended only after it",
    "rdzv_master_unreachable": "only lost the store",
}
"""How a consequence is described."""

LOOPBACK = re.compile(r"127\.|\[?::1\b|localhost\b")
"""A peer's address that identifies no host."""


def explain(timeline: Timeline, artifacts: Sequence[Candidate]) -> list[Candidate]:
    """The most probable cause first; then other candidates and slower paths (warn), then consequences (info). Nothing
    for the log of a job that did not fail. `artifacts`: candidates from files that are not logs.

    Of those returned `ranks` are the ones that are not to blame."""
    from_logs = _from_logs(timeline)
    merged = _merged([*from_logs, *_relevant(artifacts, {candidate.slug for candidate in from_logs})])
    slower = best_first(candidate for candidate in merged if candidate.role == "slower")
    warnings = [replace(candidate, confidence="medium") for candidate in slower[:OTHERS]]
    causes = _in_order(timeline, best_first(candidate for candidate in merged if candidate.role != "slower"))
    if not causes:
        return warnings
    first, others = causes[0], causes[1:]
    sure = _confidence(first, others)
    rivals = _rivals(first, others, sure)
    accused = frozenset[int]().union(*(_accused(candidate) for candidate in (first, *rivals)))
    after = _consequences(first, [candidate for candidate in others if candidate not in rivals], accused)
    victims = _noticing(first).union(*(consequence.ranks for consequence in after)) - accused
    named = replace(_with_node(timeline, _with_log_to_read(first)), confidence=sure)
    if any(other.severity == "fail" for other in others):
        named = replace(named, severity="fail")  # a fault that alone ends no job, and a job that has ended
    return [
        replace(
            _without_cause(named) if sure == NONE or named.slug == UNKNOWN else named,
            ranks=_without_pair(first, victims),
        ),
        *(_also_possible(_with_node(timeline, rival)) for rival in rivals),
        *warnings,
        *after,
    ]


def _with_node(timeline: Timeline, candidate: Candidate) -> Candidate:
    """With the host of the rank that it names, if any of that rank's lines tells it."""
    node = timeline.ranks.get(candidate.where.get("rank", -1))
    return replace(candidate, where={"node": node, **candidate.where}) if node else candidate


def _without_cause(first: Candidate) -> Candidate:
    """The candidate with a message that only says what was seen, and where."""
    seen = _without_culprit(first)
    return replace(seen, slug=UNKNOWN, message=f"these logs do not show why the job failed; seen: {seen.message}")


def _also_possible(rival: Candidate) -> Candidate:
    rival = _without_culprit(rival) if _names_nothing(rival) else rival
    return replace(rival, severity="warn", confidence="low", message=f"also possible: {rival.message}")


def _without_culprit(candidate: Candidate) -> Candidate:
    """Moves the culprit to `seen_at`, and to the end of a message that does not say it: where the cause is unknown, the
    rank or node that shows the failure may be sound."""
    where, message = candidate.where, candidate.message
    left_out = {"line", "local_rank"} if "rank" in where else {"line"}
    places = [f"{key.replace('_', ' ')} {value}" for key, value in where.items() if key not in left_out]
    places = [place.removeprefix("node ") for place in places]
    is_said = all(re.search(rf"(?<![\w-]){re.escape(place)}(?![\w-])", message) for place in places)
    return replace(
        candidate, where={}, seen_at=where, message=message if is_said else f"{message} ({', '.join(places)})"
    )


def _without_pair(first: Candidate, victims: frozenset[int]) -> frozenset[int]:
    """The ranks that are not to blame. If two sides differ, neither is known to be right."""
    return frozenset() if first.slug == "collective_mismatch" and "rank" not in first.where else victims


def _in_order(timeline: Timeline, causes: Sequence[Candidate]) -> list[Candidate]:
    """A signal from outside did not cause a failure before it in the same file, nor one after a restart."""
    apart = [candidate for candidate in causes if _stands_apart(timeline, candidate, causes[0])] if causes[:1] else []
    return [*apart, *(candidate for candidate in causes if candidate not in apart)]


def _stands_apart(timeline: Timeline, candidate: Candidate, signal: Candidate) -> bool:
    if signal.slug != "external_signal" or candidate.slug == signal.slug or not (candidate.lines and signal.lines):
        return False
    return candidate.usual_confidence != "low" and timeline.stands_apart(candidate.lines[0], signal.lines[0])


def _from_logs(timeline: Timeline) -> list[Candidate]:
    superseded = frozenset[str]().union(*(cause.superseded(timeline) for cause in SUPERSEDING))
    plain = rows.find_candidates(timeline, superseded)
    return [*plain, *(candidate for cause in CAUSES for candidate in cause.find_candidates(timeline))]


def _relevant(artifacts: Iterable[Candidate], slugs: Collection[str]) -> Iterator[Candidate]:
    """A live check that only warns, or may mean several causes, supports a cause that a log names (`slugs`). By itself
    the warning stays one, and the guess counts for nothing."""
    for candidate in artifacts:
        if candidate.slug in slugs or not candidate.code or candidate.weight > WARNED:
            yield candidate
        elif candidate.weight > GUESS:
            yield replace(candidate, role="slower", severity="warn", rows=frozenset({candidate.code}))


def _merged(listed: Iterable[Candidate]) -> list[Candidate]:
    """One candidate per cause; what survivors say stays apart, and so does each kind of slower path."""
    groups: dict[tuple[str, ...], list[Candidate]] = {}
    for candidate in listed:
        apart = {"fallout": ("after",), "slower": tuple(sorted(candidate.rows))}.get(candidate.role, ())
        groups.setdefault((candidate.slug, *apart), []).append(candidate)
    return [_merge(group) for group in groups.values()]


def _merge(group: Sequence[Candidate]) -> Candidate:
    ranked = best_first(group)
    first, others = ranked[0], ranked[1:]
    quoting = [candidate for candidate in ranked if candidate.quotes]
    from_log = next((candidate for candidate in ranked if candidate.lines), first)
    named = min(quoting, key=lambda candidate: not candidate.where, default=first)
    better = bool(named.where) or named.weight >= from_log.weight + AS_GOOD
    base = named if better and from_log.role != "cause" else from_log
    also = "".join(f" ({candidate.quotes[0][0]} says so too)" for candidate in quoting[:1] if base.lines)
    same = [candidate for candidate in others if candidate.role == first.role]
    as_launched = [candidate.where for candidate in others if "elastic.exit" in candidate.rows]
    elsewhere = [from_log.where] if base.where else [*_of_same_kernel(base, same), *as_launched]
    where = _fuller(base.where, [*(candidate.where for candidate in quoting), *elsewhere])
    if not (_accused(base) or where.keys() & {*WHO}) and (naming := _naming(ranked, base)):
        base, where = naming, dict(naming.where)
    accused = first.named.union(*(candidate.named for candidate in same))
    sure = first.usual_confidence if base.confidence == base.usual_confidence else base.confidence
    lines = dict.fromkeys(line for candidate in (base, from_log, *others) for line in candidate.lines)
    return replace(
        base, role=first.role, weight=first.weight, message=_with_rank(base, where, accused) + also, where=where,
        confidence=sure, moment=min(candidate.moment for candidate in (first, *same)),
        ranks=first.ranks.union(*(candidate.ranks for candidate in same)), lines=tuple(lines)[:MOST_LINES],
        count=sum(candidate.count for candidate in ranked),
        quotes=tuple(quote for candidate in ranked for quote in candidate.quotes),
        rows=first.rows.union(*(candidate.rows for candidate in others)),
        named=accused, severity="fail" if any(candidate.severity == "fail" for candidate in group) else base.severity,
    )  # fmt: skip


def _naming(ranked: Sequence[Candidate], base: Candidate) -> Candidate | None:
    """The first one about as good as `base`, from other lines, that names a rank, or else a node or a device."""
    equal = [c for c in ranked if c.lines and c.role == base.role and c.weight >= base.weight - AS_GOOD]
    naming = sorted((c for c in equal if _names(c) and c.rows != base.rows), key=lambda c: not _accused(c))
    return next(iter(naming), None)


def _names(candidate: Candidate) -> bool:
    return bool(_accused(candidate) or candidate.where.keys() & {*WHO})


def _accused(candidate: Candidate) -> frozenset[int]:
    """The ranks that it names as culprits."""
    ranks = (candidate.where.get(name) for name in ("rank", "peer_rank"))
    return candidate.named.union(rank for rank in ranks if isinstance(rank, int))


def _of_same_kernel(base: Candidate, others: Iterable[Candidate]) -> Iterator[Mapping[str, Any]]:
    """Where the process says that its kernel failed, if the kernel's own line has no source: the GPU prints it."""
    if all(row.startswith(OF_KERNELS) for row in base.rows):
        yield from (other.where for other in others if all(row.startswith(OF_KERNELS) for row in other.rows))


def _with_rank(base: Candidate, where: Mapping[str, Any], accused: frozenset[int]) -> str:
    """The message of lines without a rank, with the ranks that other lines name."""
    if "rank" not in where or "rank" in base.where or base.ranks or "rank" in base.message:
        return base.message
    who, about = rank_ranges.ranks(accused | {where["rank"]}), base.message.removeprefix("a process ")
    return f"{who} {about}" if about != base.message and len(accused) < 2 else f"{who}: {base.message}"


def _fuller(where: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`where` with what the first other place adds that has something to add and does not contradict it."""
    able = (other for other in others if all(_agrees(where.get(key, value), value) for key, value in other.items()))
    more = next((other for other in able if other.keys() - where.keys()), {})
    return {**more, **where}


def _agrees(value: object, other: object) -> bool:
    """Whether the values agree: one of two paths may be relative to the folder where the job was started."""
    paths = isinstance(value, str) and isinstance(other, str) and f"/{value}".endswith(f"/{other.lstrip('/')}")
    return value == other or paths


def _confidence(first: Candidate, others: Sequence[Candidate]) -> str:
    """high: a line names the cause, and no other is close. low: a guess from survivors or from one rank's wait. none:
    what was seen may have any cause."""
    if _names_nothing(first):
        return NONE
    level = "low" if first.confidence == NONE else first.confidence
    up = 1 if first.quotes and first.lines else 0
    return LEVELS[max(0, min(2, LEVELS.index(level) + up - (1 if _contradicted(first, others) else 0)))]


def _names_nothing(first: Candidate) -> bool:
    is_weak = first.role == "failure" and first.weight < LEAST
    return first.role != "cause" and not first.quotes and (is_weak or first.slug == UNKNOWN or first.confidence == NONE)


def _contradicted(first: Candidate, others: Sequence[Candidate]) -> bool:
    return any(
        other.role == first.role == "cause" and other.weight >= first.weight - AS_GOOD and not _same_line(first, other)
        for other in others
    )


def _same_line(candidate: Candidate, other: Candidate) -> bool:
    return bool(candidate.lines and other.lines and candidate.lines[0] == other.lines[0])


def _rivals(first: Candidate, others: Sequence[Candidate], sure: str) -> list[Candidate]:
    """Candidates that may be causes themselves: about as direct, and from another line. If the first is only a guess,
    the next one is reported whatever its weight."""
    apart = [other for other in others if other.role != "fallout" and not _same_line(first, other)]
    if sure in ("low", NONE):
        return [other for other in apart if other.weight >= FAINT][:1]
    least = max(first.weight - CONTENDER, MEDIUM)
    return [other for other in apart if other.role in (first.role, "cause") and other.weight >= least][:OTHERS]


def _with_log_to_read(first: Candidate) -> Candidate:
    """If only survivors report the failure, the message says so, and which log to read."""
    if first.role != "fallout" or first.slug == UNKNOWN:  # its fix says how to make it visible
        return first
    peer, node = first.where.get("peer_rank"), str(first.where.get("peer_node") or "")
    loops = LOOPBACK.match(node)  # all ranks of a host have it
    whose = f"rank {peer}" if peer is not None else node if node and not loops else "the other ranks"
    where = {key: value for key, value in first.where.items() if key != "peer_node" or not loops}
    unseen = f"the cause is not visible in this log, read the log of {whose}"
    return replace(first, where=where, message=f"{first.message}; {unseen}")


def _noticing(candidate: Candidate) -> frozenset[int]:
    """Ranks that report it and are not to blame. None if their own lines name the cause."""
    is_own = candidate.role == "cause" and candidate.rows.isdisjoint(timeouts.ROWS)
    return frozenset() if is_own else candidate.ranks


def _consequences(first: Candidate, others: Sequence[Candidate], accused: frozenset[int]) -> list[Candidate]:
    """One candidate per slug, with the affected ranks."""
    consequences: list[Candidate] = []
    for candidate in sorted(others, key=lambda candidate: -len(candidate.ranks)):
        ranks = candidate.ranks - accused
        if candidate.role != "fallout" and (not ranks or candidate.role == "cause"):
            continue
        if not candidate.weight or (candidate.slug == first.slug and not candidate.ranks):
            continue  # not worth reporting beside others
        if ranks and any(other.slug == candidate.slug and ranks <= other.ranks for other in consequences):
            continue
        if ranks or not candidate.ranks:
            after = replace(
                candidate,
                message=_afterwards(candidate, ranks),
                ranks=ranks,
                where={},
                quotes=(),
                severity="info",
                confidence="medium",
            )
            consequences.append(after)
    return consequences


def _afterwards(candidate: Candidate, ranks: frozenset[int]) -> str:
    """ "62 ranks only lost their peer (1-31,33-63)"."""
    words = AFTERWARDS.get(candidate.slug)
    if not words:
        return f"a consequence: {candidate.message}"
    if not ranks:
        return f"{rank_ranges.count(candidate.count, 'line')} of processes that {words}"
    words = words.replace("their", "its").replace("were", "was") if len(ranks) == 1 else words
    return f"{rank_ranges.count(len(ranks), 'rank')} {words} ({rank_ranges.to_text(ranks)})"
