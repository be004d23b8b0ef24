"""The supervisor: one process per rank that decides and waits, and that nothing under test can hang."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from preflight.core.answer import Failure, FailureKind, Returned
from preflight.core.facts import FactsStore
from preflight.core.job import Job
from preflight.core.secrets import Scrubber
from preflight.engine import endpoint, identity, shutdown, store, store_keys, store_seal, torch_import, worker
from preflight.engine.child import Child, LimitReached, adopt_orphans, limit_hit
from preflight.engine.child import children as own_children
from preflight.engine.endpoint import Astray
from preflight.engine.event_loop import EventLoop, Interrupted
from preflight.engine.identity import LaunchIdentity
from preflight.engine.job_owner import PortInUse
from preflight.engine.leader import Leader
from preflight.engine.membership import FOREIGN, Membership, hello
from preflight.engine.memory_store import MemoryStore
from preflight.engine.participant import NoCoordinator, Participant, await_welcome
from preflight.engine.process_group import GroupMaker, TorchBroken
from preflight.engine.run_findings import own_job, run_result, without_verdict
from preflight.engine.store_client import StoreLost
from preflight.engine.store_messages import ForeignWriter
from preflight.engine.worker_slot import WorkerSlot
from preflight.hangs.collective_recorder import DumpFile
from preflight.planning.plan import Request
from preflight.results import building, console, progress
from preflight.results.cleaning import without_secrets
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


class Supervisor:
    """One rank's whole run."""

    def __init__(self, task: RunOptions, here: LaunchIdentity, environ: Mapping[str, str]) -> None:
        """Raises UsageError."""
        self.task, self.here = task, here
        self._seal = store_seal.of(environ)
        self.environ = dict(environ)
        self.scrub = Scrubber({**environ, **task.request.settings})
        self.nonce = os.urandom(16).hex()
        self.started_at = time.time()
        self.loop = EventLoop(task.deadline_s, here.parent)
        self.screen = progress.Plain(self.say, task.output.width)
        self.run_folder = ""
        """A private folder, if NCCL's log is to be read."""
        self._store_host: Child | None = None
        self._is_guest = False
        """Whether another process with rank 0 serves the store."""
        self.astray = ""
        """On rank 0: why MASTER_ADDR does not lead to this node."""
        self.follower: Participant | None = None
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

    # From here to the end of the process

    def run(self) -> NoReturn:
        exit_code = 3
        try:
            exit_code = self._run()
        except Exception:
            self.task.output.report_fault()
            self._tell_of_own_fault()
        finally:
            self.screen.close()
            self.loop.end_children()
            if self._store_host is not None:
                self._store_host.end()
            if self.run_folder:
                shutil.rmtree(self.run_folder, ignore_errors=True)
            shutdown.leave(exit_code)

    def _run(self) -> int:
        try:
            self._open_store()
            index = hello(self.loop, self.here, self.nonce, self.task.request.arguments)
            store.refuse_other_job(self.loop, self.here)
            if self.here.rank != 0:
                return self._follow()
            membership = Membership(self.loop, self.here, self.nonce, index)
            return self._follow() if self._stands_back(membership) else Leader(self, membership).run()
        except (
            Interrupted, StoreLost, NoCoordinator, TorchBroken, Astray, PortInUse, LimitReached, ForeignWriter
        ) as why:  # fmt: skip
            if self.astray and isinstance(why, (StoreLost, PortInUse, ForeignWriter)):  # another job's store is there
                return self._end_alone(Astray(self.astray))
            return self._end_alone(self._by_a_limit(why))
        except (OSError, RuntimeError) as error:
            if isinstance(limit := self._by_a_limit(error), LimitReached):
                return self._end_alone(limit)
            raise

    def _by_a_limit(self, why: Exception) -> Exception:
        """LimitReached, if a limit of this host is the reason; else `why`."""
        limit = "" if isinstance(why, (Interrupted, LimitReached)) else limit_hit(why)
        return LimitReached(limit) if limit else why

    def _tell_of_own_fault(self) -> None:
        """Tells rank 0 about a bug in preflight, so that it does not blame the machine."""
        if self.follower is not None:
            with contextlib.suppress(Exception):
                self.loop.begin_ending()
                self.follower.say_goodbye("preflight itself failed there", "fault")

    def _open_store(self) -> None:
        adopt_orphans()
        if self.here.launcher == "local":
            self.loop.store = MemoryStore()
            return
        took_s = torch_import.import_watched(self.loop, self._tell_first) if self.task.needs_torch else 0.0
        serving = store.serve(self.loop, self.here, self.window_s)
        self._store_host, self._is_guest, self.astray = serving.host, serving.is_guest, serving.astray
        if self.astray:
            self.say(f"preflight: {self.astray}; the other ranks get {self.window_s:.0f} s to hear it")
        try:
            # Others may take as long: rank 0, which serves the store, imports from the same file system.
            store.connect(self.loop, self.here, self.window_s + took_s, self._seal)
        except StoreLost as why:
            if astray := self.astray or endpoint.goes_nowhere(self.here):
                raise Astray(astray) from why
            raise

    def _tell_first(self, sentence: str) -> None:
        """One rank of a node speaks for all."""
        if not self.here.local_rank:
            self.task.output.complain(f"{self.here.node_name}: {sentence}")

    def _stands_back(self, membership: Membership) -> bool:
        """Whether another process with rank 0 leads: it serves the store, or came before this one."""
        return self._is_guest or membership.is_rival()

    def say(self, text: str) -> None:
        """Shows a check's line on the screen, before the report is made, without secrets."""
        self.task.output.say(self.scrub.text(text))

    def new_slot(self, run_id: str, job: Job) -> WorkerSlot:
        """The slot for this rank's worker, which is not started yet."""
        if job.backend == "nccl":
            self.run_folder = tempfile.mkdtemp(prefix="preflight-")
        rank = self.here.rank or 0
        new_worker = partial(self._new_worker, run_id, job)
        read_log = partial(worker.nccl_log, self.run_folder, rank)
        return WorkerSlot(new_worker, self._spared, self.scrub.text, read_log)

    def _new_worker(self, run_id: str, job: Job, generation: int) -> Child:
        here, rank, request = self.here, self.here.rank or 0, self.task.request
        local_rank = here.local_rank if here.local_rank is not None else job.node_of(rank).ranks.index(rank)
        keys = store_keys.group(run_id, generation)
        group = GroupMaker(here.master_addr, here.master_port or 0, keys, job.backend)
        dump_file = DumpFile()
        orders = worker.Orders(
            job, rank, local_rank, self.environ, request.settings, request.sources, group, self.scrub, self.run_folder,
            dump_file,
        )  # fmt: skip
        child = Child(worker.serve(orders), dump_file=dump_file)
        if self.loop.store:
            self.loop.store.tell("ward", pid=child.pid, folder=self.run_folder)
        return child

    def _spared(self) -> set[int]:
        hosts = [self._store_host] if self._store_host else []
        return {child.pid for child in (*hosts, *self.loop.children())} | self._not_ours

    # Every rank but 0

    def _follow(self) -> int:
        wait_s = self.window_s + 10.0
        self.loop.world_size = self.here.world_size
        welcome = self._welcomed(wait_s)
        rank = self.here.rank if welcome["place"] == "member" else None
        if rank is not None:
            self.loop.beat_key = store_keys.beat(welcome["run"], rank)
        self.follower = Participant(self.loop, rank, self.nonce, welcome, partial(self.new_slot, welcome["run"]))
        verdict = self.follower.run()
        return self.part(verdict, self.follower.rank)

    def _welcomed(self, within_s: float) -> dict[str, Any]:
        try:
            welcome = await_welcome(self.loop, self.here, self.nonce, within_s)
        except ForeignWriter:
            store.refuse_other_job(self.loop, self.here)  # its rank 0 may have answered, with another secret
            raise
        if welcome["place"] == FOREIGN:
            store.refuse_other_job(self.loop, self.here)
        return welcome

    def part(self, verdict: Mapping[str, Any], rank: int | None, made: Report | None = None) -> int:
        self.loop.begin_ending()
        shutdown.write_verdict(verdict["exit_code"], verdict["sentence"], made)
        shutdown.farewell(self.loop, verdict, rank, serves=self._store_host is not None)
        return int(verdict["exit_code"])

    def build(self, run_id: str, job: Job, results: list[Result]) -> Report:
        made = building.build(
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
        return without_secrets(made, self.scrub)

    def write(self, made: Report, book: FactsStore, name: str) -> None:
        """Writes files first, in a child (a dead file system must not delay the verdict), then the screen."""
        output = self.task.output
        places = output.places(name)
        if places:
            answer = self.loop.ask(lambda: output.write(made, book, name), WRITE_S + book.size / 5e6)
            if isinstance(answer, Failure) and answer.kind is FailureKind.NO_PROCESS:
                answer = Returned(output.write(made, book, name))  # the kernel's timer ends this process if it hangs
            failed = answer.text if isinstance(answer, Failure) else answer.value["failed"]
            places = [f"the report could not be written: {failed}"] if failed else places
        if failed := output.print_json(made, book):
            places = [*places, f"the report could not be written to stdout: {failed}"]
        if self.task.sinks and name == "report.json":
            places += self._deliver(made, book)
        if self.here.rank in (0, None):
            lines = console.ending(made, places, self.screen.width)
        else:  # it speaks for its node only
            lines = [console.sentence(made), *places]
        self.screen.say(lines)

    def _deliver(self, made: Report, book: FactsStore) -> list[str]:
        """Sends the report to all sinks, in a child with a time limit. Returns what failed, for the screen."""
        from preflight.sinks import delivery

        sinks, sources = self.task.sinks, self.task.request.sources
        answer = self.loop.ask(
            lambda: delivery.deliver(sinks, made, book, sources, self.entry), delivery.ALL_S + delivery.SPARE_S
        )
        failed = {sinks.names(): answer.text} if isinstance(answer, Failure) else answer.value
        return [self.scrub.text(f"{name}: got nothing: {why}") for name, why in failed.items()]

    # Without rank 0, or without the store

    def _end_alone(self, why: Exception) -> int:
        """Writes this node's own report: rank 0 will write none."""
        self.loop.begin_ending()
        follower = self.follower
        if isinstance(why, Interrupted | ForeignWriter) and follower is not None:
            is_foreign = isinstance(why, ForeignWriter)
            with contextlib.suppress(StoreLost):
                verdict = follower.leave_early(str(why), "foreign" if is_foreign else "told")
                if verdict is not None and (verdict["exit_code"] or not is_foreign):
                    return self.part(verdict, follower.rank)
        if isinstance(why, NoCoordinator) and follower is not None:
            with contextlib.suppress(StoreLost):
                follower.say_goodbye(str(why), "gave_up")
        if follower is not None and not follower.writes_for_its_node():
            return 3
        results = [run_result([without_verdict(why, self.here, follower, self.loop.still_s)])]
        made = self.build(follower.run_id if follower else self.nonce[:12], own_job(self.here, follower), results)
        rank = "unknown" if self.here.rank is None else str(self.here.rank)
        shutdown.write_verdict(made.exit_code, console.sentence(made))
        self.write(made, FactsStore(), f"report.rank-{rank}.json")
        return int(made.exit_code)


def run(task: RunOptions) -> NoReturn:
    """Runs the rank that this process's environment names, until its exit. Raises UsageError."""
    Supervisor(task, identity.from_environ(os.environ), os.environ).run()
