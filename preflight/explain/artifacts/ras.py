"""NCCL RAS answers in JSON (ncclras -f json) that someone saved.

A healthy job has such files, too, and its ranks are never at one count: so only ranks that do not answer, or whose
communicator has failed, are causes. Counts are reported beside these.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from preflight.core import rank_ranges
from preflight.explain.candidates import Candidate, from_artifact
from preflight.explain.inputs import LARGEST_JSON, Unread
from preflight.nccl import ras_snapshot
from preflight.nccl.ras_snapshot import Communicator

SILENT, FAILED = 58, 40
"""Weights: of ranks that do not answer; of errors that ranks report."""
SILENT_FIX = (
    "On its node: is the process there (ps), stopped or in state D? Its own log ends with the reason. A process that "
    "has been gone is dead to RAS after a minute."
)


def find_candidates(paths: Sequence[str]) -> tuple[list[Candidate], list[Unread]]:
    """The candidates from all answers."""
    found: list[Candidate] = []
    unread: list[Unread] = []
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            snapshot = ras_snapshot.parse(file.read(LARGEST_JSON))
        if snapshot is None:
            unread.append(Unread(path, "is JSON of NCCL's RAS, but not whole", broken=True))
            continue
        worlds = [comm for comm in snapshot["communicators"] if comm["size"] == snapshot["communicators"][0]["size"]]
        for comm in worlds:
            found += _of_communicator(comm, path, is_world=len(worlds) == 1)
    return found, unread


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
            told = ", ".join(parts)
            return f"; launched {operation}: {told}"
    return ""
