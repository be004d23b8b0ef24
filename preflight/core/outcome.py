"""How a check's `measure` ended on one rank."""

from dataclasses import asdict, dataclass, replace
from typing import Any

KINDS = ("measured", "skipped", "raised", "crashed", "timed_out", "lost")
LOG_TAIL = 64 * 1024
"""How many bytes are kept of the end of a worker's output, and of NCCL's log."""
SLUGS = ("", "bad_facts", "not_applicable", "no_process")
_FROM_A_WORKER = ("kind", "seconds", "reason", "slug", "in_collective", "stack", "facts_hash")


@dataclass(frozen=True)
class Outcome:
    """Built by the rank's own supervisor, or by rank 0 for a rank that is lost."""

    kind: str
    """measured, skipped, raised (an exception, or invalid facts), crashed (the process ended), timed_out (killed at its
    deadline, or aborted) or lost (the rank stopped responding)."""
    seconds: float = 0.0
    reason: str | None = None
    """One line: why it was skipped, the exception, the exit status."""
    slug: str = ""
    """The name of the engine's finding where it is not the kind: bad_facts, no_process. For a skip: not_applicable."""
    in_collective: bool = False
    """An exception came out of a collective: the cause may be another rank."""
    aborted: bool = False
    """A consequence: ended before its deadline because rank 0 had seen why it could not go on; or lost with its node
    after another rank of the node had died."""
    cut_short: bool = False
    """The run's deadline ended it, not its own, which says nothing about the machine."""
    own_fault: bool = False
    """preflight itself failed on this rank."""
    collective: dict[str, Any] | None = None
    """The last collective entered: operation, shape, number (how many were entered), inside (not yet left)."""
    signal: str | None = None
    state: str | None = None
    """The process's state letter from /proc before it was killed (T stopped, D uninterruptible, Z)."""
    doing: str | None = None
    stack: str | None = None
    log_tail: str | None = None
    recorded: list[dict[str, Any]] | None = None
    """The last collectives of each process group (hangs/collective_recorder.py)."""
    nccl_log: str | None = None
    """The end of NCCL's own log."""
    ras: str | None = None
    """What NCCL's RAS said; only for one rank per node."""
    facts_hash: str | None = None
    """The content hash of the facts."""
    measures_no_more: bool = False
    """The worker could not be reaped: this rank can measure nothing further."""

    @property
    def sound(self) -> bool:
        """Whether nothing needs an explanation."""
        return self.kind in ("measured", "skipped")

    def cut_short_by_the_run(self, patience_s: float) -> "Outcome":
        """This outcome, marked `cut_short` if it ran into a deadline that the run had shortened. `patience_s`: how long
        the others waited for it in a collective under that deadline."""
        waited = not self.aborted or self.seconds >= patience_s
        ran_out = self.kind == "timed_out" and waited and not self.could_not_run
        return replace(self, cut_short=True) if ran_out else self

    @property
    def could_not_run(self) -> bool:
        """Whether its process was stopped, stuck in the kernel, or dead: no deadline made it late."""
        return self.state in ("T", "t", "D", "Z")

    def to_json(self) -> dict[str, object]:
        """Leaves out empty fields."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "", False)}

    @staticmethod
    def from_message(message: dict[str, object]) -> "Outcome | None":
        """The outcome that a worker sent, or None if it is not well formed: a check's own code may have damaged it."""
        texts = [message.get(name) or "" for name in ("reason", "slug", "stack", "facts_hash")]
        seconds, slug = message.get("seconds"), message.get("slug") or ""
        if message.get("kind") not in ("measured", "skipped", "raised") or slug not in SLUGS:
            return None
        if (
            not isinstance(seconds, float)
            or not seconds >= 0
            or not isinstance(message.get("in_collective", False), bool)
        ):
            return None
        known = {key: message[key] for key in _FROM_A_WORKER if key in message}
        return Outcome.from_json(known) if all(isinstance(text, str) for text in texts) else None

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Outcome":
        """The reverse of `to_json`; unknown fields are ignored, as a newer preflight may add some."""
        known = {key: value for key, value in data.items() if key in Outcome.__dataclass_fields__}
        return replace(Outcome(data["kind"]), **known)
