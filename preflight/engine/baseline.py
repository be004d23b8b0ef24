"""What a run is compared with: `--baseline REPORT`, `--baseline auto` and `--profile FILE`."""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from preflight.core.answer import Failure
from preflight.core.facts import FactsStore, to_text
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.core.words import clauses
from preflight.engine.event_loop import EventLoop
from preflight.engine.run_findings import run_finding
from preflight.errors import UsageError
from preflight.history.run_entry import RunEntry
from preflight.planning import registry
from preflight.planning.plan import Request
from preflight.planning.registry import Source
from preflight.results import report_files
from preflight.results.report import Report

READ_S = 10.0
MOST = 32 * 1024 * 1024
"""The most characters of an entry that a child sends: half of a channel's limit. A larger one is made again later."""


def refuse_unreadable(path: str) -> None:
    """Raises UsageError, before the run, if there is no complete report or it has no facts. In a child: its file system
    may hang."""
    answer = EventLoop(READ_S).ask(lambda: _refusal(path), READ_S)
    refused = f"reading it {answer.text}" if isinstance(answer, Failure) else answer.value.get("refused")
    if refused:
        raise UsageError(f"--baseline {path}: {refused}", everywhere=False)


def _refusal(path: str) -> dict[str, object]:
    try:
        _loaded(path)
    except UsageError as error:
        return {"refused": str(error).removeprefix(f"{path}: ")}
    return {}


def _loaded(path: str) -> tuple[Report, FactsStore]:
    """Raises UsageError."""
    earlier, file = report_files.load(path)
    return earlier, report_files.facts_beside(file)


def read(loop: EventLoop, path: str, job: Job, sources: Mapping[str, Source]) -> tuple[str, Reported | None]:
    """(the figures of the checks that are compared, as facts, or ""; what is not compared), in a child of the run of
    `job`, which has torch already: the checks are imported."""
    from preflight.history.entry import entry

    def look() -> dict[str, str]:
        earlier, book = _loaded(path)
        theirs, ours = (f"{each.world_size} ranks on {each.backend}" for each in (earlier.job, job))
        if theirs != ours:
            return {"refused": f"is of {theirs}, expected {ours} as in this run"}
        kept = entry(earlier, book, sources)
        compared = _compared(sources, {*kept.left_out, *(figure.check for figure in kept.figures)})
        left = [f"{check}: {why}" for check, why in kept.left_out.items() if check in compared]
        figures = to_text({"figures": [figure.to_json() for figure in kept.figures if figure.check in compared]})
        return {"figures": figures, "left_out": clauses(left)}

    answer = loop.ask(look, READ_S)
    value = {"refused": f"cannot be used: reading it {answer.text}"} if isinstance(answer, Failure) else answer.value
    if refused := value.get("refused"):
        fix = "Name a report of a run with the same number of ranks and backend."
        return "", run_finding("warn", "baseline", f"--baseline {path} {refused}: nothing is compared with it", fix)
    text = f"not compared with --baseline {path}: {value['left_out']}"
    finding = run_finding("info", "baseline", text, "Name a newer report, of the same checks.")
    return value["figures"], finding if value["left_out"] else None


def _compared(sources: Mapping[str, Source], checks: Iterable[str]) -> set[str]:
    """In a child: the checks that declare the code for it."""
    from preflight.history.compare import CODE

    found = set()
    for check in checks:
        with contextlib.suppress(Exception):  # the run itself reports a check that cannot be loaded
            found |= {check} if CODE in registry.load(sources[check]).codes else set()
    return found


def compared_with_history(
    loop: EventLoop, path: str, run_report: Report, book: FactsStore, sources: Mapping[str, Source], early: str = ""
) -> tuple[list[Reported], str]:
    """`--baseline auto`: (what the history at `path` says of this run, its entry as JSON or ""), in a child that may
    hang. `early`: the entry, where it was made before."""

    from preflight.history import archive, expected
    from preflight.history.entry import entry

    def look() -> dict[str, object]:
        try:
            if not os.path.exists(path):
                return {"findings": [expected.which([], "this is the first run").to_json()], "entry": early}
            with archive.reading(path) as database:
                kept = RunEntry.from_json(json.loads(early)) if early else entry(run_report, book, sources)
                found = [finding.to_json() for finding in expected.findings(database, kept)]
                return {"findings": found, "entry": early or _handed_over(kept)}
        except UsageError as error:
            return {"refused": str(error)}

    answer = loop.ask(look, READ_S)
    refused = answer.text if isinstance(answer, Failure) else answer.value.get("refused")
    if refused or isinstance(answer, Failure):
        return [expected.unread(f"--history {path}: {refused}")], early
    return [Reported.from_json(finding) for finding in answer.value["findings"]], answer.value.get("entry", "")


def _handed_over(kept: RunEntry) -> str:
    text = json.dumps(kept.to_json(), allow_nan=False)
    return text if len(text) < MOST else ""


def compared_with_profile(
    loop: EventLoop, request: Request, run_report: Report, book: FactsStore
) -> tuple[list[Reported], str]:
    """`--profile`: (each node beside the one of its kind, the run's entry as JSON or ""), in a child, since it imports
    checks."""
    from preflight.history import profile
    from preflight.history.entry import entry

    asked = [check for check in profile.READ if request.selection.names(check)]

    def look() -> dict[str, Any]:
        kept = entry(run_report, book, request.sources)
        beside = request.profile, kept, asked
        found = [*profile.findings(*beside), profile.which(request.profile_path, *beside)]
        return {"findings": [finding.to_json() for finding in found], "entry": _handed_over(kept)}

    answer = loop.ask(look, READ_S)
    if isinstance(answer, Failure):
        text = f"comparing with the profile {answer.text}: no node was compared with it"
        return [run_finding("error", "fault", text, profile.OWN_FIX)], ""
    return [Reported.from_json(finding) for finding in answer.value["findings"]], answer.value["entry"]
