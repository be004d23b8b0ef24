"""What a check's plot() shows on a terminal, as lines."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from preflight.check import Run
from preflight.results import text_plots

WIDTH = 114


def lines(module: ModuleType, facts: Mapping[int, Any], run: Run, width: int = WIDTH) -> list[str]:
    """As if the check had not passed."""
    return of({"plots": [plot.to_json() for plot in module.plot(facts, run)]}, width)


def of(check: Mapping[str, Any], width: int = WIDTH) -> list[str]:
    """Of a check in a report."""
    shown = [plot for plot in check["plots"] if text_plots.is_on_screen(plot, "fail")]
    return [line for plot in shown for line in text_plots.lines(plot, width)]
