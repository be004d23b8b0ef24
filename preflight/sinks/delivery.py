"""Serves all sinks of a run in parallel, within one time limit: none delays the others or the run."""

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from preflight.core.exceptions import in_one_line
from preflight.core.facts import FactsStore
from preflight.history import archive
from preflight.history.entry import concluded, entry
from preflight.history.run_entry import RunEntry
from preflight.planning.registry import Source
from preflight.results.report import Report
from preflight.sdk import system_call
from preflight.sinks.arguments import Sinks, shown

ALL_S = 4.0
"""Time for all sinks together, including the run's entry. The child that serves them gets ALL_S + SPARE_S."""
SPARE_S = 0.8


def deliver(
    sinks: Sinks, report: Report, book: FactsStore, sources: Mapping[str, Source], early: str = ""
) -> dict[str, str]:
    """Runs in a child. `early`: the run's entry as JSON, if it was made before the verdict. Returns why each sink that
    got nothing failed, by its option."""
    from preflight.sinks import log_line, post, textfile

    end = time.monotonic() + ALL_S
    work: dict[str, Callable[[], object]] = {}
    if sinks.syslog:
        work["--syslog"] = partial(log_line.write, report)
    if sinks.post:
        work[f"--post {shown(sinks.post)}"] = partial(post.send, sinks.post, sinks.post_token, report, end)
    started = _started(work)  # while the entry is made
    work = {}
    if sinks.history or sinks.textfile:
        kept = concluded(RunEntry.from_json(json.loads(early)), report) if early else entry(report, book, sources)
    if sinks.history:
        work[f"--history {sinks.history}"] = partial(archive.write, sinks.history, kept, sinks.keep_days)
    if sinks.textfile:
        work[f"--textfile {sinks.textfile}"] = partial(textfile.write, sinks.textfile, report, kept)
    started |= _started(work)
    return {name: why for name, delivery in started.items() if (why := delivery.failure(end))}


def _started(work: Mapping[str, Callable[[], object]]) -> dict[str, "Delivery"]:
    return {name: Delivery(call) for name, call in work.items()}


class Delivery(threading.Thread):
    """Serves one sink. A daemon thread: a dead file system may block it forever."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.call, self.why = call, ""
        self.start()

    def run(self) -> None:
        try:
            self.call()
        except OSError as error:
            self.why = error.strerror or str(error)
        except sqlite3.Error as error:
            self.why = str(error)
        except Exception as error:
            self.why = in_one_line(error)

    def failure(self, end: float) -> str:
        """Why it failed, or ""."""
        self.join(max(0.0, end - time.monotonic()))
        if not self.is_alive():
            return self.why
        return f"did not end within {ALL_S:.0f} s{system_call.waits_for(f'self/task/{self.native_id}')}"
