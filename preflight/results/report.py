"""The report: the record from which the screen, the files and the exit code are made. See report.schema.json."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.core.outcome import Outcome
from preflight.planning.policy import Policy
from preflight.results import plot_fields, record_fields
from preflight.results.fields import Fields, refuse

SCHEMA = 1
STATUSES = ("fail", "error", "warn", "skip", "pass")
"""Of a check, the worst first."""
EXIT_CODES = {"pass": 0, "warn": 0, "fail": 1, "error": 3}
"""By verdict."""
ALL_EXIT_CODES = (0, 1, 2, 3)
_STARTED = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
_CHECK_ID = re.compile(r"^[\w-]+\.[\w.-]+$")
_NOT_OF_AN_OUTCOME = {"facts_hash", "measures_no_more"}


@dataclass(frozen=True)
class RankSeconds:
    """How long a check took."""

    median: float = 0.0
    max: float = 0.0
    rank: int | None = None
    """The slowest; None if no rank measured."""

    @staticmethod
    def from_json(data: Fields) -> "RankSeconds":
        return RankSeconds(data.number("median"), data.number("max"), data.integer_or_none("rank"))


@dataclass(frozen=True)
class OutcomeEntry:
    """How a check ended on ranks of one node that ended alike."""

    ranks: str
    node: str
    """"" if it is not known."""
    outcome: Outcome
    """With the longest of their seconds, and the stack and logs of the first."""

    def to_json(self) -> dict[str, object]:
        kept = {name: value for name, value in vars(self.outcome).items() if name not in _NOT_OF_AN_OUTCOME}
        return {**kept, "ranks": self.ranks, "node": self.node}

    @staticmethod
    def from_json(data: Fields) -> "OutcomeEntry":
        return OutcomeEntry(data.ranks_text("ranks"), data.text("node"), record_fields.outcome(data))


@dataclass(frozen=True)
class RankFacts:
    """The facts of ranks that have equal ones."""

    ranks: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class CheckEntry:
    """A check's result."""

    check: str
    title: str
    status: str
    """One of STATUSES."""
    facts_version: int
    seconds: RankSeconds
    summary: str
    skipped: str | None
    """Why ranks, or parts of the check, were not measured; a text wherever the status is skip."""
    picture: Sequence[str] = ()
    aside: bool = False
    plots: Sequence[Mapping[str, Any]] = ()
    """As JSON of core/plots.py."""
    began_s: float | None = None
    """Seconds from the run's start; None in the report of an older preflight."""
    findings: Sequence[Reported] = ()
    outcomes: Sequence[OutcomeEntry] = ()
    facts: Sequence[RankFacts] | None = None
    """With `--facts` only."""

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "title": self.title,
            "status": self.status,
            "facts_version": self.facts_version,
            "seconds": asdict(self.seconds),
            "summary": self.summary,
            "skipped": self.skipped,
            **({"picture": [*self.picture]} if self.picture else {}),
            **({"aside": True} if self.aside else {}),
            **({"plots": [*self.plots]} if self.plots else {}),
            **({"began_s": self.began_s} if self.began_s is not None else {}),
            "findings": [finding.to_json() for finding in self.findings],
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
            **({"facts": [vars(facts) for facts in self.facts]} if self.facts is not None else {}),
        }

    @staticmethod
    def from_json(data: Fields) -> "CheckEntry":
        return CheckEntry(
            check=data.text("check", _CHECK_ID),
            title=data.text("title"),
            status=(status := data.choice("status", STATUSES)),
            facts_version=data.integer("facts_version"),
            seconds=RankSeconds.from_json(data.object("seconds")),
            summary=data.text("summary"),
            skipped=data.text("skipped") if status == "skip" else data.text_or_none("skipped"),
            picture=data.texts("picture") if "picture" in data else [],
            aside=data.true("aside"),
            plots=data.list_of("plots", plot_fields.plot) if "plots" in data else (),
            began_s=data.number("began_s", 0) if "began_s" in data else None,
            findings=[record_fields.finding(finding) for finding in data.objects("findings")],
            outcomes=[OutcomeEntry.from_json(outcome) for outcome in data.objects("outcomes")],
            facts=data.list_of("facts", _rank_facts) if "facts" in data else None,
        )


def _rank_facts(value: object, place: str) -> RankFacts:
    data = Fields(value, place)
    return RankFacts(data.ranks_text("ranks"), data.any_object("facts"))


@dataclass(frozen=True)
class UnreadFile:
    """A file that `preflight explain` has not read."""

    file: str
    why: str


@dataclass(frozen=True)
class RankSpan:
    """When a rank appeared in the logs first and last, in seconds on one clock."""

    rank: int
    first: float
    last: float


@dataclass(frozen=True)
class Explained:
    """What `preflight explain` has read."""

    files: int
    lines: int
    bytes: int
    unread: Sequence[UnreadFile]
    ranks: Sequence[RankSpan] = ()

    @staticmethod
    def from_json(data: Fields) -> "Explained":
        spans = data.objects("ranks") if "ranks" in data else ()
        unread = [UnreadFile(file.text("file"), file.text("why")) for file in data.objects("unread")]
        return Explained(
            data.integer("files"), data.integer("lines"), data.integer("bytes"), unread,
            [RankSpan(span.integer("rank"), span.number("first"), span.number("last")) for span in spans],
        )  # fmt: skip


@dataclass(frozen=True)
class SavedCheckpoint:
    """What `preflight checkpoint` has read."""

    path: str
    kind: str
    """"" if it is not known."""
    files: int
    bytes: int
    ranks: int | None
    """That have written it; None if it does not say."""
    tensors: int
    elements: int
    others: int
    """Values that are no tensors."""
    overview: Sequence[str]

    @staticmethod
    def from_json(data: Fields) -> "SavedCheckpoint":
        return SavedCheckpoint(
            data.text("path"), data.text("kind"), data.integer("files"), data.integer("bytes"),
            data.integer_or_none("ranks"), data.integer("tensors"), data.integer("elements"), data.integer("others"),
            data.texts("overview"),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Report:
    """A run, and what it found."""

    preflight: str
    """The version that has written it."""
    run: str
    """An id."""
    started: str
    """UTC, like 2026-01-31T12:00:00Z."""
    seconds: float
    verdict: str
    """pass, warn, fail or error."""
    exit_code: int
    command: Sequence[str]
    options: Mapping[str, str]
    """Of `--set`."""
    policy: Policy = field(default_factory=Policy)
    strict: bool = False
    job: Job
    checks: Sequence[CheckEntry]
    explained: Explained | None = None
    checkpoint: SavedCheckpoint | None = None

    @property
    def findings(self) -> list[Reported]:
        """Of all checks, in their order."""
        return [finding for check in self.checks for finding in check.findings]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "preflight": self.preflight,
            "run": self.run,
            "started": self.started,
            "seconds": self.seconds,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "command": [*self.command],
            "options": dict(self.options),
            "policy": {**self.policy.to_json(), "strict": self.strict},
            "job": self.job.to_json(),
            "checks": [check.to_json() for check in self.checks],
            **({"explained": asdict(self.explained)} if self.explained else {}),
            **({"checkpoint": asdict(self.checkpoint)} if self.checkpoint else {}),
        }

    @staticmethod
    def from_json(value: object) -> "Report":
        """Ignores members that a newer preflight has added. Raises MalformedReport."""
        data = Fields(value)
        data.choice("schema", (SCHEMA,))
        command = data.texts("command")
        policy = data.object("policy") if "policy" in data else None
        return Report(
            preflight=data.text("preflight"),
            run=data.text("run"),
            started=_started(data),
            seconds=data.number("seconds", 0),
            verdict=data.choice("verdict", tuple(EXIT_CODES)),
            exit_code=data.choice("exit_code", ALL_EXIT_CODES),
            command=command,
            options=data.texts_by_name("options"),
            policy=record_fields.policy(policy) if policy else Policy(),
            strict=policy.flag("strict") if policy and "strict" in policy else not policy and "--strict" in command,
            job=record_fields.job(data.object("job")),
            checks=[CheckEntry.from_json(check) for check in data.objects("checks")],
            explained=Explained.from_json(data.object("explained")) if "explained" in data else None,
            checkpoint=SavedCheckpoint.from_json(data.object("checkpoint")) if "checkpoint" in data else None,
        )


def _started(data: Fields) -> str:
    started = data.text("started", _STARTED)
    try:
        time.strptime(started, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        refuse(started, data.place_of("started"), "a time")
    return started
