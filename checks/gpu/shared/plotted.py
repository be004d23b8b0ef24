"""What report.html draws of values that each GPU has: a strip each, and the GPUs of findings by name."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from preflight.check import Code, Finding, Severity, plots
from preflight.checks.gpu.shared.cards import Card

Values = tuple[str, str, Sequence[float | None], Collection[Code]]
"""Name, unit, the value of each GPU, and the codes of findings about it."""


def strips(
    title: str, looked: Sequence[tuple[Card, Any]], found: Iterable[Finding], values: Iterable[Values]
) -> Iterator[plots.Strips]:
    """`looked`: the GPUs in the order of their values; `found`: what the judge says of them."""
    grave = [finding for finding in found if finding.severity is not Severity.INFO]
    made = [
        plots.Strip(name, unit, its, [place for place, (card, _) in enumerate(looked) if _is_named(card, grave, codes)])
        for name, unit, its, codes in values
        if any(value is not None for value in its)
    ]
    if made:
        yield plots.Strips(title, [(card.node, f"gpu {card.gpu}") for card, _ in looked], made)


def _is_named(card: Card, found: Iterable[Finding], codes: Collection[Code]) -> bool:
    """By itself, or with all GPUs of its node."""
    return any(
        finding.code in codes
        and finding.where.get("node") == card.node
        and finding.where.get("gpu", card.gpu) == card.gpu
        for finding in found
    )
