"""One row of the fault table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fault:
    """One row. The culprit is rank 1 on this machine unless said otherwise."""

    name: str
    story: str
    """What goes wrong, for people."""
    made: str
    """How it is made, for people."""
    finds: tuple[str, ...]
    """`severity code` of every finding above info, in any order; "x or y" where the moment decides which."""
    culprit: Mapping[str, Any] = field(default_factory=lambda: {"rank": 1})
    """What `where` of every one of them must hold (beside the node)."""
    noticed_by: str = ""
    exit_code: int = 1
    world: int = 3
    only: tuple[str, ...] = ("plugin",)
    """What `--only` names."""
    plugins: tuple[str, ...] = ("alone", "after")
    settings: Mapping[str, str] = field(default_factory=dict)
    after: int | None = 3
    """How many members measure in the sound check that follows; None where none can."""
    launcher: str = "plain"
    """plain, torchrun, or agent (plain ranks on a store that another process serves)."""
    says: str = ""
    """Words that the first finding's message holds."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Of all ranks."""
    environ_of: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Of single ranks, over that."""
    also: tuple[str, ...] = ()
    """Consequences that may be found beside it."""
    stopped: tuple[int, ...] = ()
    """Ranks that the fault leaves stopped: the test ends them after the run."""
    deadline_s: float = 60

    def is_told_by(self, findings: Sequence[Mapping[str, Any]]) -> bool:
        """Whether all that had to be found was, nothing else but its consequences, and the culprit named."""
        found = {f"{finding['severity']} {finding['code']}" for finding in findings}
        named = [finding["where"] for finding in findings]
        is_named = not self.culprit or any(self.culprit.items() <= where.items() for where in named)
        return set(self.finds) <= found <= {*self.finds, *self.also} and is_named


def in_check(name: str, story: str, made: str, *finds: str, only: str, **more: Any) -> Fault:
    """A fault that a built-in check finds on plain ranks, made by their environments alone (rank 1's is the odd
    one of three): run by tests/test_faults.py."""
    exit_code = 1 if any(find.startswith("fail") for find in finds) else 0
    return Fault(name, story, made, finds, only=(only,), plugins=(), after=None, **{"exit_code": exit_code, **more})


def elsewhere(name: str, story: str, made: str, *finds: str, **more: Any) -> Fault:
    """A fault whose test needs more, and stands elsewhere: it holds what was found against `is_told_by`."""
    return Fault(name, story, made, finds, **more)
