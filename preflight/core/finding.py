"""A finding as the report holds it, and the codes that are the engine's own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_KINDS = {
    "severity": str, "code": str, "message": str, "where": dict, "noticed_by": str, "evidence": dict, "fix": str,
    "action": str, "severity_was": str, "waived": dict, "waiver_ended": dict, "ranks": str, "nodes": list,
}  # fmt: skip
_ALWAYS = tuple(_KINDS)[:7]


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A finding from the judge to the report (docs/report.md, report.schema.json)."""

    severity: str
    """fail, error, warn or info."""
    code: str
    """With the check's id."""
    message: str
    where: Mapping[str, Any] = field(default_factory=dict)
    """The culprit, by keys of check.WHERE_KEYS, or the `group` of nodes that have it all."""
    noticed_by: str = ""
    """Ranks of the victims, as "0-7,9"."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fix: str
    action: str = ""
    """A word of core.action; "" in the report of an older preflight."""
    severity_was: str = ""
    """The check's own, where the policy has changed it."""
    waived: Mapping[str, str] | None = None
    """The waiver that covers it: until, reason."""
    waiver_ended: Mapping[str, str] | None = None
    ranks: str = ""
    """Of equal findings that were merged."""
    nodes: list[str] | None = None

    @property
    def counts(self) -> bool:
        """Whether it counts for status, verdict and nodes: what is waived is only shown."""
        return self.waived is None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name in _ALWAYS or value not in ("", None)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Reported":
        """Fields that a newer preflight has added are ignored. Raises KeyError and TypeError for what is no finding."""
        known = {name: data[name] for name in _KINDS if name in _ALWAYS or name in data}
        for name, value in known.items():
            if not isinstance(value, _KINDS[name]):
                raise TypeError(f"{name} of a finding is {value!r}")
        return Reported(**known)


RUN = "preflight.run"
"""Under this id stands what is no check's: ranks that never came, the store, interruptions."""
RUN_SLUGS = {
    "deadline": "Checks were left out, since the run's deadline left no time for them.",
    "stood_still": "A supervisor stood still (stopped, or starved of CPU), so that others gave up on it.",
    "lost": "A rank never came to the run, or nothing more was heard of it.",
    "store_lost": "The store over which the ranks talk could not be served or reached, or does not answer.",
    "rendezvous": "MASTER_ADDR does not resolve, or another process has MASTER_PORT.",
    "interrupted": "A signal or the launcher's death ended the run before its verdict.",
    "launch": "A process was started with variables that do not let it join.",
    "backend": "The GPUs of rank 0's node cannot be used by its torch.",
    "torch": "torch cannot be imported on a node.",
    "baseline": "The run of --baseline had another backend or number of ranks, or the history of --baseline auto "
    "cannot be read: nothing was compared with it.",
    "slower_than_history": "A check's speeds are below those of the last sound runs of its kind (--baseline auto).",
    "beside_history": "The runs that --baseline auto has held this one beside.",
    "beside_profile": "The profile that --profile has held the nodes against, and how much of it.",
    "profile_gpus": "A node has another number of GPUs than its kind in the profile (--profile).",
    "profile_missing": "A node lacks a network card or an HCA that its kind in the profile has.",
    "profile_differs": "A node has another value than its kind in the profile: a version, a link, a limit.",
    "profile_kind": "The profile has no kind that fits a node.",
    "fault": "A fault of preflight itself.",
}
"""All codes of `preflight.run`."""
OWN_SLUGS = {
    "timed_out": "It did not end within its deadline, and was killed.",
    "crashed": "Its process ended while it measured.",
    "lost": "Nothing more was heard of the rank.",
    "raised": "It raised an exception.",
    "bad_facts": "What `measure` returned is not JSON, holds NaN or is too large.",
    "out_of_step": "A rank left out a collective that the others entered, or entered another one.",
}
"""The engine's codes, under every check."""
