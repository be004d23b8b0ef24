"""A check on made-up facts beside those of an earlier run, as `--baseline REPORT` holds it there."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from preflight.check import Job, Outcome
from preflight.core.facts import FactsStore, to_text
from preflight.core.record import BASELINE
from preflight.history import compare
from preflight.history.entry import recorded
from preflight.planning import registry

Facts = Mapping[int, Any]


def _book(check: str, facts: Facts) -> FactsStore:
    book = FactsStore()
    for rank, reading in facts.items():
        book.add(check, [rank], to_text(reading))
    return book


def judged(module: ModuleType, before: Facts, now: Facts, job: Job, **settings: float) -> dict[str, Any]:
    """What `compare.judge` returns for it."""
    id_ = module.__name__.removeprefix("preflight.checks.")
    source = registry.sources()[id_]
    figures, _ = recorded(registry.load(source), job, _book(id_, before))
    book = _book(id_, now)
    book.add(BASELINE, [0], to_text({"figures": [figure.to_json() for figure in figures]}))
    texts = {f"{id_}.{name}": str(value) for name, value in settings.items()}
    return compare.judge(source, job, dict.fromkeys(now, Outcome("measured")), book, texts)


def slower(module: ModuleType, before: Facts, now: Facts, job: Job, **settings: float) -> list[str]:
    """The messages of what is slower than in the baseline."""
    findings = judged(module, before, now, job, **settings)["findings"]
    return [finding["message"] for finding in findings if finding["code"].endswith(".slower_than_baseline")]
