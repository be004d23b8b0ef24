"""Compares two runs: what came, went, changed and became slower. Pure: turns two entries into a difference."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from preflight.core.finding import Reported
from preflight.core.record import KINDS
from preflight.history import compare
from preflight.history.compare import FigureChange
from preflight.history.difference import (
    ComparedFinding,
    FoundInBoth,
    MemberChanges,
    RunDifference,
    SlowUnit,
    SpeedChange,
    StatusChange,
    TraitChange,
)
from preflight.history.reference import OneRun
from preflight.history.run_entry import KeptTrait, RunEntry
from preflight.results.report import Report
from preflight.results.report_nodes import blamed_nodes

Place = tuple[str, ...]


def difference(old: RunEntry, new: RunEntry, reports: tuple[Report, Report]) -> RunDifference:
    """The difference of two entries and their reports, the earlier one first."""
    return RunDifference(
        old,
        new,
        nodes=_membership(old.nodes, new.nodes),
        gpus=_membership(old.places, new.places),
        moved={gpu: (old.places[gpu], node) for gpu, node in new.places.items() if old.places.get(gpu, node) != node},
        findings=_findings(*reports),
        checks=_statuses(old.checks, new.checks),
        changes=sorted(_changes(old, new), key=lambda change: KINDS.index(change.kind)),
        speeds=sorted(_speeds(old, new), key=lambda speed: speed.ratio),
        not_compared=_not_compared(old, new),
    )


def _membership(old: Iterable[str], new: Iterable[str]) -> MemberChanges:
    before, after = dict.fromkeys(old), dict.fromkeys(new)
    return MemberChanges([name for name in after if name not in before], [name for name in before if name not in after])


# Findings and statuses


def _findings(old: Report, new: Report) -> FoundInBoth:
    before, after = _by_culprit(old), _by_culprit(new)
    stayed = [replace(after[key], severity_before=before[key].finding.severity) for key in after if key in before]
    came = [after[key] for key in after if key not in before]
    return FoundInBoth(came, [before[key] for key in before if key not in after], stayed)


def _by_culprit(report: Report) -> dict[Place, ComparedFinding]:
    """The findings by code and culprit; the worst of several with the same culprit. A merged finding counts as one."""
    found: dict[Place, ComparedFinding] = {}
    for finding in report.findings:
        compared = ComparedFinding(finding, sorted(blamed_nodes(finding, report.job) - {""}))
        key = _key(compared)
        if key not in found or compared.weight < found[key].weight:
            found[key] = compared
    return found


def _key(compared: ComparedFinding) -> Place:
    """A key for what was found where. Numbers of GPUs and ranks do not count: they depend on slot and launcher."""
    finding: Reported = compared.finding
    known = {name: str(value) for name, value in finding.where.items() if name not in ("rank", "local_rank", "step")}
    if "uuid" in known:
        known = {"uuid": known["uuid"], "link": known.get("link", "")}
    elif "file" in known:
        known.pop("line", None)
    return (finding.code, *compared.nodes, *(f"{name}={value}" for name, value in sorted(known.items())))


def _statuses(old: Mapping[str, str], new: Mapping[str, str]) -> list[StatusChange]:
    """The checks that reported in only one of the runs: skipped or not run in the other."""
    listed = [StatusChange(check, old.get(check, "not run"), new.get(check, "not run")) for check in {**old, **new}]
    silent = {"skip", "not run"}
    return [
        change
        for change in listed
        if change.old != change.new and {change.old, change.new} & silent and not {change.old, change.new} <= silent
    ]


def _not_compared(old: RunEntry, new: RunEntry) -> dict[str, str]:
    """Why something is not compared, by check or by what it is."""
    of_job = all(any(figure.of_job for figure in entry.figures) for entry in (old, new))
    apart = {"the speed of all ranks together": f"the jobs differ: {old.kind}; {new.kind}"}
    return {**old.left_out, **new.left_out, **(apart if old.kind != new.kind and of_job else {})}


# Traits


def _changes(old: RunEntry, new: RunEntry) -> Iterator[TraitChange]:
    before, after = ({trait.of: trait for trait in entry.traits} for entry in (old, new))
    for of in {**before, **after}:
        kind, check, name = of
        if not all(_has_measured(entry, check) for entry in (old, new)):
            continue
        pairs: dict[tuple[str, str], list[str]] = {}
        for unit, was, now in _values(before.get(of), after.get(of), old, new, check):
            pairs.setdefault((was, now), []).append(unit)
        for (was, now), units in pairs.items():
            nodes = sorted({new.places.get(unit, unit) for unit in units})
            yield TraitChange(kind, check, name, was, now, nodes, [unit for unit in units if unit in new.places])


def _has_measured(entry: RunEntry, check: str) -> bool:
    return check in entry.absent and entry.checks[check] != "skip"


def _values(
    before: KeptTrait | None, after: KeptTrait | None, old: RunEntry, new: RunEntry, check: str
) -> Iterator[tuple[str, str, str]]:
    """Yields (node or GPU, its value then, its value now) for each whose value changed; for one that was not in the
    earlier run, if the value differs from all that were. "" means not there."""
    then, now = (trait.values if trait else {} for trait in (before, after))
    known = _units(old, check, then)
    usual = {then.get(unit, "") for unit in known}
    for unit in sorted(_units(new, check, now)):
        was, value = then.get(unit, ""), now.get(unit, "")
        if unit in known and was != value:
            yield unit, was, value
        elif unit not in known and usual and value not in usual:
            yield unit, " or ".join(sorted(each or "not there" for each in usual)), value


def _units(entry: RunEntry, check: str, values: Mapping[str, str]) -> set[str]:
    """The units for which the value, or that there is none, is known: nodes that measured, or GPUs that report it."""
    if any(unit in entry.places for unit in values):
        return set(values)
    return set(entry.nodes) - set(entry.absent[check])


# Speeds


def _speeds(old: RunEntry, new: RunEntry) -> Iterator[SpeedChange]:
    before, same_job = OneRun(old.figures), old.kind == new.kind
    for figure in new.figures:
        overall = compare.compared(figure, "", before)
        if overall and (same_job or not figure.of_job):
            each = [compare.compared(figure, unit, before) for unit in figure.units]
            yield _speed(overall, [unit for unit in each if unit and unit.is_slower], new.places)


def _speed(overall: FigureChange, slow: Sequence[FigureChange], places: Mapping[str, str]) -> SpeedChange:
    is_better = overall.share * overall.least > 1
    return SpeedChange(
        *overall.of, overall.usual.value, overall.value,
        ratio=round(min(each.share for each in (overall, *slow)), 4), noise=round(overall.noise, 4),
        least=round(overall.least, 4),
        verdict="worse" if slow or overall.is_slower else "better" if is_better else "same",
        slow=[SlowUnit(each.unit, places.get(each.unit, each.unit), round(each.share, 4))
              for each in sorted(slow, key=lambda each: each.share)],
    )  # fmt: skip
