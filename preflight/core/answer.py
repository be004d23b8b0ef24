"""The result of work that was given to another process."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True)
class Returned:
    """What the work returned, after its trip through JSON."""

    value: dict[str, Any]

    def value_or(self, _default: dict[str, Any]) -> dict[str, Any]:
        return self.value


class FailureKind(StrEnum):
    """The engine's code for a failure (core/finding.py)."""

    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    """Also if the process could not be started."""
    RAISED = "raised"
    NO_PROCESS = "no_process"
    """A limit of the host keeps it from starting a process."""


@dataclass(frozen=True)
class Failure:
    """Why there is no answer."""

    kind: FailureKind
    text: str
    """A predicate: "did not end within 3.0 s"."""
    stack: str = ""
    """The process's stack, or the end of what it wrote."""

    def value_or(self, default: dict[str, Any]) -> dict[str, Any]:
        """For a caller that can continue without the answer."""
        return default
