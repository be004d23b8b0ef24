"""The list of built-in checks, without importing them: `built_in.tsv`, written by `python -m tests.check_pages`."""

from __future__ import annotations  # as in registry.py

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from preflight.planning.registry import Check

PATH = os.path.join(os.path.dirname(__file__), "built_in.tsv")


class CatalogEntry(NamedTuple):
    """What `preflight list` shows of a check, and the lowest level at which it may run."""

    id: str
    level: str
    lowest: str
    """Lower than `level` if the check runs sooner on some backend, or when it is given something."""
    scope: str
    given: tuple[str, ...]
    title: str

    def to_text(self) -> str:
        return "\t".join((*self[:4], " ".join(self.given), self.title))


def listed() -> dict[str, CatalogEntry]:
    """The entries by id. A check that is missing in the file is not left out: it is imported."""
    with open(PATH) as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return {row[0]: CatalogEntry(row[0], row[1], row[2], row[3], tuple(row[4].split()), row[5]) for row in rows}


def of(check: Check) -> CatalogEntry:
    """The entry of an imported check."""
    from preflight.planning import levels

    known = levels.of(check)
    return CatalogEntry(check.id, known.level, known.lowest, check.plan.scope, known.given, check.title)
