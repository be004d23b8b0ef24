"""The supervisor: one process per rank that decides and waits, and that nothing under test can hang."""

import contextlib
import os
import shutil
from functools import partial
from typing import NoReturn

from preflight.core.facts import FactsStore
from preflight.engine import endpoint, identity, shutdown, store, store_keys, store_seal, torch_import
from preflight.engine.child import LimitReached, limit_hit
from preflight.engine.endpoint import Astray
from preflight.engine.event_loop import Interrupted
from preflight.engine.job_owner import PortInUse
from preflight.engine.leader import Leader
from preflight.engine.membership import FOREIGN, Membership, hello
from preflight.engine.memory_store import MemoryStore
from preflight.engine.participant import NoCoordinator, Participant, await_welcome
from preflight.engine.process_group import TorchBroken
from preflight.engine.run_context import RunContext, RunOptions
from preflight.engine.run_findings import own_job, run_result, without_verdict
from preflight.engine.store_client import StoreLost
from preflight.engine.store_messages import ForeignWriter
from preflight.engine.verdict import Welcome
from preflight.results import console
from preflight.sdk import prctl

ENDS_ALONE = (Interrupted, StoreLost, NoCoordinator, TorchBroken, Astray, PortInUse, LimitReached, ForeignWriter)
"""What ends a rank without rank 0's verdict, and is no fault of preflight."""


class Supervisor:
    """One rank's whole run."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.loop, self.task, self.identity = context.loop, context.task, context.identity
        self.follower: Participant | None = None
        self._seal = store_seal.of(context.environ)
        self._is_guest = False
        """Whether another process with rank 0 serves the store."""

    # From here to the end of the process

    def run(self) -> NoReturn:
        exit_code = 3
        try:
            exit_code = self._run()
        except Exception:
            self.task.output.report_fault()
            self._tell_of_own_fault()
        finally:
            self.context.screen.close()
            self.loop.end_children()
            if self.context.store_host is not None:
                self.context.store_host.end()
            if self.context.run_folder:
                shutil.rmtree(self.context.run_folder, ignore_errors=True)
            shutdown.leave(exit_code)

    def _run(self) -> int:
        try:
            self._open_store()
            index = hello(self.loop, self.identity, self.context.nonce, self.task.request.arguments)
            store.refuse_other_job(self.loop, self.identity)
            if self.identity.rank != 0:
                return self._follow()
            membership = Membership(self.loop, self.identity, self.context.nonce, index)
            return self._follow() if self._stands_back(membership) else Leader(self.context, membership).run()
        except ENDS_ALONE as why:
            other_jobs_store = isinstance(why, (StoreLost, PortInUse, ForeignWriter))
            if self.context.astray and other_jobs_store:
                return self._end_alone(Astray(self.context.astray))
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
        prctl.adopt_orphans()
        if self.identity.launcher == "local":
            self.loop.store = MemoryStore()
            return
        took_s = torch_import.import_watched(self.loop, self._tell_first) if self.task.needs_torch else 0.0
        serving = store.serve(self.loop, self.identity, self.context.window_s)
        context, self._is_guest = self.context, serving.is_guest
        context.store_host, context.astray = serving.host, serving.astray
        if context.astray:
            context.say(f"preflight: {context.astray}; the other ranks get {context.window_s:.0f} s to hear it")
        try:
            # Others may take as long: rank 0, which serves the store, imports from the same file system.
            store.connect(self.loop, self.identity, context.window_s + took_s, self._seal)
        except StoreLost as why:
            if astray := context.astray or endpoint.goes_nowhere(self.identity):
                raise Astray(astray) from why
            raise

    def _tell_first(self, sentence: str) -> None:
        """One rank of a node speaks for all."""
        if not self.identity.local_rank:
            self.task.output.complain(f"{self.identity.node_name}: {sentence}")

    def _stands_back(self, membership: Membership) -> bool:
        """Whether another process with rank 0 leads: it serves the store, or came before this one."""
        return self._is_guest or membership.is_rival()

    # Every rank but 0

    def _follow(self) -> int:
        wait_s = self.context.window_s + 10.0
        self.loop.world_size = self.identity.world_size
        welcome = self._welcomed(wait_s)
        rank = self.identity.rank if welcome.place == "member" else None
        if rank is not None:
            self.loop.beat_key = store_keys.beat(welcome.run, rank)
        new_slot = partial(self.context.new_slot, welcome.run)
        self.follower = Participant(self.loop, rank, self.context.nonce, welcome, new_slot)
        verdict = self.follower.run()
        return self.context.part(verdict, self.follower.rank)

    def _welcomed(self, within_s: float) -> Welcome:
        try:
            welcome = await_welcome(self.loop, self.identity, self.context.nonce, within_s)
        except ForeignWriter:
            store.refuse_other_job(self.loop, self.identity)  # its rank 0 may have answered, with another secret
            raise
        if welcome.place == FOREIGN:
            store.refuse_other_job(self.loop, self.identity)
        return welcome

    # Without rank 0, or without the store

    def _end_alone(self, why: Exception) -> int:
        """Writes this node's own report: rank 0 will write none."""
        self.loop.begin_ending()
        follower = self.follower
        if isinstance(why, Interrupted | ForeignWriter) and follower is not None:
            is_foreign = isinstance(why, ForeignWriter)
            with contextlib.suppress(StoreLost):
                verdict = follower.leave_early(str(why), "foreign" if is_foreign else "told")
                if verdict is not None and (verdict.exit_code or not is_foreign):
                    return self.context.part(verdict, follower.rank)
        if isinstance(why, NoCoordinator) and follower is not None:
            with contextlib.suppress(StoreLost):
                follower.say_goodbye(str(why), "gave_up")
        if follower is not None and not follower.writes_for_its_node():
            return 3
        results = [run_result([without_verdict(why, self.identity, follower, self.loop.still_s)])]
        run_id = follower.run_id if follower else self.context.nonce[:12]
        report = self.context.build(run_id, own_job(self.identity, follower), results)
        rank = "unknown" if self.identity.rank is None else str(self.identity.rank)
        shutdown.write_verdict(report.exit_code, console.sentence(report))
        self.context.write(report, FactsStore(), f"report.rank-{rank}.json")
        return int(report.exit_code)


def run(task: RunOptions) -> NoReturn:
    """Runs the rank that this process's environment names, until its exit. Raises UsageError."""
    Supervisor(RunContext(task, identity.from_environ(os.environ), os.environ)).run()
