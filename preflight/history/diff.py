"""Compares two runs: what came, went, changed and became slower. Pure: turns two entries into a difference, as JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from preflight.core.finding import Reported
from preflight.core.record import KINDS
from preflight.history import compare
from preflight.history.compare import FigureChange
from preflight.history.reference import OneRun
from preflight.results.record_fields import SEVERITIES
from preflight.results.report import Report
from preflight.results.report_nodes import blamed_nodes

SCHEMA = 1
Entry = Mapping[str, Any]
Place = tuple[str, ...]


def difference(old: Entry, new: Entry, reports: tuple[Report, Report]) -> dict[str, Any]:
    """The difference of two entries and their reports, the earlier one first."""
    found = _findings(*reports)
    speeds = list(_speeds(old, new))
    return {
        "schema": SCHEMA,
        "old": _about(old),
        "new": _about(new),
        "worse": bool(worse_findings(found) or any(speed["verdict"] == "worse" for speed in speeds)),
        "nodes": _came_and_went(old["nodes"], new["nodes"]),
        "gpus": {**_came_and_went(old["places"], new["places"]), "moved": _moved(old["places"], new["places"])},
        "findings": found,
        "checks": _statuses(old["checks"], new["checks"]),
        "changes": sorted(_changes(old, new), key=lambda change: KINDS.index(change["kind"])),
        "speeds": sorted(speeds, key=lambda speed: float(speed["ratio"])),
        "not_compared": _not_compared(old, new),
    }


def worse_findings(found: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The findings that are new, or more severe than before; without infos and waived ones."""
    grown = [finding for finding in found["stayed"] if _weighs(finding) < _weighs(finding, "severity_before")]
    return [finding for finding in [*found["came"], *grown] if _weighs(finding) < len(SEVERITIES) - 1]


def _weighs(finding: Mapping[str, Any], name: str = "severity") -> int:
    return len(SEVERITIES) if "waived" in finding else SEVERITIES.index(finding.get(name, finding["severity"]))


def _about(entry: Entry) -> dict[str, Any]:
    return {name: entry[name] for name in ("run", "started", "verdict", "job")}


def _came_and_went(old: Iterable[str], new: Iterable[str]) -> dict[str, list[str]]:
    before, after = dict.fromkeys(old), dict.fromkeys(new)
    return {"came": [name for name in after if name not in before], "went": [n for n in before if n not in after]}


def _moved(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, list[str]]:
    return {gpu: [old[gpu], node] for gpu, node in new.items() if old.get(gpu, node) != node}


# Findings and statuses


def _findings(old: Report, new: Report) -> dict[str, list[dict[str, Any]]]:
    before, after = _by_culprit(old), _by_culprit(new)
    stayed = [{**after[key], "severity_before": before[key]["severity"]} for key in after if key in before]
    came = [after[key] for key in after if key not in before]
    return {"came": came, "went": [before[key] for key in before if key not in after], "stayed": stayed}


def _by_culprit(report: Report) -> dict[Place, dict[str, Any]]:
    """The findings by code and culprit; the worst of several with the same culprit. A merged finding counts as one."""
    found: dict[Place, dict[str, Any]] = {}
    for finding in report.findings:
        told = {**finding.to_json(), "nodes": sorted(blamed_nodes(finding, report.job) - {""})}
        key = _key(finding, told["nodes"])
        if key not in found or _weighs(told) < _weighs(found[key]):
            found[key] = told
    return found


def _key(finding: Reported, nodes: list[str]) -> Place:
    """A key for what was found where. Numbers of GPUs and ranks do not count: they depend on slot and launcher."""
    known = {name: str(value) for name, value in finding.where.items() if name not in ("rank", "local_rank", "step")}
    if "uuid" in known:
        known = {"uuid": known["uuid"], "link": known.get("link", "")}
    elif "file" in known:
        known.pop("line", None)
    return (finding.code, *nodes, *(f"{name}={value}" for name, value in sorted(known.items())))


def _statuses(old: Mapping[str, str], new: Mapping[str, str]) -> list[dict[str, str]]:
    """The checks that reported in only one of the runs: skipped or not run in the other."""
    listed = [(check, old.get(check, "not run"), new.get(check, "not run")) for check in {**old, **new}]
    silent = {"skip", "not run"}
    return [
        {"check": check, "old": before, "new": after}
        for check, before, after in listed
        if before != after and {before, after} & silent and not {before, after} <= silent
    ]


def _not_compared(old: Entry, new: Entry) -> dict[str, str]:
    """Why something is not compared, by check or by what it is."""
    of_job = all(any(speed["of_job"] for *_, speed in entry["figures"]) for entry in (old, new))
    apart = {"the speed of all ranks together": f"the jobs differ: {old['kind']}; {new['kind']}"}
    return {**old["left_out"], **new["left_out"], **(apart if old["kind"] != new["kind"] and of_job else {})}


# Traits


def _changes(old: Entry, new: Entry) -> Iterator[dict[str, Any]]:
    before, after = ({tuple(of): units for *of, units in entry["traits"]} for entry in (old, new))
    for of in {**before, **after}:
        kind, check, name = of
        if not all(_has_told(entry, check) for entry in (old, new)):
            continue
        pairs: dict[tuple[str, str], list[str]] = {}
        for unit, was, now in _values(before.get(of, {}), after.get(of, {}), old, new, check):
            pairs.setdefault((was, now), []).append(unit)
        for (was, now), units in pairs.items():
            nodes = sorted({new["places"].get(unit, unit) for unit in units})
            gpus = [unit for unit in units if unit in new["places"]]
            yield {"kind": kind, "check": check, "name": name, "old": was, "new": now, "nodes": nodes, "gpus": gpus}


def _has_told(entry: Entry, check: str) -> bool:
    return entry["checks"][check] != "skip" if check in entry["absent"] else False


def _values(
    before: Mapping[str, str], after: Mapping[str, str], old: Entry, new: Entry, check: str
) -> Iterator[tuple[str, str, str]]:
    """Yields (node or GPU, its value then, its value now) for each whose value changed; for one that was not in the
    earlier run, if the value differs from all that were. "" means not there."""
    known = _units(old, check, before)
    usual = {before.get(unit, "") for unit in known}
    for unit in sorted(_units(new, check, after)):
        was, now = before.get(unit, ""), after.get(unit, "")
        if unit in known and was != now:
            yield unit, was, now
        elif unit not in known and usual and now not in usual:
            yield unit, " or ".join(sorted(value or "not there" for value in usual)), now


def _units(entry: Entry, check: str, values: Mapping[str, str]) -> set[str]:
    """The units for which the value, or that there is none, is known: nodes that measured, or GPUs that report it."""
    if any(unit in entry["places"] for unit in values):
        return set(values)
    return set(entry["nodes"]) - set(entry["absent"][check])


# Speeds


def _speeds(old: Entry, new: Entry) -> Iterator[dict[str, Any]]:
    before, same_job = OneRun(old["figures"]), old["kind"] == new["kind"]
    for check, name, measure, figure in new["figures"]:
        of = check, name, measure
        overall = compare.compared(of, figure, "", before)
        if overall and (same_job or not figure["of_job"]):
            each = [compare.compared(of, figure, unit, before) for unit in figure["units"]]
            yield _speed(overall, [unit for unit in each if unit and unit.is_slower], new["places"])


def _speed(overall: FigureChange, slow: Sequence[FigureChange], places: Mapping[str, str]) -> dict[str, Any]:
    check, name, measure = overall.of
    is_better = overall.share * overall.least > 1
    return {
        "check": check, "name": name, "unit": measure, "old": overall.usual.value, "new": overall.value,
        "ratio": round(min(each.share for each in (overall, *slow)), 4), "noise": round(overall.noise, 4),
        "least": round(overall.least, 4),
        "verdict": "worse" if slow or overall.is_slower else "better" if is_better else "same",
        "slow": [{"unit": each.unit, "node": places.get(each.unit, each.unit), "ratio": round(each.share, 4)}
                 for each in sorted(slow, key=lambda each: each.share)],
    }  # fmt: skip
