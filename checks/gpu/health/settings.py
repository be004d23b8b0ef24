"""A GPU's settings, as words that can be compared with its siblings'."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from preflight.check import Code, Finding, ranges
from preflight.checks.gpu.shared.cards import Card, compare_cards
from preflight.checks.gpu.shared.readings import Health

Read = Callable[[Health], str | None]
"""Reads a setting; None if the card does not report it."""


class GpuSetting(NamedTuple):
    """A setting that should be the same on all GPUs of a model."""

    code: Code
    called: str
    value: Read
    default: Read = lambda _: None
    """The GPU's default, or the recommended value; a GPU that has it is not odd if its siblings differ."""


def differing(setting: GpuSetting, looked: Sequence[tuple[Card, Health]]) -> Iterator[Finding]:
    """Warns about a difference from siblings; the same non-default value on all is only info."""
    read = [(card, setting.value(health), setting.default(health)) for card, health in looked]
    known = [(card, value, default) for card, value, default in read if value is not None]
    found = compare_cards(((card, value) for card, value, _ in known), alike=lambda card: card.make)
    at_default = {(card.node, card.uuid) for card, value, default in known if value == default}
    usual_by_default = {(card.make, value) for card, value, default in known if value == default}
    for odd in found.odd:
        siblings_are = (odd.card.make, odd.usual) in usual_by_default
        if siblings_are or (odd.card.node, odd.card.uuid) not in at_default:
            text = f"{setting.called} is {odd.value}, expected {odd.usual} as on {odd.share}"
            yield setting.code.warn(text, **odd.where)
    for tie in found.ties:
        yield setting.code.warn(f"{setting.called} differs: {tie}; expected the same on all GPUs of a model")
    odd_values = {odd.value for odd in found.odd}
    changed = Counter(
        (card.name, value, default)
        for card, value, default in known
        if default not in (None, value) and value not in odd_values
    )
    for (name, value, default), count in changed.items():
        text = f"{setting.called} is {value} on {ranges.count(count, 'GPU')} ({name}), expected {default}"
        yield setting.code.info(text)


def ecc(health: Health) -> str | None:
    now = ecc_that_turns(health)
    return f"{now} ({switch(health['ecc_pending'])} after the next reset)" if now else switch(health["ecc"])


def ecc_that_turns(health: Health) -> str | None:
    """The ECC mode, if it is about to change."""
    return switch(health["ecc"]) if health["ecc_pending"] not in (None, health["ecc"]) else None


def switch(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


def watts(milliwatts: int | None) -> str | None:
    return f"{milliwatts / 1000:.0f} W" if milliwatts is not None else None


def mib(size: int | None) -> str | None:
    return f"{size >> 20:,} MiB" if size is not None else None


def application_clock(names: Sequence[str], default: str, health: Health) -> str | None:
    """The lowest of these clocks, which are the same one: drivers report it under one name or the other. `default`: "",
    or "_default" for its default."""
    known = [clock for name in names if (clock := health["clocks"].get(f"{name}_application{default}")) is not None]
    return mhz(min(known)) if known else None


def mhz(value: int | None) -> str | None:
    return f"{value:,} MHz" if value is not None else None
