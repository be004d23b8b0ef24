"""Rank 0's part: plans the run, has every check measured and judged, and names missing ranks."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from preflight.check import After, Scope
from preflight.core import rank_ranges
from preflight.core.answer import Failure, FailureKind, Returned
from preflight.core.facts import FactsStore
from preflight.core.finding import RUN, Reported
from preflight.core.job import Job
from preflight.core.outcome import Outcome
from preflight.engine import loading, run_findings, store_keys, store_messages
from preflight.engine.child import LimitReached
from preflight.engine.event_loop import SMALL_AT_ONCE, EventLoop, PollPace, StoreLog, poll_every, tell_all
from preflight.engine.heartbeat import Heartbeats
from preflight.engine.judge import JudgeProcess
from preflight.engine.membership import STRANGERS, Membership
from preflight.engine.order import StepOrder
from preflight.engine.process_group import group_timeout
from preflight.engine.store_messages import ForeignWriter
from preflight.engine.turns import Turns
from preflight.hangs import blame
from preflight.planning import plan
from preflight.planning.plan import Request
from preflight.planning.registry import Spec
from preflight.results import judging
from preflight.results.progress import Plain as Screen
from preflight.results.result import Result, groups_of

HEARING_S = 12.0
"""How long after a check's deadline a rank's supervisor may take to end its worker and report it."""
SETTLE_S = 1.5
"""Wait after a loss: a node's ranks leave one after the other, and the next check must not wait for a leaving one."""
LATE_STRANGERS_S = 3.0
"""How long to wait for the answer of a process that came without a place while the checks were running."""
COLLECTIVES_S = 3.0
"""How long ranks that have measured may take to report their collectives, if others failed for an unknown reason."""
BLOCKING = {"fail": "failed", "error": "had an error", "skip": "was skipped"}


class Coordinator:
    """One run, from its members (all of them or not) to its results."""

    def __init__(self, loop: EventLoop, membership: Membership, job: Job, request: Request, screen: Screen) -> None:
        self.loop, self.membership, self.job, self.request = loop, membership, job, request
        self.book = FactsStore()
        self._judge = JudgeProcess(loop, job, self.book, request.settings)
        self.results: list[Result] = []
        self.members = sorted(membership.present)
        self._left_out: list[Result] = []
        """Results of checks that apply to no rank."""
        self._screen = screen
        self._step = 0
        self._generation = 0
        self._heartbeats = Heartbeats(loop, membership)
        self._idle: set[int] = set()
        self._specs: dict[str, Spec] = {}
        self._strangers_judged = 0
        self._running = ""
        self._done: list[StoreLog] = []
        """The outcomes of each step."""
        self._no_time_for: list[str] = []
        self._other_jobs: set[str] = set()
        """Those that were reported."""
        self.reserve_s = min(10.0, max(1.5, 0.1 * loop.deadline_s))
        """The part of the run's deadline kept for the last judge, the report and the end."""

    def run(self) -> None:
        """Runs all checks, in order. Results are in `results`, even if it is interrupted midway."""
        self.loop.refuse_changed()  # before a rank is named that could not read its welcome
        if self.job.missing:
            waited_s, strangers = time.monotonic() - self.loop.started, self.membership.strangers.values()
            master_addr = self.membership.master_addr
            for finding in run_findings.never_came(self.job, waited_s, strangers, master_addr):
                self.add_run_finding(finding)
        self.report_other_jobs()
        for result in self.results:
            self._screen.ended(result)
        specs, broken = loading.load(self.loop, self.job, self.request)
        for result in broken:
            self._add(result)
        self._specs = {spec.id: spec for spec in plan.choose(specs, self.request)}
        self._screen.planned(list(self._specs))
        self._screen.say([f"{spec.id}: {text}" for spec in self._specs.values() for text in spec.old_names])
        self._turns = Turns(self._specs, self.results)
        for spec in self._turns:
            why_not = self._why_not(spec)
            if why_not is not None:
                self._add(Result(spec.id, spec.title, spec.plan.facts_version, skipped=why_not))
            elif self._turns.is_called_for(spec) or self.request.selection.asks_for(spec.id):
                result = self._check(spec)
                if result.applies or spec.id in self.request.selection.ids:
                    self._add(result)
                else:
                    self._left_out.append(result)
                    self._screen.left_out(spec.id)
        self._judge_late_strangers()
        self._refuse_foreign()
        if self._no_time_for:
            self.add_run_finding(run_findings.no_time(self._no_time_for, self.loop.deadline_s))

    def _add(self, result: Result) -> None:
        self.results.append(result)
        self._screen.ended(result)

    def _why_not(self, spec: Spec) -> str | None:
        if spec.left_out:
            return spec.left_out
        results = {result.check: result for result in (*self._left_out, *self.results)}
        for read in spec.plan.ids(After.READS):
            if read in self.request.sources and read not in results and read not in self._specs:
                return f"needs {read}, which was not selected"
        for need in spec.plan.ids(After.NEEDS):
            if need not in results:
                return f"needs {need}, which was not selected"
            status = results[need].status
            is_whole = status != "skip" or not results[need].is_measured
            if status in BLOCKING and is_whole and self._still_matters(results[need]):
                return f"needs {need}, which {BLOCKING[status]}"
        for cause in spec.plan.ids(After.UNLESS_FAILED):
            if cause in results and results[cause].status == "fail" and self._still_matters(results[cause]):
                return f"{cause} failed, and this check would fail for the same reason"
        if not self._who(spec):
            return "no rank is left that could measure it"
        left = self.loop.left - self.reserve_s
        if left < spec.plan.estimate_s:
            self._no_time_for.append(spec.id)
            return (
                f"{max(0.0, left):.1f} s are left of the run's deadline, and it takes about {spec.plan.estimate_s:g} s"
            )
        return None

    def _still_matters(self, need: Result) -> bool:
        """False if only ranks that are no longer members failed in it."""
        culprits = need.culprits(self.job)
        return not culprits or bool(culprits & set(self.members))

    # One check

    def _who(self, spec: Spec) -> list[int]:
        able = [rank for rank in self.members if rank not in self._idle]
        return self.job.one_per_node(able) if spec.plan.scope is Scope.NODE else able

    def _check(self, spec: Spec) -> Result:
        self._running = spec.id
        self._screen.running(spec.id, spec.plan.estimate_s)
        began_s = time.monotonic() - self.loop.started
        who = self._who(spec)
        outcomes = self._with_facts(spec.id, self._measure(spec, who))
        self._idle |= {rank for rank, outcome in outcomes.items() if outcome.measures_no_more}
        before = len(self.members)
        if not all(outcome.sound for outcome in outcomes.values()):
            self.loop.refuse_changed()  # before a rank is named that could not read what it was told
        self._let_go(outcomes)
        if len(self.members) < before or not all(outcome.sound for outcome in outcomes.values()):
            self._generation += 1  # the process group is broken, or has lost a member
        return replace(self._judged(spec, outcomes), began_s=began_s)

    def _let_go(self, outcomes: Mapping[int, Outcome]) -> None:
        """Removes lost members; those whose outcome does not say that they are lost get their own finding."""
        members = set(self.members)
        settled = self.loop.until(SETTLE_S)
        while members & set(self._heartbeats.lost) and (
            time.monotonic() < settled or self._heartbeats.suspects(members)
        ):
            self._heartbeats.look(members)
            self.loop.pump(0.1)
        for rank in sorted(members & set(self._heartbeats.lost)):
            if rank not in outcomes or outcomes[rank].kind != "lost":
                self.add_run_finding(self._gone(rank))
        self.members = [rank for rank in self.members if rank not in self._heartbeats.lost]

    def _gone(self, rank: int) -> Reported:
        finding = run_findings.gone(rank, self.job, self._heartbeats.lost[rank])
        if rank in self._heartbeats.dragged_along:
            return replace(finding, severity="info", message=f"{finding.message}: it was lost with its node")
        return finding

    def _judged(self, spec: Spec, outcomes: Mapping[int, Outcome]) -> Result:
        if STRANGERS in spec.plan.after:
            self._strangers_judged = len(self.membership.strangers)
        self.membership.note_strangers(self.book)
        answer: Returned | Failure = Returned(judging.NOTHING)
        if judging.is_judged(spec.plan, outcomes, bool(self.book.ranks(spec.id))):
            answer = self._judge.ask(spec, outcomes, groups_of(self.results))
            if isinstance(answer, Failure) and answer.kind is FailureKind.NO_PROCESS:
                raise LimitReached(answer.text)
        judged = judging.result_of(spec, outcomes, self.job, answer, self.request.policy)
        return judged.asked_for() if spec.id in self.request.selection.ids else judged

    def _measure(self, spec: Spec, who: list[int]) -> dict[int, Outcome]:
        deadline_s = min(spec.deadline_s, self._turns.share_s(spec, self.loop.left - self.reserve_s))
        self._step += 1
        self._generation += spec.fresh
        level = self.request.selection.level
        order = StepOrder(self._step, spec.id, tuple(who), self._generation, deadline_s, spec.fresh, level)
        done = StoreLog(self.loop, store_keys.done(self.membership.run_id, self._step), "done")
        self._done.append(done)
        self._say("step", order=order.to_json())
        slot = self.loop.slot
        assert slot is not None
        if spec.fresh:
            slot.retire()
        if 0 in who:
            slot.start(order)
        outcomes = self._gather(spec, who, done, deadline_s)
        if spec.plan.scope is Scope.WORLD and blame.needs_more_evidence(outcomes):
            self._ask_those_who_measured(outcomes)
        if deadline_s < spec.plan.enough * spec.deadline_s:
            patience_s = group_timeout(deadline_s).total_seconds()
            outcomes = {rank: outcome.cut_short_by_the_run(patience_s) for rank, outcome in outcomes.items()}
        if 0 in outcomes and (name := outcomes[0].facts_hash):
            self.book.add_text(name, slot.take_facts(name))
        return dict(sorted(outcomes.items()))

    def _gather(self, spec: Spec, who: list[int], done: StoreLog, deadline_s: float) -> dict[int, Outcome]:
        """The outcome of every rank asked; lost ranks get theirs from here."""
        outcomes: dict[int, Outcome] = {}
        start = time.monotonic()
        end = min(start + deadline_s + HEARING_S, self.loop.end_at - 0.6 * self.reserve_s)
        trouble_at: float | None = None
        pace = PollPace(self.job.world_size)
        self._heartbeats.begin()
        while missing := set(who) - set(outcomes):
            if self.loop.slot and 0 in missing and self.loop.slot.outcome:
                outcomes[0] = self.loop.slot.outcome
                pace.restart()  # the others will not be long
            for _, entry in done.new() if pace.is_due() else ():
                self._hear(entry, who, outcomes)
                pace.restart()
            self._heartbeats.look(set(self.members))
            if time.monotonic() >= end:
                self._heartbeats.lose(
                    missing - set(outcomes), f"its supervisor did not answer within {end - start:.0f} s"
                )
            for rank in missing & set(self._heartbeats.lost) - set(outcomes):
                outcomes[rank] = self._heartbeats.outcome_of(rank)
            if spec.plan.scope is Scope.WORLD and any(o.kind != "measured" for o in outcomes.values()):
                trouble_at = trouble_at or time.monotonic()
                if time.monotonic() - trouble_at > max(3.0, 0.1 * deadline_s):
                    self._abort(outcomes)
                    trouble_at = float("inf")
            if set(who) - set(outcomes):
                self.loop.pump(pace.pause)
        return outcomes

    def _hear(self, entry: Mapping[str, Any], who: list[int], outcomes: dict[int, Outcome]) -> None:
        """Takes one outcome of each rank that was asked. One that was given up may still answer. Raises
        ForeignWriter."""
        rank = entry["rank"]
        if rank in who and rank not in (0, *outcomes):
            outcomes[rank] = Outcome.from_json(entry["outcome"])
        elif rank not in who or rank == 0 or outcomes[rank].kind != "lost":
            raise ForeignWriter(f"step {self._step} has an outcome of rank {rank}, expected none or one")

    def _refuse_foreign(self) -> None:
        """At the end: what could not be known before. A rank answers each step once, so where something else answered
        for it its own outcome came second (one that was given up may still answer). Raises ForeignWriter."""
        self._heartbeats.refuse_foreign()
        more = self.loop.fetch([log.next_key for log in self._done], SMALL_AT_ONCE)
        for log, text in zip(self._done, more, strict=True):
            if text is not None and not self._heartbeats.lost.keys() & self.membership.present.keys():
                store_messages.foreign(log.next_key, text, "one outcome per rank")
        self.loop.refuse_changed()

    def _ask_those_who_measured(self, outcomes: dict[int, Outcome]) -> None:
        """Asks the ranks that measured for their collectives: one may have skipped the one in which the others wait."""
        missing = {rank for rank, outcome in outcomes.items() if outcome.kind == "measured"}
        if not missing:
            return
        log = StoreLog(self.loop, store_keys.collectives(self.membership.run_id, self._step), "collectives")
        self._say("tell_collectives")
        end = self.loop.until(COLLECTIVES_S)
        while missing and time.monotonic() < end:
            replies = [entry for _, entry in log.new() if entry["rank"] != 0]
            if 0 in missing and self.loop.slot:
                replies.append({"rank": 0, "recorded": self.loop.slot.write_dump()})
            for rank, recorded in ((entry["rank"], entry["recorded"]) for entry in replies):
                if rank in missing:
                    outcomes[rank] = replace(outcomes[rank], recorded=recorded)
                    missing.discard(rank)
            self.loop.pump(poll_every(self.job.world_size) if missing else 0.0)

    def _abort(self, outcomes: Mapping[int, Outcome]) -> None:
        """Ends the check early: the remaining ranks wait for ranks that will not come."""
        unsound = [rank for rank, outcome in outcomes.items() if outcome.kind != "measured"]
        reason = f"{rank_ranges.ranks(unsound)} could not continue, and this rank did not finish without"
        self._say("abort", step=self._step, reason=reason)
        if self.loop.slot:
            self.loop.slot.abort(reason)

    def _say(self, event: str, **content: Any) -> None:
        """Publishes what every rank is to do now: one key suffices, since rank 0 waits for all before it continues."""
        if self._step == 1 and event == "step":
            self._publish_the_job()
        self.loop.refuse_changed(store_keys.now(self.membership.run_id))  # else a forged order would go unnoticed
        tell_all(self.loop, self.membership.run_id, {"event": event, "step": self._step, **content})

    def _publish_the_job(self) -> None:
        """A rank gets the processes of its own node only: if each read of all others, the store's one thread would send
        gigabytes in a large world."""
        run_id, present = self.membership.run_id, self.membership.present
        for node in self.job.nodes:
            joined = {rank: present[rank] for rank in node.ranks if rank in present}
            processes = {
                str(rank): {"pid": process.about["pid"], "nonce": process.nonce, "pids": process.about["pids"]}
                for rank, process in joined.items()
            }
            self.membership.put(store_keys.processes(run_id, node.node_rank), processes)
        self.membership.put(store_keys.job(run_id), {"job": self.job.to_json()})

    def _with_facts(self, check: str, outcomes: dict[int, Outcome]) -> dict[int, Outcome]:
        """Fetches the facts into the book. A rank whose facts did not arrive counts as not measured."""
        self._fetch_facts(check, outcomes)
        gone = Outcome("raised", slug="bad_facts", reason="its facts did not arrive at rank 0")
        arrived = set(self.book.ranks(check))
        return {r: o if o.kind != "measured" or r in arrived else gone for r, o in outcomes.items()}

    def _fetch_facts(self, check: str, outcomes: Mapping[int, Outcome]) -> None:
        names = {rank: outcome.facts_hash for rank, outcome in outcomes.items() if outcome.facts_hash}
        wanted = sorted({name for name in names.values() if name not in self.book})
        keys = [store_keys.facts(self.membership.run_id, name) for name in wanted]
        for name, key, text in zip(wanted, keys, self.loop.fetch(keys), strict=True):
            if text is not None:
                self.book.add_text(name, store_messages.facts_text(text, name, key))
        if keys:
            self.loop.request("delete", keys=keys)
        for rank, name in names.items():
            if name in self.book:
                self.book.note(check, rank, name)

    def not_run(self, why: str) -> list[Result]:
        """The checks that an interruption left undone, as skips."""
        done = {result.check for result in self.results}
        left = [spec for spec in self._specs.values() if spec.id not in done]
        begun = f"{why.removesuffix(' before it')} while it was measured"
        return [Result(s.id, s.title, skipped=begun if s.id == self._running else why) for s in left]

    def find_the_dead(self, why: str) -> bool:
        """When this supervisor is told to end: whether a dead rank on the same node is the reason. A rank that left
        because of the same (`why`: Ctrl-C reaches the whole job) is not: it only heard of it first."""
        self._heartbeats.find_the_dead(set(self.members))
        lost = self._heartbeats.lost_otherwise(why)
        fresh = [rank for rank in self.members if rank in lost]
        for rank in fresh:
            self.add_run_finding(self._gone(rank))
        self.members = [rank for rank in self.members if rank not in fresh]
        return bool(fresh or self.membership.dead_beside_me(lost))

    def add_run_finding(self, finding: Reported) -> None:
        """Adds a finding to the run's own result, which comes first."""
        if not self.results or self.results[0].check != RUN:
            self.results.insert(0, run_findings.run_result([]))
        self.results[0].findings.extend(self.request.policy.applied([finding], self.job))

    def report_other_jobs(self) -> None:
        """Each other job that came to this one's port, once."""
        others = self.membership.other_jobs()
        for name in others.keys() - self._other_jobs:
            self._other_jobs.add(name)
            self.add_run_finding(run_findings.port_in_use(others[name]))

    def _judge_late_strangers(self) -> None:
        """Judges strangers again: a second process with a taken rank may appear after its check was judged."""
        self.membership.look(late=True)
        end = self.loop.until(LATE_STRANGERS_S)
        while self.membership.strangers_may_answer() and time.monotonic() < end:
            self.loop.pump(0.05)
            self.membership.look(late=True)
        self.report_other_jobs()
        if len(self.membership.strangers) == self._strangers_judged:
            return
        for place, result in enumerate(self.results):
            spec = self._specs.get(result.check)
            if spec is not None and STRANGERS in spec.plan.after and result.outcomes:
                self.results[place] = replace(self._judged(spec, result.outcomes), began_s=result.began_s)
                self._screen.ended(self.results[place])
