"""What a rank's supervisor and rank 0's leader share: the loop, the screen, the worker's slot, the report."""

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from preflight.core.answer import Failure, FailureKind, Returned
from preflight.core.facts import FactsStore
from preflight.core.job import Job
from preflight.core.secrets import Scrubber
from preflight.engine import shutdown, store_keys, worker
from preflight.engine.child import Child
from preflight.engine.child import children as own_children
from preflight.engine.event_loop import EventLoop
from preflight.engine.identity import LaunchIdentity
from preflight.engine.process_group import GroupMaker
from preflight.engine.verdict import RunVerdict
from preflight.engine.worker_slot import WorkerSlot
from preflight.hangs.collective_recorder import DumpFile
from preflight.planning.plan import Request
from preflight.results import annotations, building, console, progress
from preflight.results.cleaning import without_secrets
from preflight.results.console import Detail
from preflight.results.destinations import Output
from preflight.results.report import Report
from preflight.results.result import Result
from preflight.sinks.arguments import Sinks

WRITE_S = 20.0
"""Time for writing the report, plus a second for every 5 MB of (compressed) facts."""
HEAR_S = 20.0
"""Time for the ranks to come to a node that MASTER_ADDR wrongly names, so that all say why the job cannot start."""


@dataclass(frozen=True)
class RunOptions:
    """What the command line asked for."""

    request: Request
    command: list[str]
    deadline_s: float
    strict: bool
    output: Output
    needs_torch: bool
    sinks: Sinks = field(default_factory=Sinks)
    detail: Detail = Detail.USUAL


class RunContext:
    """One rank's run: what was asked for, who this rank is, and what lives as long as its process."""

    def __init__(self, task: RunOptions, identity: LaunchIdentity, environ: Mapping[str, str]) -> None:
        self.task, self.identity = task, identity
        self.environ = dict(environ)
        self.scrub = Scrubber({**environ, **task.request.settings})
        self.nonce = os.urandom(16).hex()
        self.started_at = time.time()
        self.loop = EventLoop(task.deadline_s, identity.parent)
        self.screen = progress.Plain(self.say, task.output.width)
        self.run_folder = ""
        """A private folder, if NCCL's log is to be read."""
        self.store_host: Child | None = None
        self.astray = ""
        """On rank 0: why MASTER_ADDR does not lead to this node."""
        self.entry = ""
        """The run's entry in the history, as JSON, if `--baseline auto` has already made it."""
        self._not_ours = own_children()
        """The children of a shell that started them in the background and then became this process by exec."""

    @property
    def window_s(self) -> float:
        """Time for all ranks to arrive: importing torch on a thousand nodes from one file system takes minutes. Where
        they can only be told that MASTER_ADDR is wrong, they get less."""
        most = HEAR_S if self.astray else float("inf")
        return min(most, max(5.0, self.task.deadline_s / 3))

    def say(self, text: str) -> None:
        """Shows a check's line on the screen, before the report is made, without secrets."""
        self.task.output.say(self.scrub.text(text))

    # The worker

    def new_slot(self, run_id: str, job: Job) -> WorkerSlot:
        """The slot for this rank's worker, which is not started yet."""
        if job.backend == "nccl":
            self.run_folder = _private_folder()
        rank = self.identity.rank or 0
        new_worker = partial(self._new_worker, run_id, job)
        read_log = partial(worker.nccl_log, self.run_folder, rank)
        return WorkerSlot(new_worker, self._spared, self.scrub.text, read_log)

    def _new_worker(self, run_id: str, job: Job, generation: int) -> Child:
        identity, rank, request = self.identity, self.identity.rank or 0, self.task.request
        local_rank = identity.local_rank if identity.local_rank is not None else job.node_of(rank).ranks.index(rank)
        keys = store_keys.group(run_id, generation)
        group = GroupMaker(identity.master_addr, identity.master_port or 0, keys, job.backend)
        dump_file = DumpFile()
        orders = worker.Orders(
            job,
            rank,
            local_rank,
            self.environ,
            request.settings,
            request.sources,
            group,
            self.scrub,
            self.run_folder,
            dump_file,
        )
        child = Child(worker.serve(orders), dump_file=dump_file)
        if self.loop.store:
            self.loop.store.tell("ward", pid=child.pid, folder=self.run_folder)
        return child

    def _spared(self) -> set[int]:
        hosts = [self.store_host] if self.store_host else []
        return {child.pid for child in (*hosts, *self.loop.children())} | self._not_ours

    # The end

    def part(self, verdict: RunVerdict, rank: int | None, run_report: Report | None = None) -> int:
        """Gives the verdict to the rank's launcher and the other ranks. Returns the exit code."""
        self.loop.begin_ending()
        shutdown.write_verdict(verdict.exit_code, verdict.sentence, run_report)
        shutdown.farewell(self.loop, verdict, rank, serves=self.store_host is not None)
        return verdict.exit_code

    def build(self, run_id: str, job: Job, results: list[Result]) -> Report:
        """The report, without secrets."""
        run_report = building.build(
            run_id=run_id,
            started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started_at)),
            seconds=time.monotonic() - self.loop.started,
            command=self.task.command,
            options=self.task.request.settings,
            job=job,
            results=results,
            strict=self.task.strict,
            policy=self.task.request.policy,
        )
        return without_secrets(run_report, self.scrub)

    def write(self, run_report: Report, book: FactsStore, name: str) -> None:
        """Writes files first, in a child (a dead file system must not delay the verdict), then the screen."""
        output = self.task.output
        places = output.places(name)
        if places:
            answer = self.loop.ask(lambda: output.write(run_report, book, name), WRITE_S + book.size / 5e6)
            if isinstance(answer, Failure) and answer.kind is FailureKind.NO_PROCESS:
                # In this process; the kernel's timer ends it if it hangs.
                answer = Returned(output.write(run_report, book, name))
            failed = answer.text if isinstance(answer, Failure) else answer.value["failed"]
            places = [f"the report could not be written: {failed}"] if failed else places
        if failed := output.print_json(run_report, book):
            places = [*places, f"the report could not be written to stdout: {failed}"]
        if self.task.sinks and name == "report.json":
            places += self._deliver(run_report, book)
        if self.identity.rank in (0, None):
            lines = console.ending(run_report, places, self.screen.width, self.task.detail)
            if self.environ.get(annotations.SWITCH) == "true":
                lines = [*annotations.lines(run_report), *lines]
        else:  # it speaks for its node only
            lines = [console.sentence(run_report), *places]
        self.screen.say(lines)

    def _deliver(self, run_report: Report, book: FactsStore) -> list[str]:
        """Sends the report to all sinks, in a child with a time limit. Returns what failed, for the screen."""
        from preflight.sinks import delivery

        sinks, sources = self.task.sinks, self.task.request.sources
        answer = self.loop.ask(
            lambda: delivery.deliver(sinks, run_report, book, sources, self.entry), delivery.ALL_S + delivery.SPARE_S
        )
        failed = {sinks.names(): answer.text} if isinstance(answer, Failure) else answer.value
        return [self.scrub.text(f"{name}: got nothing: {why}") for name, why in failed.items()]


def _private_folder() -> str:
    """A new folder for NCCL's log, or "" where no temporary folder can be written, as in a pod whose root is read-only:
    the run goes on without the log."""
    try:
        return tempfile.mkdtemp(prefix="preflight-")
    except OSError:
        return ""
