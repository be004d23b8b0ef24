"""What is kept of a run: who took part, how its checks ended, what they found, what nodes had, how fast it was."""

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from preflight.check import Scope
from preflight.core import rank_ranges, record
from preflight.core.exceptions import in_one_line
from preflight.core.facts import FactsStore
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.core.rank_ranges import count
from preflight.core.record import Figure, Trait
from preflight.core.words import some
from preflight.planning import registry
from preflight.planning.registry import Check, Source
from preflight.results.report import CheckEntry, Report
from preflight.results.report_nodes import blamed_nodes

Of = tuple[str, str, str]
"""Kind, check and name of a trait; check, name and unit of measure of a figure."""
COUNTED = ("fail", "error", "warn")
MAD = 1.4826
"""Standard deviation of normal noise per median absolute deviation (Rousseeuw and Croux, 1993)."""


@dataclass
class Speed:
    """A figure from all that measured it."""

    values: dict[str, list[float]] = field(default_factory=dict)
    """By node, or by the UUID of the GPU."""
    of_job: bool = True
    """Whether it is a figure of all ranks together, which depends on their number."""
    less_is_better: bool = False
    least: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        every = [value for values in self.values.values() for value in values]
        units = {unit: statistics.median(values) for unit, values in self.values.items()}
        return {
            "value": statistics.median(every), "spread": spread(every), "n": len(every), "of_job": self.of_job,
            "less_is_better": self.less_is_better, "least": self.least, "labels": dict(self.labels),
            "units": {} if self.of_job else units,
        }  # fmt: skip


@dataclass
class Records:
    """What the checks of a run record to compare it with other runs."""

    traits: dict[Of, dict[str, set[str]]] = field(default_factory=dict)
    """The values by node, or by the UUID of the GPU: ranks of a node may differ."""
    speeds: dict[Of, Speed] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    """The node of each GPU."""
    absent: dict[str, list[str]] = field(default_factory=dict)
    """The nodes that have not measured a check, by check whose facts were read: their values are unknown."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Checks whose facts could not be used, and why."""

    def add_all(self, check: Check, job: Job, book: FactsStore) -> None:
        """Adds all that the check has recorded, or nothing: raises what its record() raises."""
        for node, told in list(_told(check, job, book)):
            self.add(check, told, node)

    def figures(self) -> list[list[Any]]:
        """As JSON."""
        return [[*of, speed.to_json()] for of, speed in self.speeds.items()]

    def add(self, check: Check, told: Trait | Figure, node: str) -> None:
        unit = told.gpu or node
        if told.gpu:
            self.places[told.gpu] = node
        if isinstance(told, Trait):
            self.traits.setdefault((told.kind, check.id, told.name), {}).setdefault(unit, set()).add(told.value)
            return
        speed = self.speeds.setdefault((check.id, told.name, told.unit), Speed())
        speed.of_job, speed.labels = check.plan.scope is Scope.WORLD, told.labels
        speed.less_is_better, speed.least = told.less_is_better, told.least
        speed.values.setdefault(unit, []).append(told.value)


def spread(values: Iterable[float]) -> float:
    """The standard deviation of most of them, as a share of their median."""
    listed = list(values)
    middle = statistics.median(listed)
    return MAD * statistics.median(abs(value - middle) for value in listed) / abs(middle) if middle else 0.0


def entry(report: Report, book: FactsStore, sources: Mapping[str, Source]) -> dict[str, Any]:
    """As JSON: what `--history` keeps, and what `preflight diff` compares. Imports the checks that have facts."""
    job, found = report.job, Records()
    for check in report.checks:
        if check.check in book.checks():
            _add(found, check, job, book, sources)
    return {
        **_concluded(report),
        "run": report.run,
        "started": report.started,
        "job": f"{job.launcher}, {_size(job)}",
        "kind": ", ".join([_size(job), *_models(found)]),
        "backend": job.backend,
        "nodes": [node.node for node in job.nodes],
        "machines": {node.node: node.machine for node in job.nodes if node.machine},
        "places": found.places,
        "traits": [[*of, {unit: " or ".join(sorted(values)) for unit, values in units.items()}]
                   for of, units in found.traits.items()],
        "figures": found.figures(),
        "absent": found.absent,
        "left_out": found.left_out,
    }  # fmt: skip


def recorded(check: Check, job: Job, book: FactsStore) -> tuple[list[list[Any]], dict[str, str]]:
    """(the `figures` of one check, the node of each GPU). Raises what its record() raises."""
    found = Records()
    found.add_all(check, job, book)
    return found.figures(), found.places


def _concluded(report: Report) -> dict[str, Any]:
    return {
        "verdict": report.verdict,
        "checks": {check.check: check.status for check in report.checks},
        "findings": [_kept(finding, report.job) for finding in report.findings if finding.severity in COUNTED],
    }


def concluded(made: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The entry of the same run, made before `report` had its last findings. The facts are read once."""
    return {**made, **_concluded(report)}


def _size(job: Job) -> str:
    return f"{job.backend}, {count(job.world_size, 'rank')} on {count(len(job.nodes), 'node')}"


def _models(found: Records) -> list[str]:
    """The models of the GPUs, or of the CPU if there is none."""
    for name in ("model", "device"):
        values = [units.values() for (kind, _, own), units in found.traits.items() if (kind, own) == ("hardware", name)]
        if values:
            return [some(sorted({value for sets in values[0] for value in sets}))]
    return []


def _kept(finding: Reported, job: Job) -> dict[str, Any]:
    where = finding.where
    return {
        "code": finding.code, "severity": finding.severity, "nodes": sorted(blamed_nodes(finding, job) - {""}),
        "gpu": str(where.get("uuid", "")), "message": finding.message[:300], "counts": finding.counts,
    }  # fmt: skip


def _add(found: Records, check: CheckEntry, job: Job, book: FactsStore, sources: Mapping[str, Source]) -> None:
    """Adds what one check has recorded, or why it cannot: facts of another version, an error in a plugin."""
    id_ = check.check
    if id_ not in sources:
        found.left_out[id_] = "its plugin is not here: give it with --plugin"
        return
    if nowhere := [rank for rank in book.ranks(id_) if not job.node_of(rank).node]:
        found.left_out[id_] = f"it has facts of {rank_ranges.ranks(nowhere)}, which no node of the report has"
        return
    try:
        loaded = registry.load(sources[id_])
        if loaded.plan.facts_version != check.facts_version:
            versions = f"{check.facts_version}, expected {loaded.plan.facts_version}"
            found.left_out[id_] = f"its facts are of version {versions}"
            return
        found.add_all(loaded, job, book)
        measured = {job.node_of(rank).node for rank in book.ranks(id_)}
        found.absent[id_] = [node.node for node in job.nodes if node.node not in measured]
    except Exception as error:
        found.left_out[id_] = f"record() raised {in_one_line(error)}"


def _told(check: Check, job: Job, book: FactsStore) -> Iterator[tuple[str, Trait | Figure]]:
    """Yields (node, what its ranks have recorded); calls record() once for ranks with equal facts."""
    tell = getattr(check.module, "record", None)
    for ranks, text in book.groups(check.id) if tell else ():
        each = [job.node_of(rank).node for rank in ranks]
        nodes = dict.fromkeys(each)
        for told in tell(json.loads(text), job):  # type: ignore[misc]
            if not isinstance(told, Trait | Figure) or getattr(told, "kind", record.KINDS[0]) not in record.KINDS:
                raise TypeError(f"it yielded {told!r}, expected a Trait or a Figure")
            yield from ((node, told) for node in (nodes if isinstance(told, Trait) else each))
