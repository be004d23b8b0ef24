"""What a run is compared with: `--baseline REPORT`, `--baseline auto` and `--profile FILE`."""

import json
import os
from collections.abc import Mapping
from typing import Any

from preflight.core.answer import Failure
from preflight.core.exceptions import in_one_line
from preflight.core.facts import FactsStore
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.engine.event_loop import EventLoop
from preflight.engine.run_findings import run_finding
from preflight.errors import UsageError
from preflight.planning.plan import Baseline, Request
from preflight.planning.registry import Source
from preflight.results import report

READ_S = 10.0
MOST = 32 * 1024 * 1024
"""Characters of an entry that a child hands over: half of what a channel takes. A larger one is made again."""


def read(path: str) -> Baseline:
    """The report and the facts beside it: first in a child, for they may lie on a file system that hangs. Raises
    UsageError."""

    def refusal() -> dict[str, str]:
        try:
            _read(path)
        except (KeyError, TypeError, AttributeError, ValueError, OSError, EOFError, RecursionError) as error:
            return {"refused": f"is no whole report ({in_one_line(error)})"}
        except UsageError as error:
            return {"refused": str(error).removeprefix(f"{path}: ")}
        return {}

    answer = EventLoop(READ_S).ask(refusal, READ_S)
    refused = f"reading it {answer.text}" if isinstance(answer, Failure) else answer.value.get("refused")
    if refused:
        raise UsageError(f"--baseline {path}: {refused}", everywhere=False)
    return _read(path)


def _read(path: str) -> Baseline:
    earlier, file = report.load(path)
    versions = {check["check"]: check["facts_version"] for check in earlier["checks"]}
    return Baseline(path, Job.from_json(earlier["job"]), report.facts_beside(file), versions)


def beside_history(
    loop: EventLoop, path: str, made: report.Report, book: FactsStore, sources: Mapping[str, Source]
) -> tuple[list[Reported], str]:
    """`--baseline auto`: (what the history at `path` says of this run, its entry as JSON or ""), in a child that may
    hang."""

    from preflight.history import archive, expected
    from preflight.history.entry import entry

    def look() -> dict[str, Any]:
        try:
            if not os.path.exists(path):
                return {"findings": [expected.which([], "this is the first run").to_json()]}
            with archive.reading(path) as database:
                kept = entry(made, book, sources)
                found = [finding.to_json() for finding in expected.findings(database, kept)]
                text = json.dumps(kept, allow_nan=False)
                return {"findings": found, "entry": text if len(text) < MOST else ""}
        except UsageError as error:
            return {"refused": str(error)}

    answer = loop.ask(look, READ_S)
    refused = answer.text if isinstance(answer, Failure) else answer.value.get("refused")
    if refused or isinstance(answer, Failure):
        return [expected.unread(f"--history {path}: {refused}")], ""
    return [Reported.from_json(finding) for finding in answer.value["findings"]], answer.value.get("entry", "")


def beside_profile(loop: EventLoop, request: Request, made: report.Report, book: FactsStore) -> list[Reported]:
    """`--profile`: each node beside the one of its kind, in a child, since it imports checks."""
    from preflight.history import profile
    from preflight.history.entry import entry

    asked = [check for check in profile.READ if request.selection.names(check)]

    def look() -> dict[str, Any]:
        kept = entry(made, book, request.sources)
        beside = request.profile, kept, asked
        found = [*profile.findings(*beside), profile.which(request.profile_path, *beside)]
        return {"findings": [finding.to_json() for finding in found]}

    answer = loop.ask(look, READ_S)
    if isinstance(answer, Failure):
        text = f"comparing with the profile {answer.text}: no node is held against it"
        return [run_finding("error", "fault", text, profile.OWN_FIX)]
    return [Reported.from_json(finding) for finding in answer.value["findings"]]
