"""Ranks that announced themselves, compared with the world size that they expect."""

from collections.abc import Iterator

from preflight.core import rank_ranges
from preflight.explain.candidates import Candidate, from_lines
from preflight.explain.evidence import REPORTED_ROLES, Evidence

WEIGHT = 60
GOES_ON = ("members.all", "nccl.init_complete", "progress.bar", "progress.step", "epoch.end")
"""Rows that appear when all ranks have joined."""
WAITING = {"slow_rank_timeout", "rdzv_incomplete"}
"""Causes that may be reported while they wait."""


def find_candidates(evidence: Evidence) -> Iterator[Candidate]:
    """Where fewer ranks announce themselves than they expect, and no line says that all have joined."""
    matches = evidence.matches("members.one")
    if not matches or _went_on(evidence):
        return
    world = max(int(match.groups["world"][:9]) for match in matches)
    came = frozenset(int(match.groups["rank"][:9]) for match in matches)
    nodes = {match.line.node for match in matches if match.line.node}
    if len(came) >= world or max(came) >= world or len(came) < 2:
        return
    one_block = came <= set(range(max(8, 1 << (len(came) - 1).bit_length()))) and len(nodes) < 2
    slug = "world_size_wrong" if one_block else "rdzv_incomplete"
    why = "only this node's ranks were started" if one_block else "the others never joined"
    text = (
        f"{rank_ranges.count(len(came), 'rank')} of {world} joined ({rank_ranges.to_text(came)}): {why}, or "
        "WORLD_SIZE, the number of nodes or of processes per node does not match what was started"
    )
    lines = [match.line for match in matches]
    yield from_lines(evidence, slug, "failure", WEIGHT, text, lines, ranks=came, confidence="medium", row="members.one")


def _went_on(evidence: Evidence) -> bool:
    """Whether all must have joined, or another failure was reported."""
    rows = [kept.matches()[0].signature for kept in evidence.seen.values()]
    failed = any(row.role in REPORTED_ROLES and row.slug not in WAITING for row in rows)
    return failed or bool(evidence.seen.keys() & {*GOES_ON}) or any(True for _ in evidence.tracebacks)
