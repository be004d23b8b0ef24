"""Which error counters of a GPU rose between two readings. A counter that fell was reset, and proves nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from preflight.check import Severity, ranges
from preflight.checks.gpu.shared.pci import most_a_minute
from preflight.checks.gpu.shared.readings import Health, NvLinkPort, Pcie

Counts = Mapping[str, int | None]


class LinkErrors(TypedDict):
    """The part of a NvLinkPort that is kept."""

    link: int
    active: bool | None
    errors: dict[str, int]
    """Counters that are not 0."""


@dataclass(frozen=True)
class CounterRise:
    severity: Severity
    text: str
    """The message, with what was expected."""
    counters: dict[str, str]
    """ "0 to 2" by name."""
    link: int | None = None
    corrected: bool = field(default=False, kw_only=True)


def risen(before: Counts, after: Counts) -> dict[str, str]:
    """{name: "old to new"} for counters that rose; one that was unknown before is not known to have risen."""
    return {
        name: f"{old:,} to {new:,}"
        for name, new in after.items()
        if new is not None and (old := before.get(name)) is not None and new > old
    }


def _listed(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {change}" for name, change in found.items())


# Memory


def memory_rises(before: Health, after: Health) -> Iterator[CounterRise]:
    """Wrong data, or rows taken out of use, are a fault; corrected errors are info."""
    if bad := risen(_uncorrected(before), _uncorrected(after)):
        text = f"uncorrectable memory errors rose during the run: {_listed(bad)}; expected none"
        yield CounterRise(Severity.FAIL, text, bad)
    replaced = risen(_replaced(before), _replaced(after))
    if replaced and not bad:
        text = f"memory was taken out of use during the run: {_listed(replaced)}; expected none"
        yield CounterRise(Severity.WARN, text, replaced, corrected=True)
    if corrected := risen(_corrected(before), _corrected(after)):
        text = f"memory errors were corrected during the run: {_listed(corrected)}; expected none"
        yield CounterRise(Severity.INFO, text, corrected, corrected=True)


def _uncorrected(health: Health) -> Counts:
    sram, remapped = health["sram"] or {}, health["remapped"] or {}
    return {
        "volatile": health["ecc_errors"].get("volatile_uncorrected"),
        "aggregate": health["ecc_errors"].get("aggregate_uncorrected"),
        "SRAM volatile": sram.get("volatile_uncorrected"),
        "SRAM aggregate": sram.get("aggregate_uncorrected"),
        "SRAM threshold exceeded": sram.get("threshold_exceeded"),
        "remapped rows": remapped.get("uncorrected"),
        "failed remappings": remapped.get("failed"),
        "retired pages": health["retired"].get("double_bit"),
    }


def _replaced(health: Health) -> Counts:
    """Counters of rows and pages replaced after many corrected errors in one place."""
    remapped = health["remapped"] or {}
    return {
        "remapped rows": remapped.get("corrected"),
        "pending remappings": remapped.get("pending"),
        "retired pages": health["retired"].get("single_bit"),
        "pending retirements": health["retired"].get("pending"),
    }


def _corrected(health: Health) -> Counts:
    names = ("volatile_corrected", "aggregate_corrected")
    return {name.removesuffix("_corrected"): health["ecc_errors"].get(name) for name in names}


# Clocks

THROTTLED_S = 0.5
"""A run has a GPU at work for some ten seconds: this is a few percent of them."""


def clock_rises(before: Health, after: Health, seconds: float) -> Iterator[CounterRise]:
    """Clocks that the driver or the hardware lowered while the run had the GPU at work."""
    was, now = before.get("throttled_ns", {}), after.get("throttled_ns", {})
    lowered = {name: ((now[name] or 0) - (was[name] or 0)) / 1e9 for name in risen(was, now)}
    if found := {name: by_s for name, by_s in lowered.items() if by_s >= THROTTLED_S}:
        causes = " and ".join(f"{by_s:.1f} s by {name}" for name, by_s in found.items())
        text = (
            f"the clocks were throttled during the run's {seconds:.0f} s: {causes}; expected less than {THROTTLED_S} s"
        )
        yield CounterRise(Severity.WARN, text, {name: f"{by_s:.1f} s" for name, by_s in found.items()})


# PCIe


def pcie_rises(before: Pcie, after: Pcie, seconds: float) -> Iterator[CounterRise]:
    """Replays are normal up to the specification's rate; one minute's worth is always allowed."""
    uncorrected = {"fatal": Severity.FAIL, "non_fatal": Severity.WARN}
    for name, severity in uncorrected.items():
        if found := risen(before["errors"], {name: after["errors"].get(name)}):
            text = f"{name.replace('_', '-')} PCIe errors rose during the run: {found[name]}, expected none"
            yield CounterRise(severity, text, found)
    most, replays = most_a_minute(before), (after["replays"] or 0) - (before["replays"] or 0)
    if before["replays"] is not None and most is not None and replays > most * max(1.0, seconds / 60):
        text = f"{replays:,} PCIe replays in {seconds:.0f} s, expected at most {most:.0f} per minute"
        yield CounterRise(Severity.WARN, text, risen({"replays": before["replays"]}, {"replays": after["replays"]}))
    if before["width"] and after["width"] and after["width"] < before["width"]:
        text = f"the PCIe link has {after['width']} lanes after the run, expected {before['width']} as before it"
        yield CounterRise(Severity.WARN, text, {"width": f"{before['width']} to {after['width']}"})


# NVLink


CRC_A_SECOND = 100
"""Corrupt flits that were resent: DCGM's limit."""
HARMLESS = ("crc_flit", "crc_data", "ecc", "effective_errors", "xmit_discards")
"""Corrected or resent in hardware."""
LOST = "recovery_failed"


def link_errors(link: NvLinkPort) -> LinkErrors:
    errors = {name: count for name, count in link["errors"].items() if count}
    return {"link": link["link"], "active": link["active"], "errors": errors}


def nvlink_rises(before: list[NvLinkPort], after: list[LinkErrors], seconds: float) -> Iterator[CounterRise]:
    """One finding per severity: a bad switch affects many links."""
    old = {link["link"]: link for link in before}
    found: dict[Severity, dict[int, dict[str, str]]] = {}
    for link in after:
        was = old.get(link["link"])
        if was is not None and was["active"] and link["active"] is False:
            found.setdefault(Severity.FAIL, {})[link["link"]] = {"state": "up to down"}
        elif was is not None and (rises := _of_link(was["errors"], link["errors"])):
            severity = _severity(was["errors"], link["errors"], rises, seconds)
            found.setdefault(severity, {})[link["link"]] = rises
    for severity, links in found.items():
        first = min(links)
        only = first if len(links) == 1 else None
        which = f"link {first}" if only is not None else f"links {ranges.to_text(links)}, {first} for one"
        text = f"NVLink got worse during the run: {which}: {_listed(links[first])}; expected no errors"
        yield CounterRise(severity, text, {f"link {link}": _listed(rises) for link, rises in links.items()}, only)


def _of_link(before: Counts, after: Counts) -> dict[str, str]:
    """Which counters of a link rose; zeros are left out of both."""
    return risen({name: before.get(name, 0) for name in after}, after)


def _severity(before: Counts, after: Counts, rises: Mapping[str, str], seconds: float) -> Severity:
    if LOST in rises:
        return Severity.FAIL
    crc = sum((after.get(name) or 0) - (before.get(name) or 0) for name in ("crc_flit", "crc_data"))
    return Severity.WARN if set(rises) - set(HARMLESS) or crc > CRC_A_SECOND * max(1.0, seconds) else Severity.INFO
