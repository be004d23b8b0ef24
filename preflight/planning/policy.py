"""The user's decisions about findings: changed severities, and waivers with an end and a reason."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from preflight.core import renamed_codes
from preflight.core.finding import Reported
from preflight.core.job import Job


@dataclass(frozen=True)
class Waiver:
    """A finding that is accepted for a while: it is shown and counted, but blocks nothing."""

    code: str
    until: str
    """The last day on which it applies (UTC), like 2026-12-31."""
    reason: str
    node: str = ""
    """"" covers any node, and findings that name none."""

    def covers(self, finding: Reported, job: Job) -> bool:
        """Whether it is about this finding, regardless of the day."""
        where = finding.where
        node = where.get("node") or (job.node_of(where["rank"]).node if "rank" in where else "")
        return self.code == finding.code and self.node in ("", node)


@dataclass(frozen=True)
class Policy:
    """Applied to every finding before it counts. An error is never changed: what was not measured is unknown."""

    severities: Mapping[str, str] = field(default_factory=dict)
    """fail, warn or info by code."""
    waivers: tuple[Waiver, ...] = ()
    today: str = field(default_factory=lambda: time.strftime("%Y-%m-%d", time.gmtime()))
    """UTC, like 2026-01-31."""

    @property
    def codes(self) -> list[str]:
        return [*self.severities, *(waiver.code for waiver in self.waivers)]

    def applied(self, findings: Iterable[Reported], job: Job) -> list[Reported]:
        """The findings with this policy's severities, and with the waiver that covers them or that has expired. What
        another policy changed is undone first."""
        return [self._applied_to(finding, job) for finding in findings]

    def _applied_to(self, finding: Reported, job: Job) -> Reported:
        if finding.severity == "error":
            return finding
        own = finding.severity_was or finding.severity
        severity = self.severities.get(finding.code, own)
        severity_was = own if severity != own else ""
        bare = replace(finding, severity=severity, severity_was=severity_was, waived=None, waiver_ended=None)
        waivers = [waiver for waiver in self.waivers if waiver.covers(finding, job)]
        if not waivers or severity == "info":
            return bare
        last = max(waivers, key=lambda waiver: waiver.until)
        about = {"until": last.until, "reason": last.reason}
        return replace(bare, waived=about) if self.today <= last.until else replace(bare, waiver_ended=about)

    def to_json(self) -> dict[str, object]:
        """For the report, so that its facts can be judged again by the same rules."""
        return {"severities": dict(self.severities), "waivers": [asdict(waiver) for waiver in self.waivers]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Policy":
        """The reverse of `to_json`, for today, with today's names of the codes."""
        severities = {renamed_codes.current(code): severity for code, severity in data["severities"].items()}
        waivers = (Waiver(**waiver) for waiver in data["waivers"])
        return Policy(severities, tuple(replace(each, code=renamed_codes.current(each.code)) for each in waivers))
