"""Hints of what `preflight debug` has of each rank."""

from collections.abc import Sequence

from preflight.explain import rank_ends, standing
from preflight.explain.hint import Hint
from preflight.explain.processes import processes


def hints(records: Sequence[str], stacks: Sequence[str]) -> list[Hint]:
    """The first rank that failed by itself, else who stands where in a hang. `records`, `stacks`: paths. Files that are
    malformed say nothing."""
    found = processes(records, stacks)
    return rank_ends.hints(found) or standing.hints(found)
