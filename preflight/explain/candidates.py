"""Candidate causes: what each kind of line says by itself about why the job failed. `diagnosis` compares them."""

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight.core import rank_ranges, words
from preflight.core.own_code import is_own
from preflight.explain.evidence import WARNING_LEVELS, Evidence, Moment
from preflight.explain.logs.ends import STARTED
from preflight.explain.logs.fingerprints import shortened
from preflight.explain.logs.tracebacks import LONGEST
from preflight.failure_book.book import ROLES, Book, Match, Signature
from preflight.failure_book.line import RANKS, Line

CULPRIT = (
    "rank", "peer_rank", "local_rank", "node", "peer_node", "gpu", "device", "interface", "variable", "parameter",
    "file", "line",
)  # fmt: skip
"""Groups that name the culprit."""
WHO = ("rank", "peer_rank", "node", "peer_node", "gpu", "device", "interface", "variable")
"""Those that are a culprit by themselves: a line of code is none."""
NUMBERS = ("rank", "peer_rank", "local_rank", "gpu", "line")
WAITS = ("slow_rank_timeout", "rdzv_incomplete", "remote_peer_failure")
"""Causes that are reported by a rank that waits for another."""
WENT_ON = (*STARTED, "progress.bar")
"""Rows that show that the job went on."""
OF_CODE = frozenset((
    "app_crash", "checkpoint", "disk_full", "gpu_busy", "gpu_oom", "invalid_device_ordinal", "world_size_wrong",
    "ddp_unused_params",
))  # fmt: skip
"""Causes where the user's line that raised matters."""
RETRIED = ("socket.", "store.", "rdzv.", "store_barrier.", "service.", "storage.", "pmix.")
"""Rows of what is tried again: connections, services, files."""
SINGLE_NODE = "nccl.single_node"
"""Row of a job on one node."""
_PLACES = tuple(
    re.compile(form)
    for form in (
        r"\b[Rr]ank (?P<rank>\d{1,7}),? (?:on )?node (?P<node>[A-Za-z\d][\w.-]{0,120}[A-Za-z\d])",
        r"\bon node (?P<node>[A-Za-z\d][\w.-]{0,120}[A-Za-z\d]) managing GPU (?P<gpu>\d{1,3})\b",
        r"\b(?:hca|HCA|[Dd]evice|[Nn]ic|NIC)[ :=]{1,2}(?P<device>(?:mlx[45]|bnxt_re|irdma|rdmap)\w{1,20})\b",
        r"\bmanaging GPU (?P<gpu>\d{1,3})\b",
    )
)
"""Forms in which programs name whom a line is about."""
TRIED = ("shell.", "service.", "storage.", "pmix.")
"""Rows of what a script or a loader does without, or tries again, whatever its line's level."""
OVERCOME = ("gpu_oom", "host_oom_kill")
"""Causes that a job may get over: a smaller batch, or another job's process."""
XIDS = "kernel.xid_"
_WARNS = re.compile(r"\b(?:WARN|WARNING|Warning)\b[\]:| -]|-- skipping remaining: ")
MOST_LINES = 5
"""Lines that a candidate quotes."""
MOST_NAMED = 3
"""Culprits of one kind that a sentence names."""
CLEAR = 50
"""Weight from which a failure is more than a guess."""
NONE = "none"
"""The confidence of what names no cause."""
AS_GOOD = 15
"""If two candidates differ by no more than this weight, the earlier one is the cause."""


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
    """Instead of its cause's."""
    severity: str = ""
    """Instead of its cause's."""
    confidence: str = ""
    """Where the default by role and weight does not fit; "" else."""
    count: int = 1
    """Lines that say it."""
    rows: frozenset[str] = frozenset()
    """Names of the signatures that say it."""
    code: str = ""
    """Of the live finding that says it."""
    action: str = ""
    """Instead of its cause's."""
    named: frozenset[int] = frozenset()
    """Ranks that it accuses beside the one in `where`: none of them only noticed it."""
    seen_at: Mapping[str, Any] = field(default_factory=dict)
    """Where the failure shows, with the same keys, if its cause is unknown: then nobody is the culprit."""


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
    evidence: Evidence, slug: str, role: str, weight: int, message: str, lines: Sequence[Line],
    where: Mapping[str, Any] | None = None, ranks: frozenset[int] | None = None, confidence: str = "", row: str = "",
    fix: str = "",
) -> Candidate:  # fmt: skip
    """From lines of logs, the deciding one first. `ranks`: those of the lines, unless given. `row`: the signature."""
    known = {key: value for key, value in (where or {}).items() if value is not None}
    return Candidate(
        slug, role, weight, message, min(evidence.moment(line) for line in lines), known,
        ranks_of(lines) if ranks is None else ranks, tuple(lines[:MOST_LINES]), confidence=confidence,
        count=len(lines), rows=frozenset({row} - {""}), fix=fix,
    )  # fmt: skip


def ranks_of(lines: Iterable[Line]) -> frozenset[int]:
    return frozenset(line.rank for line in lines if line.rank is not None)


def best_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """By role, then by weight; among about equal ones, the earliest first."""
    left = sorted(candidates, key=lambda c: (ROLES.index(c.role), -c.weight, c.moment, c.slug, c.message))
    ordered = []
    while left:
        equal = [c for c in left if c.role == left[0].role and c.weight >= left[0].weight - AS_GOOD]
        ordered.append(min(equal, key=lambda c: (c.moment, -c.weight, c.slug, c.message)))
        left.remove(ordered[-1])
    return ordered


def select_rows(evidence: Evidence, book: Book) -> list[Signature]:
    """The signatures that were seen and meet their conditions."""
    names = evidence.seen.keys() | ({SINGLE_NODE} if evidence.on_one_host() else set())
    met = [row for name in evidence.seen if (row := book.by_name.get(name)) and {*row.needs} <= names]
    met = [row for row in met if evidence.seen[row.name].count >= row.least]
    met = [row for row in met if not any(_contradicts(evidence, name, row) for name in names & {*row.unless})]
    return [row for row in met if not _is_over(evidence, row)]


def _is_over(evidence: Evidence, row: Signature) -> bool:
    """Whether all its lines are warnings, of what is tried again, or of caught exceptions, and the job went on after
    each. What NCCL warns of, and other warnings than of connections, may matter to a failure that follows."""
    if row.role not in ("cause", "failure", "fallout"):
        return False
    lines = [match.line for match in evidence.matches(row.name)]
    is_overcome = row.slug in OVERCOME
    is_tried = is_overcome or row.name.startswith(TRIED)
    went_on = all(
        (is_tried or _is_warning(line) or _is_caught(evidence, line)) and evidence.progressed_after(line)
        for line in lines
    )
    but = row.slug if is_overcome else ""
    return went_on and (row.name.startswith(RETRIED) or not any(evidence.failed_after(line, but) for line in lines))


def _is_caught(evidence: Evidence, line: Line) -> bool:
    traceback = evidence.tracebacks.around(line)
    return traceback is not None and traceback.survived


def _is_warning(line: Line) -> bool:
    return line.level in WARNING_LEVELS or (not line.level and bool(_WARNS.search(line.raw)))


def _contradicts(evidence: Evidence, name: str, row: Signature) -> bool:
    """A row of WENT_ON excludes nothing that came after it and before a failure: that is another attempt, or another
    job's end. An Xid excludes nothing on other GPUs."""
    if name.startswith(XIDS):
        ours, others = ({match.groups.get("device") for match in evidence.matches(of)} for of in (row.name, name))
        return ours <= others
    if name not in WENT_ON:
        return True
    last = max((match.line for match in evidence.matches(row.name)), key=lambda line: line.order)
    over = all(match.line.file == last.file and match.line.number < last.number for match in evidence.matches(name))
    return not (over and evidence.failed_after(last))


def from_row(evidence: Evidence, row: Signature) -> Candidate:
    """From a signature that has a slug and was seen."""
    matches, kept = evidence.matches(row.name), evidence.seen[row.name]
    first = matches[0]
    alone = len(kept.ranks) < 2 and row.role == "cause"
    places = (_raised_at(evidence, row, match.line) for match in (matches if alone else matches[:1]))
    place = next(filter(None, places), {})
    message = words.clauses(_sentences(matches), MOST_NAMED) + _raised_text(evidence, row, first.line, place)
    to_all = row.slug == "external_signal" and len(kept.ranks) > 1
    where = {**place, **({} if to_all else _common_culprit(matches))}
    return Candidate(
        slug=row.slug, role=row.role, weight=row.weight, message=message, moment=evidence.moment(first.line),
        where=where, ranks=frozenset(kept.ranks), lines=_different([match.line for match in matches]),
        fix=first.fill(row.fix), severity=row.severity, count=kept.count, rows=frozenset({row.name}), action=row.action,
        named=_named(row, matches, kept.ranks),
    )  # fmt: skip


def _named(row: Signature, matches: Sequence[Match], writers: Collection[int]) -> frozenset[int]:
    """The ranks that it accuses: those that its lines list, or their writers."""
    listed = frozenset(rank for match in matches for rank in listed_ranks(match))
    return listed or frozenset(writers if row.role == "cause" and is_about_its_writer(matches[0]) else ())


def listed_ranks(match: Match) -> frozenset[int]:
    """Of its group `ranks`: "3, 5" or "Culprit rank 3; ..., Culprit rank 5; ..."; of ranges none are known."""
    text = match.groups.get("ranks", "")
    found = text.split(",") if re.fullmatch(r"[\d, ]+", text) else re.findall(r"\brank (\d{1,7})\b", text)
    return frozenset(int(rank) for rank in found if rank.strip() and int(rank) < RANKS)


def _raised_at(evidence: Evidence, row: Signature, line: Line) -> dict[str, Any]:
    """The user's line that led to an exception, if the row's line belongs to one."""
    traceback = evidence.tracebacks.around(line) if row.slug in OF_CODE and row.role in ("cause", "failure") else None
    if traceback is None or not is_own(traceback.file):
        return {}
    return {"file": traceback.file, "line": traceback.number}


def _raised_text(evidence: Evidence, row: Signature, line: Line, place: Mapping[str, Any]) -> str:
    """What the exception adds to the row's sentence: its further lines; itself, if the row fits a line above it; and
    its place."""
    if row.slug not in OF_CODE:
        return ""
    traceback = evidence.tracebacks.around(line)
    above = traceback is not None and traceback.line.number != line.number and row.word not in traceback.raised
    said = traceback.raised if traceback and above else evidence.tracebacks.rest(line) if row.lines else ""
    at = f" ({place['file']}:{place['line']})" if place else ""
    return (f": {said[:LONGEST]}" if said else "") + at


def _sentences(matches: Sequence[Match]) -> list[str]:
    """The distinct sentences, each with the ranks that say it unless the sentence names a rank."""
    speakers: dict[str, list[Line]] = {}
    known: set[Any] = set()
    for match in matches:
        text = shortened(match.fill(match.signature.says))
        pair = {match.groups.get("rank"), match.groups.get("peer_rank")} - {None}
        key = (match.signature.says, frozenset(pair)) if len(pair) == 2 else text
        if key not in known:
            known.add(key)
            speakers[text] = []
        if text in speakers:
            speakers[text].append(match.line)
    return list(_with_speakers(speakers))


def _with_speakers(speakers: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    """The sources are named once if they say several things."""
    before = ""
    for text, lines in speakers.items():
        who = "" if {"rank", "ranks", "node"} & {*text.split()} else describe_sources(lines)
        yield text if who in ("", before) else f"{who}: {text}"
        before = who


def describe_sources(lines: Sequence[Line], unknown: str = "") -> str:
    """ "rank 3 on node-a", or what is known of it; `unknown` where the rank is not known."""
    ranks, nodes = ranks_of(lines), sorted({line.node for line in lines if line.node})
    on = f"on {words.some(nodes, MOST_NAMED)}" if nodes else ""
    return " ".join(filter(None, (rank_ranges.ranks(ranks) if ranks else unknown, on)))


def _common_culprit(matches: Sequence[Match]) -> dict[str, Any]:
    """The first one's culprit; for several sources, only what all have in common (their node)."""
    first, *others = [find_culprit(match) for match in matches]
    if len({match.line.pid for match in matches} - {None}) < 2 and (whole := _united([first, *others])):
        return whole
    named = matches[0].groups.keys() & {*CULPRIT}
    same = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    return {key: value for key, value in first.items() if key in named or key in same} if same else first


def _united(culprits: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the lines of one rank's process know together; empty if they name no rank, or contradict each other."""
    whole: dict[str, Any] = {}
    for culprit in culprits:
        if any(whole.get(key, value) != value for key, value in culprit.items()):
            return {}
        whole |= culprit
    return whole if "rank" in whole else {}


def is_about_its_writer(match: Match) -> bool:
    """Whether the line's writer is the culprit, as far as is known."""
    return not {"rank", "peer_rank", "ranks"} & match.groups.keys() and match.signature.slug not in (
        *WAITS, "collective_mismatch",
    )  # fmt: skip


def find_culprit(match: Match) -> dict[str, Any]:
    """The culprit: what the line names, and its writer if that is the same. A survivor is not a culprit."""
    named = {key: _value(key, match.groups[key]) for key in CULPRIT if key in match.groups}
    named = {key: value for key, value in named.items() if value is not None}
    if len(listed := listed_ranks(match)) == 1:
        named["rank"] = min(listed)
    line = match.line
    other = (
        match.signature.role == "fallout"
        or match.signature.slug in (*WAITS, "collective_mismatch")
        or ("rank" in named and line.rank not in (None, named["rank"]))
    )
    if other:
        return named
    about = _in_text(line)
    source = find_source(line) if about.get("rank", line.rank) == line.rank else {}
    return {**source, **about, **named}


def _in_text(line: Line) -> dict[str, Any]:
    """Whom the line's own words name."""
    found = [fits.groupdict() for form in _PLACES if (fits := form.search(line.text))]
    return {key: value for groups in found for key, text in groups.items() if (value := _value(key, text)) is not None}


def find_source(line: Line) -> dict[str, Any]:
    """Who wrote a line, as far as its prefixes say."""
    source = {"node": line.node or None, "rank": line.rank, "local_rank": line.local_rank, "gpu": line.gpu}
    return {key: value for key, value in source.items() if value is not None}


def _value(key: str, text: str) -> str | int | None:
    if key not in NUMBERS:
        return text
    return int(text) if text.isdecimal() and int(text[:9]) < RANKS else None


def _different(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The first few from distinct sources."""
    by_source: dict[Any, Line] = {}
    for line in lines:
        by_source.setdefault((line.file, line.rank, line.node, line.text), line)
    return tuple(itertools.islice(by_source.values(), MOST_LINES))
