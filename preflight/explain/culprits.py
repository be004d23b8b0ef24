"""Whom an observation is about: rank, node, device, line of code, as its words, its row and its prefixes say."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from preflight.core import rank_ranges, words
from preflight.failure_book.book import Match
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
MOST_NAMED = 3
"""Culprits of one kind that a sentence names."""


def ranks_of(lines: Iterable[Line]) -> frozenset[int]:
    return frozenset(line.rank for line in lines if line.rank is not None)


def listed_ranks(match: Match) -> frozenset[int]:
    """Of its group `ranks`: "3, 5" or "Culprit rank 3; ..., Culprit rank 5; ..."; of ranges none are known."""
    text = match.groups.get("ranks", "")
    found = text.split(",") if re.fullmatch(r"[\d, ]+", text) else re.findall(r"\brank (\d{1,7})\b", text)
    return frozenset(int(rank) for rank in found if rank.strip() and int(rank) < RANKS)


def describe_sources(lines: Sequence[Line], unknown: str = "") -> str:
    """ "rank 3 on node-a", or what is known of it; `unknown` where the rank is not known."""
    ranks, nodes = ranks_of(lines), sorted({line.node for line in lines if line.node})
    on = f"on {words.some(nodes, MOST_NAMED)}" if nodes else ""
    return " ".join(filter(None, (rank_ranges.ranks(ranks) if ranks else unknown, on)))


def common_culprit(matches: Sequence[Match]) -> dict[str, Any]:
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
