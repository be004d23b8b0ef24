"""Plots of per-GPU values in report.html: a strip per value, with the GPUs of findings named."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from preflight.check import Code, Finding, Severity, plots
from preflight.checks.gpu.shared.cards import Card

Values = tuple[str, str, Sequence[float | None], Collection[Code]]
"""Name, unit, the value of each GPU, and the codes of findings about it."""


def strips(
    title: str, looked: Sequence[tuple[Card, Any]], found: Iterable[Finding], values: Iterable[Values]
) -> Iterator[plots.Strips]:
    """`looked`: the GPUs in the order of their values; `found`: the judge's findings about them."""
    grave = [finding for finding in found if finding.severity is not Severity.INFO]
    drawn = [
        plots.Strip(
            name, unit, readings, [place for place, (card, _) in enumerate(looked) if _is_named(card, grave, codes)]
        )
        for name, unit, readings, codes in values
        if any(value is not None for value in readings)
    ]
    if drawn:
        yield plots.Strips(title, [(card.node, f"gpu {card.gpu}") for card, _ in looked], drawn)


def _is_named(card: Card, found: Iterable[Finding], codes: Collection[Code]) -> bool:
    """Whether a finding names the GPU, or all GPUs of its node."""
    return any(
        finding.code in codes
        and finding.where.get("node") == card.node
        and finding.where.get("gpu", card.gpu) == card.gpu
        for finding in found
    )
