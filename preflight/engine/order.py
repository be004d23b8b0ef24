"""Rank 0's order to measure one check: over the store to the members, and from a supervisor to its worker."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from preflight.core import rank_ranges


@dataclass(frozen=True)
class StepOrder:
    """One step of the run."""

    step: int
    check: str
    """An id: no order names a file."""
    members: tuple[int, ...]
    """The ranks that measure."""
    generation: int
    """Of the worker and the process group that it needs."""
    deadline_s: float
    fresh: bool
    """Whether all ranks end their workers before, also those that do not measure."""
    level: str

    def to_json(self) -> dict[str, object]:
        """`step` stands beside it in the store's message."""
        kept = {name: value for name, value in vars(self).items() if name != "step"}
        return {**kept, "members": rank_ranges.to_text(self.members)}

    @staticmethod
    def from_json(step: int, data: Mapping[str, Any]) -> "StepOrder":
        """Of a message that was held against its schema, or came from this rank's own supervisor."""
        return StepOrder(
            step, data["check"], rank_ranges.from_text(data["members"]), data["generation"], data["deadline_s"],
            data["fresh"], data["level"],
        )  # fmt: skip
