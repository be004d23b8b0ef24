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
from preflight.engine.channel import Channel
from preflight.engine.event_loop import EventLoop
from preflight.engine.run_findings import run_finding
from preflight.errors import UsageError
from preflight.planning.plan import Baseline, Request
from preflight.planning.registry import Source
from preflight.results import report

READ_S = 10.0
MOST = 32 * 1024 * 1024
"""The most characters of an entry that a child sends: half of a channel's limit. A larger one is made again later."""


def read(path: str) -> Baseline:
    """Reads the report and the facts beside it, in a child, since they may be on a file system that hangs. Raises
    UsageError."""

    loop, book = EventLoop(READ_S), FactsStore()
    child = loop.fork(lambda channel, _page: _send(path, channel))
    try:
        while True:
            answer = child if isinstance(child, Failure) else loop.answer_of(child, READ_S)
            refused = f"reading it {answer.text}" if isinstance(answer, Failure) else answer.value.get("refused")
            if refused or isinstance(answer, Failure):
                raise UsageError(f"--baseline {path}: {refused}", everywhere=False)
            if "job" in answer.value:
                return Baseline(path, Job.from_json(answer.value["job"]), book, answer.value["versions"])
            book.add(answer.value["check"], answer.value["ranks"], answer.value["facts"])
    finally:
        if not isinstance(child, Failure):
            loop.dismiss(child)


def _send(path: str, channel: Channel) -> None:
    """In the child: sends the facts one by one, and at last the job; or why there is none."""
    try:
        earlier, file = report.load(path)
        job, book = Job.from_json(earlier["job"]).to_json(), report.facts_beside(file)
        versions = {check["check"]: check["facts_version"] for check in earlier["checks"]}
    except (OSError, EOFError, *report.BROKEN) as error:
        channel.send_all({"value": {"refused": f"is not a complete report ({in_one_line(error)})"}})
        return
    except UsageError as error:
        channel.send_all({"value": {"refused": str(error).removeprefix(f"{path}: ")}})
        return
    for check in book.checks():
        for ranks, text in book.groups(check):
            channel.send_all({"value": {"check": check, "ranks": ranks, "facts": text}})
    channel.send_all({"value": {"job": job, "versions": versions}})


def compared_with_history(
    loop: EventLoop,
    path: str,
    run_report: report.Report,
    book: FactsStore,
    sources: Mapping[str, Source],
    early: str = "",
) -> tuple[list[Reported], str]:
    """`--baseline auto`: (what the history at `path` says of this run, its entry as JSON or ""), in a child that may
    hang. `early`: the entry, where it was made before."""

    from preflight.history import archive, expected
    from preflight.history.entry import entry

    def look() -> dict[str, Any]:
        try:
            if not os.path.exists(path):
                return {"findings": [expected.which([], "this is the first run").to_json()], "entry": early}
            with archive.reading(path) as database:
                kept = json.loads(early) if early else entry(run_report, book, sources)
                found = [finding.to_json() for finding in expected.findings(database, kept)]
                return {"findings": found, "entry": early or _handed_over(kept)}
        except UsageError as error:
            return {"refused": str(error)}

    answer = loop.ask(look, READ_S)
    refused = answer.text if isinstance(answer, Failure) else answer.value.get("refused")
    if refused or isinstance(answer, Failure):
        return [expected.unread(f"--history {path}: {refused}")], early
    return [Reported.from_json(finding) for finding in answer.value["findings"]], answer.value.get("entry", "")


def _handed_over(kept: Mapping[str, Any]) -> str:
    text = json.dumps(kept, allow_nan=False)
    return text if len(text) < MOST else ""


def compared_with_profile(
    loop: EventLoop, request: Request, run_report: report.Report, book: FactsStore
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
