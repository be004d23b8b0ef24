"""The records of what differs between two runs, and their form as JSON: what `preflight diff --json` writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from preflight.core.finding import Reported
from preflight.history.run_entry import RunEntry
from preflight.results.record_fields import SEVERITIES

SCHEMA = 1
WAIVED = len(SEVERITIES)


def weight(severity: str, *, waived: bool) -> int:
    """0 is the worst."""
    return WAIVED if waived else SEVERITIES.index(severity)


@dataclass(frozen=True)
class ComparedFinding:
    finding: Reported
    nodes: Sequence[str]
    """The nodes that it blames."""
    severity_before: str | None = None
    """Of a finding that both runs have."""

    @property
    def weight(self) -> int:
        return weight(self.finding.severity, waived=self.finding.waived is not None)

    @property
    def has_grown(self) -> bool:
        before = self.severity_before or self.finding.severity
        return self.weight < weight(before, waived=self.finding.waived is not None)

    def to_json(self) -> dict[str, object]:
        before = {} if self.severity_before is None else {"severity_before": self.severity_before}
        return {**self.finding.to_json(), "nodes": list(self.nodes), **before}


@dataclass(frozen=True)
class FoundInBoth:
    """The findings of two runs."""

    came: Sequence[ComparedFinding]
    went: Sequence[ComparedFinding]
    stayed: Sequence[ComparedFinding]
    """As the later run has them."""

    @property
    def worse(self) -> list[ComparedFinding]:
        """Those that are new, or more severe than before; without infos and waived ones."""
        grown = [each for each in self.stayed if each.has_grown]
        return [each for each in (*self.came, *grown) if each.weight < SEVERITIES.index("info")]


@dataclass(frozen=True)
class MemberChanges:
    """The nodes or GPUs of two runs."""

    came: Sequence[str]
    went: Sequence[str]


@dataclass(frozen=True)
class StatusChange:
    """A check that reported in only one of the runs."""

    check: str
    old: str
    new: str


@dataclass(frozen=True)
class TraitChange:
    kind: str
    check: str
    name: str
    old: str
    """ "": not there."""
    new: str
    nodes: Sequence[str]
    gpus: Sequence[str]

    def shown(self, value: str) -> str:
        return value or ("not set" if self.kind == "variable" else "not there")


@dataclass(frozen=True)
class SlowUnit:
    unit: str
    """The node, or the UUID of the GPU."""
    node: str
    ratio: float

    @property
    def label(self) -> str:
        return self.node if self.unit == self.node else f"{self.node} {self.unit}"


@dataclass(frozen=True)
class SpeedChange:
    check: str
    name: str
    unit: str
    """Of measure."""
    old: float
    new: float
    ratio: float
    """The least share that is left of the earlier value, of the whole or of a node or GPU."""
    noise: float
    least: float
    verdict: str
    """ "worse", "better" or "same"."""
    slow: Sequence[SlowUnit]

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "slow": [vars(unit) for unit in self.slow]}


@dataclass(frozen=True)
class RunDifference:
    """Of two runs."""

    old: RunEntry
    new: RunEntry
    nodes: MemberChanges
    gpus: MemberChanges
    moved: Mapping[str, tuple[str, str]]
    """(the node then, the node now) of each GPU that is in another node."""
    findings: FoundInBoth
    checks: Sequence[StatusChange]
    changes: Sequence[TraitChange]
    speeds: Sequence[SpeedChange]
    """The one that fell most first."""
    not_compared: Mapping[str, str]
    """Why, by check or by what it is."""

    @property
    def slower(self) -> list[SpeedChange]:
        return [speed for speed in self.speeds if speed.verdict == "worse"]

    @property
    def is_worse(self) -> bool:
        return bool(self.findings.worse or self.slower)

    def to_json(self) -> dict[str, Any]:
        groups = {"came": self.findings.came, "went": self.findings.went, "stayed": self.findings.stayed}
        return {
            "schema": SCHEMA,
            "old": _about(self.old),
            "new": _about(self.new),
            "worse": self.is_worse,
            "nodes": vars(self.nodes),
            "gpus": {**vars(self.gpus), "moved": self.moved},
            "findings": {name: [each.to_json() for each in group] for name, group in groups.items()},
            "checks": [vars(change) for change in self.checks],
            "changes": [vars(change) for change in self.changes],
            "speeds": [speed.to_json() for speed in self.speeds],
            "not_compared": self.not_compared,
        }


def _about(entry: RunEntry) -> dict[str, str]:
    return {"run": entry.run, "started": entry.started, "verdict": entry.verdict, "job": entry.job}
