"""NCCL RAS answers in JSON (ncclras -f json) that someone saved.

A healthy job has such files, too, and its ranks are never at one count: so ranks that do not answer, or whose
communicator has failed, are causes. Different counts are a warning without a culprit, unless two answers show that
nothing has moved between them: then the few ranks that are behind are late.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from preflight.core import rank_ranges
from preflight.explain.candidates import Candidate, from_artifact
from preflight.explain.inputs import LARGEST_JSON, Unread
from preflight.nccl import ras_snapshot
from preflight.nccl.ras_snapshot import Communicator, Snapshot

SILENT, FAILED, BEHIND, DIFFERENT = 58, 40, 45, 20
"""Weights: of ranks that do not answer; of errors that ranks report; of ranks that stay behind; of different counts."""
APART_S = 10.0
"""Between two answers in which nothing has moved; a step, or what comes between two, seldom takes longer. (A guess.)"""
ASK_AGAIN = (
    "Ask twice, half a minute apart: ncclras -f json > ras-1.json, and ras-2.json. preflight explain on both names the "
    "rank that stays behind; preflight debug shows where it stands."
)
SILENT_FIX = (
    "On its node: is the process there (ps), stopped or in state D? Its own log ends with the reason. A process that "
    "has been gone is dead to RAS after a minute."
)


@dataclass(frozen=True, eq=False)
class _Answer:
    path: str
    at: float
    """Seconds; 0 where it does not say."""
    snapshot: Snapshot

    def comm(self, name: str) -> Communicator | None:
        return next((comm for comm in self.snapshot["communicators"] if comm["hash"] == name), None)


def find_candidates(paths: Sequence[str]) -> tuple[list[Candidate], list[Unread]]:
    """The candidates from all answers."""
    answers: list[_Answer] = []
    unread: list[Unread] = []
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(LARGEST_JSON)
        if (snapshot := ras_snapshot.parse(text)) is None:
            unread.append(Unread(path, "is JSON of NCCL's RAS, but not whole", broken=True))
        else:
            answers.append(_Answer(path, _asked_at(text), snapshot))
    found: list[Candidate] = []
    for answer in sorted(answers, key=lambda answer: answer.at):
        communicators = answer.snapshot["communicators"]
        worlds = [comm for comm in communicators if comm["size"] == communicators[0]["size"]]
        for comm in worlds:
            failed = list(_of_communicator(comm, answer.path, is_world=len(worlds) == 1))
            found += failed or _of_counts(comm, answer, answers, is_world=len(worlds) == 1)
    return found, unread


def _asked_at(text: str) -> float:
    """By the answer's own time stamp, "2026-03-14 15:23:05"."""
    stamp = json.loads(ras_snapshot.GREETING.sub("", text, count=1)).get("timestamp")
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _of_counts(comm: Communicator, answer: _Answer, answers: Sequence[_Answer], is_world: bool) -> Iterator[Candidate]:
    """What its counts say, unless a later answer says the same, or another one shows that the job moves."""
    counts = _counts(comm).removeprefix("; ")
    others = {other: known for other in answers if (known := other.comm(comm["hash"]))}
    same = [other for other, known in others.items() if known["counts"] == comm["counts"]]
    if not counts or any(other.at > answer.at for other in same):
        return
    still = answer.at - min(other.at for other in same if other.at) if answer.at else 0.0
    behind = _behind(comm["counts"])
    if still >= APART_S and behind:
        message = f"NCCL's RAS was asked twice, {still:.0f} s apart, and no rank had moved; {counts}"
        message += f": {rank_ranges.ranks(behind)} {'is' if len(behind) == 1 else 'are'} late, stuck or gone"
        where: dict[str, Any] = {"rank": min(behind)} if is_world and len(behind) == 1 else {}
        yield from_artifact("slow_rank_timeout", message, where, (), answer.path, BEHIND, fix=SILENT_FIX)
        return
    if len(same) == len(others):
        message = f"NCCL's RAS counts differ by rank ({counts}): a hang if nothing moves, usual in a job that runs"
        candidate = from_artifact("slow_rank_timeout", message, {}, (), answer.path, DIFFERENT, fix=ASK_AGAIN)
        yield replace(candidate, role="slower", severity="warn", rows=frozenset({answer.path}))


def _behind(counts: Mapping[str, Mapping[str, int]]) -> set[int]:
    """The ranks that have launched fewer than more than half of them have."""
    behind: set[int] = set()
    for by_ranks in counts.values():
        size: Counter[int] = Counter()
        for those, times in by_ranks.items():
            size[times] += len(rank_ranges.from_text(those))
        usual = max(size, key=lambda times: size[times])
        if 2 * size[usual] > size.total():
            behind.update(*(rank_ranges.from_text(those) for those, times in by_ranks.items() if times < usual))
    return behind


def _of_communicator(comm: Communicator, path: str, is_world: bool) -> Iterator[Candidate]:
    """The candidates from one communicator. `is_world`: its ranks are the job's."""
    of, silent = f"of the communicator of {comm['size']} ranks", comm["dead"] or comm["unresponsive"]
    if silent:
        those = rank_ranges.from_text(silent)
        given_up = "has given up" if comm["dead"] else "has no answer from"
        message = f"NCCL's RAS {given_up} {rank_ranges.ranks(those)} {of}, expected all to answer{_counts(comm)}"
        where: dict[str, Any] = {"rank": min(those)} if is_world and len(those) == 1 else {}
        yield from_artifact("slow_rank_timeout", message, where, (), path, SILENT, fix=SILENT_FIX)
    for name, text in comm["failed"].items():
        message = f"{rank_ranges.ranks(rank_ranges.from_text(text))} {of} met a {name}{_counts(comm)}"
        slug = "remote_peer_failure" if name == "remote error" else "unknown"
        ranks = rank_ranges.from_text(text) if is_world else ()
        yield from_artifact(slug, message, {}, ranks, path, FAILED)


def _counts(comm: Communicator) -> str:
    """ "; launched AllReduce: ranks 0-1 12 times, rank 2 9 times"."""
    for operation, by_ranks in comm["counts"].items():
        if len(by_ranks) > 1:
            sides = list(by_ranks.items())[:4]
            parts = (f"{rank_ranges.ranks(rank_ranges.from_text(those))} {times} times" for those, times in sides)
            sides_text = ", ".join(parts)
            return f"; launched {operation}: {sides_text}"
    return ""
