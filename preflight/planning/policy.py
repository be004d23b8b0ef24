"""What the users have decided about findings: severities of their own, and waivers with an end and a reason."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from preflight.core.job import Job


def counts(finding: Mapping[str, Any]) -> bool:
    """Whether it counts for status, verdict and nodes: what is waived is only shown."""
    return "waived" not in finding


@dataclass(frozen=True)
class Waiver:
    """A finding that may be for a while: it is shown and counted, and stands in nobody's way."""

    code: str
    until: str
    """The last day on which it holds (UTC), as 2026-12-31."""
    reason: str
    node: str = ""
    """"" is any node, and findings that name none."""

    def covers(self, finding: Mapping[str, Any], job: Job) -> bool:
        """Whether it is about this finding, on whatever day."""
        where = finding["where"]
        node = where.get("node") or (job.node_of(where["rank"]).node if "rank" in where else "")
        return bool(self.code == finding["code"] and self.node in ("", node))


@dataclass(frozen=True)
class Policy:
    """Applied to every finding before it counts. An error is never touched: what was not measured is not known."""

    severities: Mapping[str, str] = field(default_factory=dict)
    """fail, warn or info by code."""
    waivers: tuple[Waiver, ...] = ()
    today: str = field(default_factory=lambda: time.strftime("%Y-%m-%d", time.gmtime()))
    """UTC, as 2026-01-31."""

    @property
    def codes(self) -> list[str]:
        """All that it speaks of."""
        return [*self.severities, *(waiver.code for waiver in self.waivers)]

    def applied(self, findings: Iterable[dict[str, Any]], job: Job) -> list[dict[str, Any]]:
        """The findings with their severities (`severity_was`: the check's own); those under a waiver have `waived`,
        or `waiver_ended` after its last day, with its end and its reason."""
        return [self._applied_to(finding, job) for finding in findings]

    def _applied_to(self, finding: dict[str, Any], job: Job) -> dict[str, Any]:
        if finding["severity"] == "error":
            return finding
        ours = {**finding, "severity": self.severities.get(finding["code"], finding["severity"])}
        if ours["severity"] != finding["severity"]:
            ours["severity_was"] = finding["severity"]
        waivers = [waiver for waiver in self.waivers if waiver.covers(finding, job)]
        if not waivers or ours["severity"] == "info":
            return ours
        last = max(waivers, key=lambda waiver: waiver.until)
        key = "waived" if self.today <= last.until else "waiver_ended"
        return {**ours, key: {"until": last.until, "reason": last.reason}}

    def to_json(self) -> dict[str, Any]:
        """As the report keeps it, so that its facts are judged anew by the same rules."""
        return {"severities": dict(self.severities), "waivers": [asdict(waiver) for waiver in self.waivers]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Policy":
        """The reverse of `to_json`, for today."""
        return Policy(data["severities"], tuple(Waiver(**waiver) for waiver in data["waivers"]))
