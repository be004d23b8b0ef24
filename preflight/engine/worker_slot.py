"""A rank's worker: its supervisor starts, watches and limits it, and replaces it when it fails."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from preflight.core import facts
from preflight.core.outcome import Outcome
from preflight.engine.child import REFUSED_BEFORE, Child, end_orphans, limit_hit, wait_channel_of
from preflight.engine.order import StepOrder
from preflight.sdk import process_limits
from preflight.sdk.files import settled_state_of, state_of

NewWorker = Callable[[int], Child]
"""Creates the worker of a generation."""


STOPPED_S = 5.0
"""A debugger that attaches stops a process for less time than this."""


class WorkerSlot:
    """Never blocks longer than it takes to end a worker (child.REAP_S at worst)."""

    def __init__(
        self,
        new_worker: NewWorker,
        spare: Callable[[], set[int]],
        clean: Callable[[str], str],
        nccl_log: Callable[[int], str] = lambda _: "",
    ) -> None:
        """`spare` returns the pids of the supervisor's other children, which are not orphans. `clean` removes
        secrets from a text. `nccl_log` returns the end of NCCL's log of the process with this pid."""
        self._nccl_log = nccl_log
        self._new_worker = new_worker
        self._spare = spare
        self._clean = clean
        self._generation = -1
        self._deadline_s = 0.0
        self._started = 0.0
        self._last_look = 0.0
        self._stopped_since: float | None = None
        self._facts: dict[str, str] = {}
        self.worker: Child | None = None
        self.busy = False
        self.outcome: Outcome | None = None
        self.unreaped = False

    def start(self, order: StepOrder) -> None:
        """Sends a check to the worker; starts a new worker if the order is for a new generation."""
        self.outcome = None
        if self.unreaped:
            reason = "an earlier worker of this rank is in uninterruptible sleep and cannot be killed"
            self.outcome = Outcome("skipped", reason=reason, measures_no_more=True)
            return
        if self.worker is not None and order.generation != self._generation:
            self._replace()
        if self.worker is None:
            self._generation = order.generation
            try:
                self.worker = self._new_worker(self._generation)
            except OSError as error:
                limit = limit_hit(error)
                reason = limit or f"no worker could be forked: {error.strerror}"
                self.outcome = Outcome(
                    "raised", reason=reason, slug="no_process" if limit else "", measures_no_more=bool(limit)
                )
                return
        self.worker.forget_log()
        self.worker.channel.send({"step": order.step, "order": order.to_json()})
        self._deadline_s, self._started, self.busy = order.deadline_s, time.monotonic(), True
        self._stopped_since = None

    def tick(self) -> None:
        """Reads what the worker has sent, and ends it at its deadline."""
        worker = self.worker
        if worker is None:
            return
        worker.drain()
        worker.channel.flush()
        if not self.busy:
            return
        message = worker.channel.receive()
        if message is not None:
            self._finish(self._answered(message))
        elif worker.channel.closed or worker.reap() is not None:
            self._finish(self._crashed(worker))
        elif self._seconds() >= self._deadline_s or self._is_stopped(worker):
            self._finish(self._timed_out(worker))

    def _is_stopped(self, worker: Child) -> bool:
        """Whether it was stopped for STOPPED_S: it will not end by itself, so the others need not wait any longer."""
        now = time.monotonic()
        if now - self._last_look >= 1.0:
            self._last_look = now
            stopped = state_of(worker.pid) in ("T", "t")
            self._stopped_since = (self._stopped_since or now) if stopped else None
        return self._stopped_since is not None and now - self._stopped_since >= STOPPED_S

    def abort(self, reason: str) -> None:
        """Ends the check now: rank 0 has seen why it cannot finish."""
        if self.busy and self.worker is not None:
            self._finish(replace(self._timed_out(self.worker), aborted=True, reason=reason))

    def write_dump(self) -> list[dict[str, object]] | None:
        """The recorded collectives of a worker that has measured; asked for when others have failed."""
        if self.worker is None or self.busy:
            return None
        self.worker.write_dump()
        return self.worker.dump().get("groups")

    def deadline_in(self) -> float:
        """Seconds until the running check's deadline."""
        return self._deadline_s - self._seconds() if self.busy else float("inf")

    def take_facts(self, name: str) -> str:
        return self._facts.pop(name)

    def doing(self) -> str | None:
        """What the worker is doing now, for the heartbeat."""
        return self._cleaned(self.worker.page.read().get("doing")) if self.worker is not None else None

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _finish(self, outcome: Outcome) -> None:
        """Where the kernel has refused a process meanwhile, what was measured may be a consequence of that, and so may
        all that would follow."""
        self.busy = False
        printed = "" if outcome.sound else f"{outcome.reason}\n{outcome.log_tail}"
        if outcome.slug != "no_process" and (limit := process_limits.hit(REFUSED_BEFORE, printed)):
            outcome = Outcome("raised", outcome.seconds, limit, "no_process", log_tail=outcome.log_tail)
        self.outcome = replace(outcome, measures_no_more=self.unreaped or outcome.slug == "no_process")

    def _answered(self, message: dict[str, Any]) -> Outcome:
        text = message.pop("facts", None)
        outcome = Outcome.from_message(message)
        named = facts.content_hash(text) if isinstance(text, str) else None
        if outcome is None or (outcome.facts_hash or None) != named or (outcome.kind == "measured" and named is None):
            broken = self._with_dump(
                Outcome("raised", self._seconds(), reason="the check wrote to preflight's channel")
            )
            self._replace()
            return broken
        if text is not None:
            self._facts = {str(outcome.facts_hash): text}
        return outcome if outcome.sound else self._with_dump(outcome)

    def _crashed(self, worker: Child) -> Outcome:
        status = worker.wait_status(1.0)
        outcome = self._with_dump(Outcome("crashed", self._seconds()))
        limit = worker.refused_by(status)
        self._replace()
        if limit:
            return replace(outcome, kind="raised", slug="no_process", reason=limit)
        if status is None:
            return replace(outcome, reason="closed its channel to preflight and kept running; it was killed")
        how = Child.described(status)
        return replace(outcome, reason=f"ended {how}", signal=how.removeprefix("by ") if status < 0 else None)

    def _timed_out(self, worker: Child) -> Outcome:
        state = settled_state_of(worker.pid) or None
        asleep_in = wait_channel_of(worker.pid) if state == "D" else None
        worker.dump_stack()
        worker.write_dump()
        outcome = self._with_dump(Outcome("timed_out", self._seconds(), state=state, reason=asleep_in))
        self._replace()
        return outcome

    def _with_dump(self, outcome: Outcome) -> Outcome:
        """Adds what the worker left: what it last did, its stack, its log."""
        assert self.worker is not None
        page = self.worker.page.read()
        stack = outcome.stack or self.worker.stack()
        dump = self.worker.dump()
        if dump.get("number") != page.get("entered", 0):
            dump = {}  # it continued since, and then crashed
        return replace(
            outcome,
            reason=self._cleaned(outcome.reason),
            doing=self._cleaned(page.get("doing")),
            collective=page.get("collective"),
            stack=self._cleaned(stack),
            log_tail=self._cleaned(self.worker.log_tail()),
            recorded=dump.get("groups"),
            nccl_log=self._cleaned(self._nccl_log(self.worker.pid)),
            ras=self._cleaned(dump.get("ras")),
        )

    def _cleaned(self, text: str | None) -> str | None:
        return self._clean(text) if text else None

    def _replace(self, grace_s: float = 0.0) -> None:
        """Ends the worker; the next check gets a new one."""
        if self.worker is None:
            return
        if not self.worker.end(grace_s):
            self.unreaped = True
        self.worker = None
        end_orphans(self._spare())

    def retire(self) -> None:
        """Ends an idle worker to free what it holds (GPU memory)."""
        if not self.busy:
            self._replace(grace_s=0.5)

    def leave(self) -> None:
        """At the end of the run: lets the worker end by itself, within a short time."""
        if self.worker is not None:
            self.worker.end(grace_s=0.5 if not self.busy else 0.0)
            self.worker = None
        end_orphans(self._spare())
