"""Makes the entry of a run (run_entry.py) from its report and facts, with what its checks record."""

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from preflight.check import Scope
from preflight.core import rank_ranges, record
from preflight.core.exceptions import in_one_line
from preflight.core.facts import FactsStore
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.core.rank_ranges import count
from preflight.core.record import Figure, Trait
from preflight.core.words import some
from preflight.history.run_entry import KeptFigure, KeptFinding, KeptTrait, Of, RunEntry
from preflight.planning import registry
from preflight.planning.registry import Check, Source
from preflight.results.report import CheckEntry, Report
from preflight.results.report_nodes import blamed_nodes


class Conclusion(TypedDict):
    """What the last findings change."""

    verdict: str
    checks: Mapping[str, str]
    findings: Sequence[KeptFinding]


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

    def kept(self, of: Of) -> KeptFigure:
        every = [value for values in self.values.values() for value in values]
        units = {unit: statistics.median(values) for unit, values in self.values.items()}
        return KeptFigure(
            *of, statistics.median(every), spread(every), len(every), self.of_job, self.less_is_better, self.least,
            dict(self.labels), {} if self.of_job else units,
        )  # fmt: skip


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
        for node, measured in list(_recorded_by(check, job, book)):
            self.add(check, measured, node)

    def figures(self) -> list[KeptFigure]:
        return [speed.kept(of) for of, speed in self.speeds.items()]

    def kept_traits(self) -> list[KeptTrait]:
        return [KeptTrait(*of, {unit: " or ".join(sorted(values)) for unit, values in units.items()})
                for of, units in self.traits.items()]  # fmt: skip

    def add(self, check: Check, measured: Trait | Figure, node: str) -> None:
        unit = measured.gpu or node
        if measured.gpu:
            self.places[measured.gpu] = node
        if isinstance(measured, Trait):
            self.traits.setdefault((measured.kind, check.id, measured.name), {}).setdefault(unit, set()).add(
                measured.value
            )
            return
        speed = self.speeds.setdefault((check.id, measured.name, measured.unit), Speed())
        speed.of_job, speed.labels = check.plan.scope is Scope.WORLD, measured.labels
        speed.less_is_better, speed.least = measured.less_is_better, measured.least
        speed.values.setdefault(unit, []).append(measured.value)


def spread(values: Iterable[float]) -> float:
    """The standard deviation of most of them, as a share of their median."""
    listed = list(values)
    middle = statistics.median(listed)
    return MAD * statistics.median(abs(value - middle) for value in listed) / abs(middle) if middle else 0.0


def entry(report: Report, book: FactsStore, sources: Mapping[str, Source]) -> RunEntry:
    """What `--history` keeps, and what `preflight diff` compares. Imports the checks that have facts."""
    job, found = report.job, Records()
    for check in report.checks:
        if check.check in book.checks():
            _add(found, check, job, book, sources)
    return RunEntry(
        report.run, report.started, f"{job.launcher}, {_size(job)}", ", ".join([_size(job), *_models(found)]),
        job.backend, **_conclusion(report), nodes=[node.node for node in job.nodes],
        machines={node.node: node.machine for node in job.nodes if node.machine}, places=found.places,
        traits=found.kept_traits(), figures=found.figures(), absent=found.absent, left_out=found.left_out,
    )  # fmt: skip


def recorded(check: Check, job: Job, book: FactsStore) -> tuple[list[KeptFigure], dict[str, str]]:
    """(the figures of one check, the node of each GPU). Raises what its record() raises."""
    found = Records()
    found.add_all(check, job, book)
    return found.figures(), found.places


def _conclusion(report: Report) -> Conclusion:
    return {
        "verdict": report.verdict,
        "checks": {check.check: check.status for check in report.checks},
        "findings": [_kept(finding, report.job) for finding in report.findings if finding.severity in COUNTED],
    }


def concluded(early: RunEntry, report: Report) -> RunEntry:
    """The entry of the same run, made before `report` had its last findings. The facts are read once."""
    return replace(early, **_conclusion(report))


def _size(job: Job) -> str:
    return f"{job.backend}, {count(job.world_size, 'rank')} on {count(len(job.nodes), 'node')}"


def _models(found: Records) -> list[str]:
    """The models of the GPUs, or of the CPU if there is none."""
    for name in ("model", "device"):
        values = [units.values() for (kind, _, own), units in found.traits.items() if (kind, own) == ("hardware", name)]
        if values:
            return [some(sorted({value for sets in values[0] for value in sets}))]
    return []


def _kept(finding: Reported, job: Job) -> KeptFinding:
    return KeptFinding(
        finding.code, finding.severity, sorted(blamed_nodes(finding, job) - {""}), str(finding.where.get("uuid", "")),
        finding.message[:300], finding.counts,
    )  # fmt: skip


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


def _recorded_by(check: Check, job: Job, book: FactsStore) -> Iterator[tuple[str, Trait | Figure]]:
    """Yields (node, what a rank has recorded); calls record() once for ranks with equal facts."""
    record_of = getattr(check.module, "record", None)
    for ranks, text in book.groups(check.id) if record_of else ():
        each = [job.node_of(rank).node for rank in ranks]
        nodes = dict.fromkeys(each)
        for measured in record_of(json.loads(text), job):  # type: ignore[misc]
            if (
                not isinstance(measured, Trait | Figure)
                or getattr(measured, "kind", record.KINDS[0]) not in record.KINDS
            ):
                raise TypeError(f"it yielded {measured!r}, expected a Trait or a Figure")
            yield from ((node, measured) for node in (nodes if isinstance(measured, Trait) else each))
