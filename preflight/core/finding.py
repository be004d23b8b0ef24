"""A finding as the report holds it, and the engine's own codes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from preflight.core import renamed_codes

_KINDS = {
    "severity": str, "code": str, "message": str, "where": dict, "noticed_by": str, "evidence": dict, "fix": str,
    "action": str, "severity_was": str, "waived": dict, "waiver_ended": dict, "ranks": str, "nodes": list,
    "not_measured": bool,
    "see": list, "cleared": str,
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
    """The culprit, by keys of check.WHERE_KEYS; or the `group` whose nodes all have the problem."""
    noticed_by: str = ""
    """Ranks of the victims, as "0-7,9"."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fix: str
    action: str = ""
    """A value of core.action.Action; "" in the report of an older preflight."""
    severity_was: str = ""
    """The check's own severity, if the policy has changed it."""
    waived: Mapping[str, str] | None = None
    """The waiver that covers it: until, reason."""
    waiver_ended: Mapping[str, str] | None = None
    ranks: str = ""
    """The ranks of the equal findings that were merged into this one."""
    nodes: list[str] | None = None
    not_measured: bool = False
    """It says that a part of the check was not measured: the check is a skip, if it is nothing worse."""
    see: list[str] | None = None
    """Of its code, from the judge until the report is built; not in a report."""
    cleared: str = ""

    @property
    def counts(self) -> bool:
        """Whether it counts for status, verdict and nodes: a waived finding is only shown."""
        return self.waived is None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name in _ALWAYS or value not in ("", None, False)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Reported":
        """Ignores fields that a newer preflight has added, and gives a code its name of today. Raises KeyError and
        TypeError if `data` is not a finding."""
        known = {name: data[name] for name in _KINDS if name in _ALWAYS or name in data}
        for name, value in known.items():
            if not isinstance(value, _KINDS[name]):
                raise TypeError(f"{name} of a finding is {value!r}")
        return Reported(**{**known, "code": renamed_codes.current(known["code"])})


RUN = "preflight.run"
"""The id of findings that belong to no check: ranks that never came, the store, interruptions."""
RUN_SLUGS = {
    "no_process": "A limit on a node keeps a process or a thread from being started, or a file from being opened.",
    "deadline": "Checks were left out because the run's deadline left no time for them.",
    "stalled": "A supervisor stood still (stopped, or starved of CPU), so the others gave up on it.",
    "lost": "A rank never joined the run, or stopped responding.",
    "store_lost": "The store over which the ranks communicate could not be started or reached, or does not answer.",
    "foreign_writer": "Something that is no rank of the run writes into its store.",
    "rendezvous": "MASTER_ADDR does not resolve or is not rank 0's node, or another process or job is using "
    "MASTER_PORT.",
    "interrupted": "A signal or the launcher's death ended the run before its verdict.",
    "launch": "A process was started with environment variables that keep it from joining.",
    "backend": "The torch on rank 0's node cannot use the GPUs there.",
    "torch": "torch cannot be imported on a node.",
    "baseline": "Nothing, or not all, was compared with --baseline: that run had another backend or number of ranks, "
    "some of its facts cannot be used, or the history of --baseline auto cannot be read.",
    "slower_than_history": "A check's speeds are below those of the last sound runs of its kind (--baseline auto).",
    "compared_with_history": "The runs that --baseline auto compared this one with.",
    "compared_with_profile": "The profile (--profile) that the nodes were compared with, and how many values.",
    "profile_gpus": "A node's number of GPUs differs from that of its kind in the profile (--profile).",
    "profile_missing": "A node lacks a network card or an HCA that its kind in the profile has.",
    "profile_differs": "A value of a node differs from its kind in the profile: a version, a link, a limit.",
    "profile_kind": "No kind in the profile fits a node.",
    "fault": "A bug in preflight itself.",
}
"""All codes of `preflight.run`."""
OWN_SLUGS = {
    "no_process": "A limit on the node kept it from starting a process or a thread, or from opening a file.",
    "timed_out": "It did not end within its deadline, and was killed.",
    "crashed": "Its process ended while it measured.",
    "lost": "The rank stopped responding.",
    "raised": "It raised an exception.",
    "bad_facts": "What `measure` returned is not JSON, holds NaN or is too large.",
    "desync": "A rank skipped a collective that the others entered, or entered a different one.",
}
"""The engine's codes, under every check."""
