"""`preflight show`: a saved report again."""

import argparse
import sys

from preflight.cli import running
from preflight.core.facts import FactsStore
from preflight.errors import UsageError
from preflight.results import console, progress, rejudge, report_files
from preflight.results.destinations import Output
from preflight.results.report import Report


def show(options: argparse.Namespace) -> int:
    shown, path = report_files.load(options.report)
    policy, sources = running.configured(options)
    running.say_new_names(options)
    texts = running.settings(options.set, sources)
    if options.judge:
        from preflight.history import compare

        book = report_files.facts_beside(path)
        for name in rejudge.withheld(shown, texts):
            why = "is a secret, which no report holds: its default is used"
            Output().complain(f"{name} {why}; give it with --set {name}=VALUE")
        shown = rejudge.judge_again(shown, book, sources, texts, policy, compare.judge)
    elif texts or policy:
        raise UsageError("--set and --config change nothing without --judge")
    if options.json:
        output = Output(options.json)
        failed = output.print_json(shown, FactsStore())
        failed = failed or output.write(shown, FactsStore(), "report.json")["failed"]
        if failed:
            raise UsageError(f"--json {options.json}: {failed}")
    if options.html:
        _write_page(options.html, shown)
    lines = [*(console.check_line(check) for check in shown.checks), *console.ending(shown, [])]
    if shown.explained:
        from preflight.explain import console as explained

        lines = explained.lines(shown)
    elif shown.checkpoint:
        from preflight.checkpoint import console as of_checkpoint

        lines = of_checkpoint.lines(shown)
    progress.show(lines, sys.stderr if options.json == "-" else sys.stdout)
    return shown.exit_code


def _write_page(path: str, shown: Report) -> None:
    from preflight.results.page import whole

    report_files.write_asked("--html", path, whole.html(shown))
