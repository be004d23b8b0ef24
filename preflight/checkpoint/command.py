"""`preflight checkpoint`: from a path to a report."""

import os
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from preflight.checkpoint import console, fit, judge, model
from preflight.checkpoint.arguments import CheckpointRequest
from preflight.checkpoint.contents import Contents, Flaw
from preflight.checkpoint.fit import ModelShapes
from preflight.checkpoint.reader import CheckpointReader
from preflight.core.job import Job
from preflight.core.secrets import Scrubber
from preflight.errors import UsageError
from preflight.explain import output
from preflight.explain.command import INTERRUPTED, OnProgress
from preflight.explain.console import progress as progress_bar
from preflight.results import progress, report_files
from preflight.results.building import build
from preflight.results.cleaning import without_secrets, without_surrogates
from preflight.results.destinations import Output
from preflight.results.report import Report
from preflight.results.result import Result
from preflight.sdk.probe import NoReply, NoReplyKind, Probe, Reply

CHECK = "preflight.checkpoint"
TITLE = "The checkpoint is complete, finite, and fits"


def run(asked: CheckpointRequest) -> int:
    """The command; returns its exit code. Raises UsageError."""
    try:
        output.prepare(asked.json_path, None, None, command="checkpoint")
        with progress_bar() as on_progress:
            made = look(asked, on_progress)
        output.write(made, asked.json_path)
    except KeyboardInterrupt:
        Output().complain("checkpoint: interrupted, no report")
        return INTERRUPTED
    lines = [*console.lines(made), *Output(asked.json_path).places("report.json")]
    progress.show(lines, sys.stderr if asked.json_path == "-" else sys.stdout)
    if asked.json_path == "-":
        print(report_files.as_text(made), end="")
    return made.exit_code


def look(asked: CheckpointRequest, on_progress: OnProgress = lambda *_: None) -> Report:
    """A report with one check, `preflight.checkpoint`. Raises UsageError if there is no checkpoint, or no model."""
    began = time.monotonic()
    if asked.model:
        import torch  # noqa: F401 -- once, for the two processes that need it

    expected = _model(asked) if asked.model else None
    contents, read = Contents(), 0
    with Probe(CheckpointReader()) as probe:
        opened = probe.ask("open", asked.path, deadline_s=asked.timeout_s)
        if isinstance(opened, NoReply):
            contents.flaws.append(_no_answer(opened))
        elif "not_usable" in opened.value:
            raise UsageError(f"{asked.path}: {opened.value['not_usable']}", everywhere=False)
        elif "unreadable" in opened.value:
            contents.add_flaw("unreadable", os.path.basename(asked.path), opened.value["unreadable"])
        else:
            contents, read = _read(probe, asked, opened.value["bytes"], on_progress)
            if expected and not any(flaw.slug == "no_answer" for flaw in contents.flaws):
                contents.flaws += fit.flaws(contents.tensors, expected, partial(_differ, probe, asked.timeout_s))
    if contents.kind and not contents.tensors and not contents.flaws:
        contents.add_flaw("no_tensors", "", "it holds no tensor, expected some")
    return _report(asked, contents, read, time.monotonic() - began)


def _read(probe: Probe, asked: CheckpointRequest, total: int, on_progress: OnProgress) -> tuple[Contents, int]:
    """(what the checkpoint holds, bytes that were read)."""
    read = 0
    ask: Callable[[str], Reply | NoReply] = partial(probe.ask, deadline_s=asked.timeout_s)
    while True:
        step = ask("step")
        if isinstance(step, NoReply):
            break
        read = step.value["read"]
        on_progress(read, max(read, total))
        if step.value["done"]:
            step = ask("contents")
            if isinstance(step, Reply):
                return Contents.of_parts(step.parts), total
            break
    return Contents(flaws=[_no_answer(step)]), read


def _no_answer(why: NoReply) -> Flaw:
    hung = why.kind is NoReplyKind.TIMED_OUT
    stuck = " (its process cannot even be killed)" * why.stuck
    return Flaw("no_answer" if hung else "unreadable", "", f"{why.call}: {why.text}{stuck}, expected an answer")


def _differ(probe: Probe, timeout_s: float, first: str, second: str) -> bool | None:
    reply = probe.ask("differ", first, second, deadline_s=timeout_s)
    return reply.value if isinstance(reply, Reply) else None


def _model(asked: CheckpointRequest) -> ModelShapes:
    """Raises UsageError."""
    with Probe({"describe": model.describe}) as probe:
        reply = probe.ask("describe", asked.model, deadline_s=asked.timeout_s)
    if isinstance(reply, NoReply):
        raise UsageError(f"--model {asked.model}: {reply.text}, expected a model", everywhere=False)
    if "mistake" in reply.value:
        raise UsageError(f"--model {asked.model}: {reply.value['mistake']}", everywhere=False)
    return ModelShapes({name: tuple(shape) for name, _, shape in reply.value["tensors"]}, reply.value["tied"])


def _report(asked: CheckpointRequest, contents: Contents, read: int, seconds: float) -> Report:
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    checkpoint = console.about(asked.path, contents, read)
    summary = f"{checkpoint.kind or 'unknown'}: {checkpoint.tensors:,} tensors"
    made = build(
        run_id=str(uuid.uuid4()), started=started, seconds=seconds, command=["checkpoint", asked.path],
        options={"model": asked.model} if asked.model else {}, job=Job("unknown", 1, "unknown", ()),
        results=[Result(CHECK, TITLE, findings=judge.findings(contents.flaws), summary=summary)],
    )  # fmt: skip
    return without_surrogates(without_secrets(replace(made, checkpoint=checkpoint), Scrubber(os.environ)))
