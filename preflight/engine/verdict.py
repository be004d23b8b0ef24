"""What rank 0 says once for all: its answer to each process that comes, and the verdict that they end with."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from preflight.core.job import Job
from preflight.engine import store_messages


@dataclass(frozen=True)
class Welcome:
    run: str
    """The id of the run."""
    place: str
    """ "member", or why this process has no place (membership.py)."""
    proofs: Sequence[str]
    """Hashes of the proofs of the verdicts, by exit code."""

    def to_text(self) -> str:
        return json.dumps({"run": self.run, "place": self.place, "proofs": list(self.proofs)})

    @staticmethod
    def read(text: str, key: str) -> "Welcome":
        """Members that a newer preflight may add are ignored. Raises ForeignWriter."""
        message = store_messages.read("welcome", text, key)
        return Welcome(message["run"], message["place"], message["proofs"])


@dataclass(frozen=True)
class RunVerdict:
    """What all ranks need to end."""

    run: str
    attempt: str
    """Separates a restart's farewells from the first ones."""
    job: Job
    living: Sequence[int]
    """The ranks that are waited for."""
    strangers: int
    """As many processes without a place are waited for, too."""
    exit_code: int
    sentence: str
    command: Sequence[str]
    """A restart with the same one repeats the verdict."""
    proof: str
    """That it is rank 0's: its hash is in each welcome."""

    def to_json(self) -> dict[str, object]:
        """As an order of rank 0 in the store."""
        return {"event": "verdict", "step": 0, **vars(self), "living": list(self.living), "job": self.job.to_json()}

    @staticmethod
    def from_message(message: dict[str, Any], key: str) -> "RunVerdict":
        """From a message that store_messages has read. Raises ForeignWriter for a job that cannot be."""
        own = {name: message[name] for name in RunVerdict.__dataclass_fields__}
        return RunVerdict(**{**own, "job": store_messages.job(message["job"], key)})
