"""What single lines say: the causes that the failure book's rows name by themselves."""

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from preflight.core import words
from preflight.core.own_code import is_own
from preflight.explain.candidates import MOST_LINES, Candidate
from preflight.explain.causes import beside
from preflight.explain.culprits import (
    MOST_NAMED,
    common_culprit,
    describe_sources,
    is_about_its_writer,
    listed_ranks,
)
from preflight.explain.logs.tracebacks import LONGEST
from preflight.explain.timeline import Timeline
from preflight.failure_book.book import Match, Signature
from preflight.failure_book.line import Line

OF_CODE = frozenset((
    "app_crash", "checkpoint", "disk_full", "gpu_busy", "gpu_oom", "invalid_device_ordinal", "world_size_wrong",
    "ddp_unused_params",
))  # fmt: skip
"""Causes where the user's line that raised matters."""
# What torch prints of a collective under TORCH_DISTRIBUTED_DEBUG=DETAIL: the form is that of
# torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp, 1.9 to 2.13.
_INSIDE = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*"
_PRINT = re.compile(rf"CollectiveFingerPrint\({_INSIDE}\)")
FORMS = {
    "OpType": ("{}", re.compile(r"\bOpType=(\w+)")),
    "SequenceNumber": (" #{}", re.compile(r"\bSequenceNumber=(\d+)")),
    "TensorShape": (" of {}", re.compile(r"\bTensorShape=(\[[^A-Za-z]*\])")),
    "TensorDtypes": (" {}", re.compile(r"\bTensorDtypes=([\w, ]+?)(?=, Tensor|\))")),
    "TensorDeviceTypes": (" on {}", re.compile(r"\bdevice=(\w+)")),
}
"""By part of a fingerprint: how a sentence says it, and where it stands."""


def find_candidates(timeline: Timeline, but: Collection[str]) -> Iterator[Candidate]:
    """One per row that stands, except of those in `but`."""
    logs = beside.find_logs(timeline)
    for row in timeline.standing_rows():
        if row.slug and row.name not in but and not beside.is_earlier(timeline, row, logs):
            candidate = _candidate(timeline, row)
            yield _outlived(candidate) if beside.is_outlived(timeline, row, logs) else candidate


def _outlived(candidate: Candidate) -> Candidate:
    """A fault that did not end the job may still be one of the machine: one warning per cause, whatever says it."""
    message = f"{candidate.message}; the job went on after it"
    return replace(candidate, role="slower", severity="warn", message=message, rows=frozenset(beside.ROWS))


def _candidate(timeline: Timeline, row: Signature) -> Candidate:
    matches, kept = timeline.matches(row.name), timeline.seen[row.name]
    first = matches[0]
    alone = len(kept.ranks) < 2 and row.role == "cause"
    places = (_raised_at(timeline, row, match.line) for match in (matches if alone else matches[:1]))
    place = next(filter(None, places), {})
    message = words.clauses(_sentences(matches), MOST_NAMED) + _raised_text(timeline, row, first.line, place)
    to_all = row.slug == "external_signal" and len(kept.ranks) > 1
    where = {**place, **({} if to_all else common_culprit(matches))}
    return Candidate(
        slug=row.slug, role=row.role, weight=row.weight, message=message, moment=timeline.moment(first.line),
        where=where, ranks=frozenset(kept.ranks), lines=_different([match.line for match in matches]),
        fix=first.fill(row.fix), severity=row.severity, count=kept.count, rows=frozenset({row.name}), action=row.action,
        named=_named(row, matches, kept.ranks),
    )  # fmt: skip


def _named(row: Signature, matches: Sequence[Match], writers: Collection[int]) -> frozenset[int]:
    """The ranks that it accuses: those that its lines list, or their writers."""
    listed = frozenset(rank for match in matches for rank in listed_ranks(match))
    return listed or frozenset(writers if row.role == "cause" and is_about_its_writer(matches[0]) else ())


def _raised_at(timeline: Timeline, row: Signature, line: Line) -> dict[str, Any]:
    """The user's line that led to an exception, if the row's line belongs to one."""
    traceback = timeline.tracebacks.around(line) if row.slug in OF_CODE and row.role in ("cause", "failure") else None
    if traceback is None or not is_own(traceback.file):
        return {}
    return {"file": traceback.file, "line": traceback.number}


def _raised_text(timeline: Timeline, row: Signature, line: Line, place: Mapping[str, Any]) -> str:
    """What the exception adds to the row's sentence: its further lines; itself, if the row fits a line above it; and
    its place."""
    if row.slug not in OF_CODE:
        return ""
    traceback = timeline.tracebacks.around(line)
    above = traceback is not None and traceback.line.number != line.number and row.word not in traceback.raised
    text = traceback.raised if traceback and above else timeline.tracebacks.rest(line) if row.lines else ""
    at = f" ({place['file']}:{place['line']})" if place else ""
    return (f": {text[:LONGEST]}" if text else "") + at


def _sentences(matches: Sequence[Match]) -> list[str]:
    """The distinct sentences, each with the ranks that say it unless the sentence names a rank."""
    speakers: dict[str, list[Line]] = {}
    known: set[Any] = set()
    for match in matches:
        text = _shortened(match.fill(match.signature.says))
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


def _different(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The first few from distinct sources."""
    by_source: dict[Any, Line] = {}
    for line in lines:
        by_source.setdefault((line.file, line.rank, line.node, line.text), line)
    return tuple(itertools.islice(by_source.values(), MOST_LINES))


def _shortened(text: str) -> str:
    """Two fingerprints by what they differ in: "rank 0 runs ALLREDUCE of [1, 4096], but rank 1 runs ALLREDUCE of
    [1, 2048]"."""
    prints = [_parts(found[0]) for found in _PRINT.finditer(text)]
    differ = [name for name in FORMS if len({parts.get(name) for parts in prints}) > 1 or name == "OpType"]
    names, shown = differ if len(prints) > 1 else FORMS, iter(prints)
    return _PRINT.sub(lambda _: _joined(next(shown), names), text) if prints else text


def _parts(text: str) -> dict[str, str]:
    found = {name: pattern.search(text) for name, (_, pattern) in FORMS.items()}
    return {name: fits[1] for name, fits in found.items() if fits}


def _joined(parts: Mapping[str, str], names: Collection[str]) -> str:
    return "".join(FORMS[name][0].format(parts[name]) for name in names if name in parts)
