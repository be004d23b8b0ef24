"""The supervisor: one process a rank that decides and waits, and that nothing under test can hang."""

import contextlib
import json
import os
import shutil
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from preflight import console, ending, launch, report, result, screen, worker
from preflight.alone import Alone
from preflight.child import Child, adopt_orphans
from preflight.child import children as own_children
from preflight.control import Control, Interrupted
from preflight.coordinator import Coordinator
from preflight.courier import Courier, StoreLost, host_store
from preflight.facts import Book
from preflight.forensics import Witness
from preflight.job import Job
from preflight.launch import Launch
from preflight.participant import NoCoordinator, Participant, await_welcome
from preflight.plan import Request
from preflight.process_group import GroupMaker, TorchBroken, choose_backend, import_torch
from preflight.registry import UsageError
from preflight.rendezvous import causes, tcp
from preflight.result import Result
from preflight.roll_call import RollCall, hello, last_verdict
from preflight.run_findings import (
    interrupted,
    own_fault,
    own_job,
    run_finding,
    run_result,
    stood_still,
    store_lost,
    without_verdict,
)
from preflight.scrub import Scrubber
from preflight.seat import Seat
from preflight.watch import StoodStill
from preflight.writers import Output

PATIENCE_S = 30.0
"""For one answer of the store. A lost DNS reply holds its one thread up for 5 s, several in a row longer."""
WRITE_S = 20.0
"""For writing the report, and a second more for every 5 MB of (compressed) facts."""
CAUSE_S = 2.0
"""For an answer, when it is asked why the store was not reached."""
STRANGE_S = 30.0
"""Processes without a place came instead of the missing ranks: how much longer to wait for these, which may still
be importing torch."""
TELL_S = 5.0
"""Of waiting for ranks, before it is told on the screen."""


@dataclass(frozen=True)
class Task:
    """What the command line asked for."""

    request: Request
    command: list[str]
    deadline_s: float
    strict: bool
    output: Output
    needs_torch: bool


class Supervisor:
    """One rank's whole run."""

    def __init__(self, task: Task, here: Launch, environ: Mapping[str, str]) -> None:
        self.task, self.here = task, here
        self.environ = dict(environ)
        self.scrub = Scrubber(environ)
        self.nonce = uuid.uuid4().hex
        self.started_at = time.time()
        self.control = Control(task.deadline_s, here.parent)
        self.screen = screen.Plain(task.output.say, task.output.width)
        self.run_folder = ""
        """A private one, where NCCL's log is to be read."""
        self._store_host: Child | None = None
        self.follower: Participant | None = None
        self._not_ours = own_children()
        """Of a shell that started them in the background and then became this process by exec."""

    @property
    def window_s(self) -> float:
        """For everybody's arrival: importing torch on a thousand nodes from one file system takes minutes."""
        return max(5.0, self.task.deadline_s / 3)

    # From here to the end of the process

    def run(self) -> NoReturn:
        """Never returns."""
        exit_code = 3
        try:
            exit_code = self._run()
        except Exception:
            self.task.output.complain(f"a fault of preflight itself; please report it:\n{traceback.format_exc()}")
            self._tell_of_own_fault()
        finally:
            self.screen.close()
            self.control.end_children()
            if self._store_host is not None:
                self._store_host.end()
            if self.run_folder:
                shutil.rmtree(self.run_folder, ignore_errors=True)
            ending.leave(exit_code)

    def _run(self) -> int:
        try:
            self._open_store()
            index = hello(self.control, self.here, self.nonce)
            if self.here.rank != 0:
                return self._follow()
            roll = RollCall(self.control, self.here, self.nonce, index)
            return self._follow() if roll.is_rival() else self._lead(roll)
        except (Interrupted, StoreLost, NoCoordinator, TorchBroken) as why:
            return self._end_alone(why)

    def _tell_of_own_fault(self) -> None:
        """So that rank 0 does not take it for the machine's."""
        if self.follower is not None:
            with contextlib.suppress(Exception):
                self.control.begin_ending()
                self.follower.say_goodbye("preflight itself failed there", "fault")

    def _open_store(self) -> None:
        adopt_orphans()
        if self.here.launcher == "local":
            self.control.store = Alone()
            return
        if self.task.needs_torch:
            import_torch()
        host, port = self.here.master_addr, self.here.master_port
        if not host or not port:
            raise StoreLost(f"there is no store to go to: MASTER_ADDR is {host!r} and MASTER_PORT {port}")
        if not self.here.agent_store and self.here.rank == 0:
            self._store_host = Child(host_store(host, port), "store host", output=False)
            self._await_store_host(self._store_host)
        patience_s = min(PATIENCE_S, max(5.0, self.task.deadline_s / 4))
        courier = Courier(host, port, self.control.pump, self.window_s, patience_s)
        self.control.store = courier
        try:
            courier.connected()
        except StoreLost as why:
            raise StoreLost(f"{why}{self._cause(host, port)}") from None

    def _cause(self, host: str, port: int) -> str:
        """Torch does not say why it does not reach the store."""
        found, _ = self.control.ask("look", lambda: {**tcp.reach(host, port, CAUSE_S)}, 3 * CAUSE_S)
        why = causes.why(found, host, port) if found else ""  # type: ignore[arg-type]  # a Reach, through JSON
        return f" ({why})" if why else ""

    def _await_store_host(self, host: Child) -> None:
        end = self.control.until(self.window_s)
        while (message := host.channel.receive()) is None:
            if host.channel.closed or time.monotonic() >= end:
                raise StoreLost("the store's own process did not start")
            self.control.pump(0.05)
        if "error" in message:
            raise StoreLost(f"the store cannot be served at port {self.here.master_port}: {message['error']}")

    def _new_seat(self, run_id: str) -> Callable[[Job, Mapping[str, str]], Seat]:
        def make(job: Job, settings: Mapping[str, str]) -> Seat:
            if job.backend == "nccl":
                self.run_folder = tempfile.mkdtemp(prefix="preflight-")
            rank = self.here.rank or 0
            on_node = job.node_of(rank).ranks
            local_rank = self.here.local_rank if self.here.local_rank is not None else on_node.index(rank)

            def new_worker(generation: int) -> Child:
                group = GroupMaker(
                    self.here.master_addr,
                    self.here.master_port or 0,
                    f"{run_id}/group/{generation}",
                    job.backend,
                )
                witness = Witness()
                orders = worker.Orders(
                    job, rank, local_rank, self.environ, settings, group, self.scrub, self.run_folder, witness
                )
                child = Child(worker.serve(orders), "worker", witness=witness)
                if self.control.store:
                    self.control.store.tell("ward", pid=child.pid, folder=self.run_folder)
                return child

            return Seat(new_worker, self._spared, self.scrub.text, partial(worker.nccl_log, self.run_folder, rank))

        return make

    def _spared(self) -> set[int]:
        children = [self._store_host, self.control.store.child if self.control.store else None]
        return {child.pid for child in children if child is not None} | self.control.errand_pids() | self._not_ours

    # Every rank but 0

    def _follow(self) -> int:
        wait_s = self.window_s + 10.0
        welcome = await_welcome(self.control, self.here, self.nonce, wait_s)
        self.control.world_size = self.here.world_size
        rank = self.here.rank if welcome.place == "member" else None
        if rank is not None:
            self.control.beat_key = f"{welcome.run_id}/beat/{rank}"
        self.follower = Participant(self.control, rank, self.nonce, welcome.run_id, self._new_seat(welcome.run_id))
        verdict = self.follower.run()
        return self._part(verdict, self.follower.rank)

    def _part(self, verdict: Mapping[str, Any], rank: int | None, made: report.Report | None = None) -> int:
        self.control.begin_ending()
        ending.write_verdict(verdict["exit_code"], verdict["sentence"], made)
        ending.farewell(self.control, verdict, rank)
        return int(verdict["exit_code"])

    # Rank 0

    def _lead(self, roll: RollCall) -> int:
        self.control.beat_key = f"{roll.run_id}/beat/0"
        self.control.world_size = self.here.world_size
        earlier = self._earlier_verdict()
        if earlier is not None:
            return self._say_again(roll, earlier)
        self.screen = screen.choose(self.task.output.say, self.task.output.width, self.environ)
        self._call_the_roll(roll)
        try:
            self._prepare_output()
            request = self.task.request
            backend, doubt = choose_backend(self.control, request.backend, needs_torch=self.task.needs_torch)
            job = roll.job(backend)
            self.control.seat = self._new_seat(roll.run_id)(job, self.task.request.settings)
            leader = Coordinator(self.control, roll, job, request, self.screen)
            if doubt:
                leader.add_run_finding(run_finding(doubt.severity, "backend", doubt.text, doubt.fix, job.where(0)))
            self.screen.say([console.header(job, self.task.request.selection.level, self.task.deadline_s)])
            self.control.on_turn = self.screen.turn
            self._coordinate(leader)
        except UsageError as error:
            return self._refuse(roll, error)
        return self._conclude(roll, leader)

    def _call_the_roll(self, roll: RollCall) -> None:
        end = self.control.until(self.window_s)
        tell_at = time.monotonic() + TELL_S
        settled: float | None = None
        while not roll.complete and time.monotonic() < end:
            roll.look()
            if settled is None and len(roll.present) + len(roll.strangers) >= roll.world_size:
                settled = time.monotonic()
                end = min(end, settled + STRANGE_S)
            if not roll.complete:
                self.control.pump(0.01)
                if time.monotonic() >= tell_at:
                    self.screen.say([console.waiting(roll.world_size, roll.present, end - time.monotonic())])
                    tell_at = float("inf")

    def _prepare_output(self) -> None:
        output = self.task.output
        if not output.names():
            return
        answer, why = self.control.ask("output", lambda: {"refused": output.refusal(self.started_at)}, 10.0)
        if answer is None:
            raise UsageError(f"{output.names()}: cannot be written (the file system {why.partition(chr(10))[0]})")
        if answer["refused"]:
            raise UsageError(answer["refused"])

    def _coordinate(self, leader: Coordinator) -> None:
        try:
            leader.run()
            return
        except Interrupted as why:
            self.control.begin_ending()
            if not leader.find_the_dead():
                leader.add_run_finding(interrupted(f"rank 0 {why}"))
        except StoreLost as why:
            self.control.begin_ending()
            leader.add_run_finding(store_lost(why, self.here))
        except StoodStill as why:
            self.control.begin_ending()
            leader.add_run_finding(stood_still(0, leader.job, str(why)))
        except UsageError:
            raise
        except Exception as why:
            self.control.begin_ending()
            leader.add_run_finding(own_fault(why))
        leader.results += leader.not_run("the run ended before it")

    def _conclude(self, roll: RollCall, leader: Coordinator) -> int:
        self.control.begin_ending()
        self.screen.close()
        made = self._build(roll.run_id, leader.job, leader.results)
        verdict = ending.content(
            roll.run_id, self.nonce, leader.job, leader.members, made["exit_code"], console.sentence(made),
            self.task.command,
        )  # fmt: skip
        ending.publish(self.control, verdict, self.here.call)
        self._write(made, leader.book, "report.json")
        return self._part(verdict, 0, made)

    def _build(self, run_id: str, job: Job, results: list[Result]) -> report.Report:
        made = report.build(
            run_id=run_id,
            started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started_at)),
            seconds=time.monotonic() - self.control.started,
            command=self.task.command,
            options=self.task.request.settings,
            job=job,
            results=results,
            strict=self.task.strict,
            policy=self.task.request.policy,
        )
        return report.without_secrets(made, self.scrub)

    def _write(self, made: report.Report, book: Book, name: str) -> None:
        """Files first, in a child (a dead file system must not hold up the verdict), then the screen."""
        output = self.task.output
        places = output.places(name)
        if places:
            answer, why = self.control.ask("write", lambda: output.write(made, book, name), WRITE_S + book.size / 5e6)
            failed = why.partition("\n")[0] if answer is None else answer["failed"]
            places = [f"the report could not be written: {failed}"] if failed else places
        output.print_json(made, book)
        if self.here.rank in (0, None):
            lines = console.ending(made, places, self.screen.width)
        else:  # it speaks for its node only
            lines = [console.sentence(made), *places]
        self.screen.say(lines)

    def _refuse(self, roll: RollCall, error: UsageError) -> int:
        """A mistake in the command that only now could be seen: all ranks end with 2."""
        self.task.output.complain(str(error))
        self.control.begin_ending()
        verdict = ending.content(
            roll.run_id, self.nonce, roll.job("gloo"), sorted(roll.present), result.USAGE, str(error),
            self.task.command,
        )  # fmt: skip
        ending.publish(self.control, verdict, self.here.call)
        ending.write_verdict(result.USAGE, str(error))
        ending.farewell(self.control, verdict, 0)
        return result.USAGE

    # A restart of the job

    def _earlier_verdict(self) -> dict[str, Any] | None:
        """A failure stands. After a pass something else has failed, perhaps the machine: it is tested again."""
        if not self.here.restarts:
            return None
        text = self.control.request("fetch", keys=[last_verdict(self.here.call)])[0]
        earlier: dict[str, Any] = json.loads(text or '{"exit_code": 0}')
        stands = earlier["exit_code"] and earlier["command"] == self.task.command
        return earlier if stands else None

    def _say_again(self, roll: RollCall, earlier: dict[str, Any]) -> int:
        """torchrun restarted a job that already has its verdict: nothing has changed."""
        self.screen.say([f"preflight: restarted after its verdict, which stands: {earlier['sentence']}"])
        again = {**earlier, "run": roll.run_id, "attempt": self.nonce}
        roll.put(f"{roll.run_id}/now", again)
        self._call_the_roll(roll)
        return self._part({**again, "living": sorted(roll.present)}, 0)

    # Without rank 0, or without the store

    def _end_alone(self, why: Exception) -> int:
        """A report of our own: rank 0 will write none."""
        self.control.begin_ending()
        follower = self.follower
        if isinstance(why, Interrupted) and follower is not None:
            with contextlib.suppress(StoreLost):
                verdict = follower.leave_early(str(why))
                if verdict is not None:
                    return self._part(verdict, follower.rank)
        if isinstance(why, NoCoordinator) and follower is not None:
            with contextlib.suppress(StoreLost):
                follower.say_goodbye(str(why), "gave_up")
        if follower is not None and not follower.writes_for_its_node():
            return 3
        results = [run_result([without_verdict(why, self.here, follower, self.control.still_s)])]
        made = self._build(follower.run_id if follower else self.nonce[:12], own_job(self.here, follower), results)
        rank = "unknown" if self.here.rank is None else str(self.here.rank)
        ending.write_verdict(made["exit_code"], console.sentence(made))
        self._write(made, Book(), f"report.rank-{rank}.json")
        return int(made["exit_code"])


def run(task: Task) -> NoReturn:
    """The rank that this process's environment names, to its exit. Raises UsageError."""
    Supervisor(task, launch.from_environ(os.environ), os.environ).run()
