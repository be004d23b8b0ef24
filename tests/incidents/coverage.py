"""Reads tables and incidents, and measures what preflight says of each."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from preflight.core.finding import Reported
from preflight.explain.command import explain_paths

HERE = Path(__file__).parent
WHEN = ("before", "restart", "after")


@dataclass(frozen=True)
class Incident:
    name: str
    what: str
    before: str = ""
    """The row of the fault table in which a run before the job's first start finds it; ""."""
    restart: str = ""
    """The same in front of the job's restart."""
    code: str = ""
    """Of explain's first finding; "" where it says nothing of it."""
    names: Mapping[str, object] = field(default_factory=dict)
    """What that finding's `where` holds."""
    logs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableRow:
    share: float
    """Percent of the table."""
    what: str
    incidents: Sequence[Incident]


@dataclass(frozen=True)
class Table:
    name: str
    what: str
    source: str
    rows: Sequence[TableRow]

    def parts(self) -> Iterator[tuple[float, Incident]]:
        """(share of all rows of the table, incident)."""
        whole = sum(row.share for row in self.rows)
        for row in self.rows:
            for incident in row.incidents:
                yield row.share / len(row.incidents) / whole, incident


def incidents() -> dict[str, Incident]:
    read = tomllib.loads((HERE / "incidents.toml").read_text())
    return {name: Incident(name, **about) for name, about in read.items()}


def tables() -> list[Table]:
    known = incidents()
    read = tomllib.loads((HERE / "tables.toml").read_text())["table"]
    return [
        Table(
            table["name"], table["what"], table["source"],
            [TableRow(row["share"], row["what"], [known[name] for name in row["incidents"]]) for row in table["row"]],
        )
        for table in read
    ]  # fmt: skip


def explained(incident: Incident, folder: Path) -> Reported | None:
    """The first finding of `preflight explain` on the logs that the incident leaves; None without a failure."""
    for name, text in incident.logs.items():
        (folder / name).write_text(text.lstrip("\n"))
    findings = explain_paths([str(folder)]).findings
    return findings[0] if findings and findings[0].severity == "fail" else None


def is_named(incident: Incident, finding: Reported | None) -> bool:
    """Whether it is the right cause, and names whom the logs show, and nobody else."""
    if finding is None or finding.code != f"explain.{incident.code}":
        return False
    places = {name: value for name, value in finding.where.items() if name in ("node", "rank")}
    return incident.names.items() <= finding.where.items() and places.keys() <= incident.names.keys() | {"rank"}


def named(after: Mapping[str, bool]) -> dict[str, set[str]]:
    """When each incident is named. `after`: whether explain names it."""
    return {
        name: {when for when in ("before", "restart") if getattr(each, when)} | ({"after"} if after[name] else set())
        for name, each in incidents().items()
    }


def coverage(table: Table, when: Mapping[str, set[str]]) -> dict[str, float]:
    """The share that is named before, at the restart, after the failure, at any of these, and never."""
    parts = [*table.parts()]
    found = {moment: sum(share for share, each in parts if moment in when[each.name]) for moment in WHEN}
    anywhere = sum(share for share, each in parts if when[each.name])
    return {**found, "any": anywhere, "neither": 1.0 - anywhere}
