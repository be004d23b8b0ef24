"""Rank 0's part around the checks: which ranks joined, what is refused, and the verdict that all ranks end with."""

import time
from dataclasses import replace

from preflight.core import rank_ranges
from preflight.core.answer import Failure, FailureKind
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.core.record import BASELINE
from preflight.engine import baseline, shutdown, store_keys, store_messages
from preflight.engine.child import LimitReached
from preflight.engine.coordinator import Coordinator
from preflight.engine.event_loop import Interrupted, tell_all
from preflight.engine.heartbeat import StoodStill
from preflight.engine.membership import Membership
from preflight.engine.process_group import choose_backend
from preflight.engine.run_context import RunContext
from preflight.engine.run_findings import (
    astray,
    foreign_writer,
    interrupted,
    no_process,
    own_fault,
    stalled,
    store_lost,
)
from preflight.engine.store_client import StoreLost
from preflight.engine.store_messages import ForeignWriter
from preflight.engine.verdict import RunVerdict
from preflight.errors import UsageError
from preflight.results import console, progress, result

STRANGE_S = 30.0
"""How much longer to wait for missing ranks if processes without a place came instead: the ranks may still be importing
torch."""
TELL_S = 5.0
"""How long to wait for ranks before the screen says so."""


class Leader:
    """A run, from the first rank that joins to its verdict."""

    def __init__(self, context: RunContext, membership: Membership) -> None:
        self.context, self.membership = context, membership
        self.loop, self.task, self.identity = context.loop, context.task, context.identity

    def run(self) -> int:
        """Runs it all and returns the exit code."""
        self.loop.beat_key = store_keys.beat(self.membership.run_id, 0)
        self.loop.world_size = self.identity.world_size
        earlier = self._earlier_verdict()
        if earlier is not None:
            return self._say_again(earlier)
        self.context.screen = progress.choose(
            self.context.say, self.task.output.width, self.context.environ, self.task.detail
        )
        self._await_members()
        if self.context.astray:
            return self._conclude(self._without_checks(astray(self.context.astray)))
        try:
            self._refuse_other_arguments()
            request = self.task.request
            backend, doubt = choose_backend(self.loop, request.backend, needs_torch=self.task.needs_torch)
            job = self.membership.job(backend)
            coordinator = Coordinator(self.loop, self.membership, job, request, self.context.screen)
            self._keep_baseline(coordinator)
            self._prepare_output()  # which clears its folder: the baseline may lie there
            self.loop.slot = self.context.new_slot(self.membership.run_id, job)
            if doubt:
                coordinator.add_run_finding(replace(doubt, where=job.where(0)))
            self.context.screen.say([console.header(job, self.task.request.selection.level, self.task.deadline_s)])
            self.loop.on_turn = self.context.screen.turn
            self._coordinate(coordinator)
        except UsageError as error:
            return self._refuse(error)
        except LimitReached as why:
            return self._conclude(self._without_checks(no_process(str(why), {"node": self.identity.node_name})))
        return self._conclude(coordinator)

    def _keep_baseline(self, coordinator: Coordinator) -> None:
        """Its figures are kept beside the run's facts: the report can then be judged again on its own."""
        path, sources = self.task.request.baseline, self.task.request.sources
        figures, finding = baseline.read(self.loop, path, coordinator.job, sources) if path else ("", None)
        if finding:
            coordinator.add_run_finding(finding)
        if figures:
            coordinator.book.add(BASELINE, [0], figures)

    def _without_checks(self, finding: Reported) -> Coordinator:
        """A run that ends with this finding: the job cannot start, so nothing is measured."""
        job = self.membership.job("gloo")
        coordinator = Coordinator(self.loop, self.membership, job, self.task.request, self.context.screen)
        coordinator.add_run_finding(finding)
        return coordinator

    def _await_members(self) -> None:
        end = self.loop.until(self.context.window_s)
        tell_at = time.monotonic() + TELL_S
        settled: float | None = None
        membership = self.membership
        while not membership.complete and time.monotonic() < end:
            membership.look()
            if settled is None and len(membership.present) + len(membership.strangers) >= membership.world_size:
                settled = time.monotonic()
                end = min(end, settled + STRANGE_S)
            if not membership.complete:
                self.loop.pump(0.01)
                if time.monotonic() >= tell_at:
                    left_s = end - time.monotonic()
                    self.context.screen.say([console.waiting(membership.world_size, membership.present, left_s)])
                    tell_at = float("inf")

    def _prepare_output(self) -> None:
        output = self.task.output
        if not output.names():
            return
        answer = self.loop.ask(lambda: {"refused": output.refusal(self.context.started_at)}, 10.0)
        if isinstance(answer, Failure) and answer.kind is FailureKind.NO_PROCESS:
            raise LimitReached(answer.text)
        if isinstance(answer, Failure):
            raise UsageError(f"{output.names()}: cannot be written (the file system {answer.text})")
        if answer.value["refused"]:
            raise UsageError(answer.value["refused"])

    def _refuse_other_arguments(self) -> None:
        """Each rank takes its checks and settings from its own command line, not from the store. Raises UsageError."""
        if others := self.membership.with_other_arguments():
            text = f"{rank_ranges.ranks(others)} and rank 0 were given different plugins or settings"
            raise UsageError(f"{text}: give all ranks the same --plugin, --set, --config, --model, --data and the like")

    def _coordinate(self, coordinator: Coordinator) -> None:
        try:
            coordinator.run()
            return
        except Interrupted as why:
            self.loop.begin_ending()
            if not coordinator.find_the_dead(str(why)):
                coordinator.add_run_finding(interrupted(f"rank 0 {why}"))
        except LimitReached as why:
            self.loop.begin_ending()
            coordinator.add_run_finding(no_process(str(why), {"node": coordinator.job.node_of(0).node}))
        except StoreLost as why:
            self.loop.begin_ending()
            coordinator.add_run_finding(store_lost(why, self.identity))
        except ForeignWriter as why:
            self.loop.begin_ending()
            coordinator.report_other_jobs()  # that may well be what has written
            coordinator.add_run_finding(foreign_writer(why, self.identity))
        except StoodStill as why:
            self.loop.begin_ending()
            coordinator.add_run_finding(stalled(0, coordinator.job, str(why)))
        except UsageError:
            raise
        except Exception as why:
            self.loop.begin_ending()
            coordinator.add_run_finding(own_fault(why))
        coordinator.results += coordinator.not_run("the run ended before it")

    def _conclude(self, coordinator: Coordinator) -> int:
        self.loop.begin_ending()
        self.context.screen.close()
        for finding in self._compared(coordinator):
            coordinator.add_run_finding(finding)
        report = self.context.build(self.membership.run_id, coordinator.job, coordinator.results)
        verdict = self._publish(coordinator.job, coordinator.members, report.exit_code, console.sentence(report))
        self.context.write(report, coordinator.book, "report.json")
        return self.context.part(verdict, 0, report)

    def _compared(self, coordinator: Coordinator) -> list[Reported]:
        """`--baseline auto` and `--profile FILE`. The run's entry is made once, first for what needs no history: that
        may hang."""
        sinks, request, entry = self.task.sinks, self.task.request, ""
        if not (sinks.baseline or request.profile):
            return []
        report = self.context.build(self.membership.run_id, coordinator.job, coordinator.results)
        of_profile, of_history = list[Reported](), list[Reported]()
        if request.profile:
            of_profile, entry = baseline.compared_with_profile(self.loop, request, report, coordinator.book)
        if sinks.baseline:
            of_history, entry = baseline.compared_with_history(
                self.loop, sinks.history or "", report, coordinator.book, request.sources, entry
            )
        self.context.entry = entry
        return of_history + of_profile

    def _refuse(self, error: UsageError) -> int:
        """Ends all ranks with exit code 2: a mistake in the command that could be seen only now."""
        self.task.output.complain(str(error))
        self.loop.begin_ending()
        verdict = self._publish(self.membership.job("gloo"), sorted(self.membership.present), result.USAGE, str(error))
        shutdown.write_verdict(result.USAGE, str(error))
        shutdown.farewell(self.loop, verdict, 0)
        return result.USAGE

    def _publish(self, job: Job, living: list[int], exit_code: int, sentence: str) -> RunVerdict:
        """Publishes what all ranks need to end."""
        verdict = RunVerdict(
            self.membership.run_id, self.context.nonce, job, living, len(self.membership.strangers), exit_code,
            sentence, self.task.command, self.membership.proof(exit_code),
        )  # fmt: skip
        shutdown.publish(self.loop, verdict, self.identity.call)
        return verdict

    # A restart of the job

    def _earlier_verdict(self) -> RunVerdict | None:
        """The failure that a restart repeats. After a pass the machine is tested again: something else has failed."""
        if not self.identity.restarts:
            return None
        key = store_keys.last_verdict(self.identity.call)
        text = self.loop.request("fetch", keys=[key])[0]
        if text is None:
            return None
        earlier = RunVerdict.from_message(store_messages.read("verdict", text, key), key)
        stands = earlier.exit_code and earlier.command == self.task.command
        return earlier if stands else None

    def _say_again(self, earlier: RunVerdict) -> int:
        """Repeats the verdict: torchrun restarted a job that already has one, and nothing has changed."""
        self.context.screen.say([f"preflight: restarted after its verdict, which stands: {earlier.sentence}"])
        proof = self.membership.proof(earlier.exit_code)
        again = replace(earlier, run=self.membership.run_id, attempt=self.context.nonce, proof=proof)
        tell_all(self.loop, self.membership.run_id, again.to_json())
        self._await_members()
        living, strangers = sorted(self.membership.present), len(self.membership.strangers)
        return self.context.part(replace(again, living=living, strangers=strangers), 0)
