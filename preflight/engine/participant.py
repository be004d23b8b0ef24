"""The part of every rank but 0: does what rank 0 says until the verdict comes or rank 0 is gone."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from preflight.core import rank_ranges
from preflight.core.job import Job
from preflight.core.outcome import LOG_TAIL, Outcome
from preflight.engine import store_keys, store_messages
from preflight.engine.child import is_alive
from preflight.engine.event_loop import LOOK_S, EventLoop, beat_every, poll_every
from preflight.engine.heartbeat import SILENT_S, Silence
from preflight.engine.identity import LaunchIdentity, namespace
from preflight.engine.order import StepOrder
from preflight.engine.store_messages import ForeignWriter
from preflight.engine.verdict import RunVerdict, Welcome
from preflight.engine.worker_slot import WorkerSlot
from preflight.hangs.collective_recorder import Group

LOG_SHARE = 16 * 1024 * 1024
"""Bytes of stacks and output that rank 0 takes from all ranks for one check; and as many of NCCL's logs and RAS."""
RECORDED_SHARE = 8 * 1024 * 1024
"""Bytes of recorded collectives that rank 0 takes from all ranks for one check."""
OVERDUE_S = 15.0
"""How long after the run's deadline a rank gives up on rank 0, which the kernel ends a little later."""
LAST_LOOK_S = 3.0
"""How long a rank waits after a SIGTERM for rank 0 to say what happened."""


class NoCoordinator(Exception):  # noqa: N818 -- an event
    """Rank 0 does not answer, or no longer does. Its text says which."""


def await_welcome(loop: EventLoop, launch: LaunchIdentity, nonce: str, within_s: float) -> Welcome:
    """Raises NoCoordinator and ForeignWriter."""
    start, end = time.monotonic(), loop.until(within_s)
    while time.monotonic() < end:
        if loop.has_come(store_keys.welcome(nonce), end - time.monotonic()):
            key = store_keys.welcome(nonce)
            welcome = Welcome.read(loop.request("fetch", keys=[key])[0] or "", key)
            entry = json.dumps({"nonce": nonce, "rank": launch.rank})
            loop.request("append", key=store_keys.here(welcome.run), value=entry)
            return welcome
    raise NoCoordinator(
        f"rank 0 did not answer within {time.monotonic() - start:.0f} s: it never started, or cannot reach the store"
    )


def within_share(recorded: list[Group] | None, world: int) -> list[Group] | None:
    """The end of what was recorded, within a rank's share: first drops the oldest calls of each group, then groups."""
    share = max(1024, RECORDED_SHARE // world)
    while recorded and len(json.dumps(recorded)) > share:
        shorter = [{**group, "calls": group["calls"][-max(1, len(group["calls"]) // 2) :]} for group in recorded]
        recorded = shorter if shorter != recorded else recorded[1:]
    return recorded


class Participant:
    """One rank's run. `verdict` is what rank 0 published, once it has."""

    def __init__(
        self,
        loop: EventLoop,
        rank: int | None,
        nonce: str,
        welcome: Welcome,
        new_slot: Callable[[Job], WorkerSlot],
    ) -> None:
        """A process without a place in the run (`rank` is None) only waits for the verdict."""
        self.loop, self.rank, self.run_id = loop, rank, welcome.run
        self._proofs = welcome.proofs
        self.job: Job | None = None
        self.verdict: RunVerdict | None = None
        self._nonce = nonce
        self._new_slot = new_slot
        self._pids: dict[int, int] = {}
        self._step = 0
        self._told_step = 0
        self._silence = Silence(loop.world_size)
        self._news = 0
        """How often this rank has heard that rank 0 says something else."""
        self._next_look = 0.0
        self._last_watch = 0.0
        self._last_beat = 0
        """The number of rank 0's last sign of life."""

    def run(self) -> RunVerdict:
        """Runs until the verdict, and returns it. Raises NoCoordinator if rank 0 falls silent."""
        while self.verdict is None:
            if self.loop.left < -OVERDUE_S:
                raise NoCoordinator(f"rank 0 lives, but gave no verdict within {OVERDUE_S:.0f} s of the run's deadline")
            if time.monotonic() >= self._next_look:
                self._look()
                self._next_look = time.monotonic() + self._look_every
            self._watch_rank_0()
            slot = self.loop.slot
            if slot is not None and slot.outcome is not None:
                self._report(slot, slot.outcome)
            if slot is not None and slot.busy:
                self.loop.pump(max(0.0, self._next_look - time.monotonic()))
            else:
                self._await_news()
        return self.verdict

    @property
    def _look_every(self) -> float:
        """Seconds: a rank that measures may have to abort, and one that waits is told."""
        world = self.loop.world_size
        is_busy = self.loop.slot is not None and self.loop.slot.busy
        return max(LOOK_S, poll_every(world)) if is_busy else beat_every(world)

    def _await_news(self) -> None:
        if self.loop.has_come(f"{store_keys.news(self.run_id)}/{self._news + 1}"):
            self._news += 1
            self._next_look = 0.0

    def _look(self) -> None:
        event = self._event()
        if isinstance(event, RunVerdict):
            self.verdict = event
        elif event["event"] == "abort" and event["step"] == self._step and self.loop.slot:
            self.loop.slot.abort(event["reason"])
        elif event["event"] == "tell_collectives" and event["step"] == self._step > self._told_step:
            self._tell_collectives()
        elif event["event"] == "step" and event["step"] > self._step:
            self._step = event["step"]
            self._begin(event["order"])

    def _event(self) -> RunVerdict | dict[str, Any]:
        """What rank 0 says now. Raises ForeignWriter for what it cannot have said."""
        key = store_keys.now(self.run_id)
        text = self.loop.request("fetch", keys=[key])[0]
        if text is None and self._step == 0:
            return {"event": "nothing"}
        event = store_messages.event(text or "", key)
        if event["event"] == "verdict":
            return self._believed(RunVerdict.from_message(event, key), key)
        if event["step"] < self._step:
            raise ForeignWriter(f"{key} holds step {event['step']} after step {self._step}")
        return event

    def _believed(self, verdict: RunVerdict, key: str) -> RunVerdict:
        """A verdict is rank 0's if its proof has the hash that rank 0 said in its welcome. Raises ForeignWriter."""
        proofs = [*self._proofs[verdict.exit_code : verdict.exit_code + 1]]
        if verdict.run != self.run_id or proofs != [store_messages.proof_of(verdict.proof)]:
            raise ForeignWriter(f"{key} holds a verdict with exit code {verdict.exit_code} that rank 0 did not give")
        return verdict

    def _begin(self, data: Mapping[str, Any]) -> None:
        key = store_keys.now(self.run_id)
        store_messages.members(data["members"], key)
        order = StepOrder.from_json(self._step, data)
        if self.rank in order.members and self.loop.slot is not None and self.loop.slot.busy:
            raise ForeignWriter(f"{key} holds step {self._step}, while this rank still measures the one before")
        if order.fresh and self.loop.slot is not None:
            self.loop.slot.retire()
        if self.rank not in order.members:
            return
        if self.job is None:
            self._learn_the_job()
        if self.loop.slot is not None:
            self.loop.slot.start(order)

    def _learn_the_job(self) -> None:
        key = store_keys.job(self.run_id)
        about = store_messages.read("job", self.loop.request("fetch", keys=[key])[0] or "", key)
        self.job = store_messages.job(about["job"], key)
        assert self.rank is not None, "a process without a place is in no step"
        node = self.job.node_of(self.rank)
        key = store_keys.processes(self.run_id, node.node_rank)
        processes = store_messages.read("processes", self.loop.request("fetch", keys=[key])[0] or "", key)
        if not {str(self.rank)} <= set(processes) <= set(map(str, node.ranks)):
            raise ForeignWriter(f"{key} holds the processes of other ranks than {rank_ranges.to_text(node.ranks)}")
        mine = namespace("pid")
        self._pids = {int(rank): process["pid"] for rank, process in processes.items() if process["pids"] == mine}
        if processes[str(self.rank)]["nonce"] != self._nonce:
            self.rank = None  # another process with this rank came first
            return
        self.loop.slot = self._new_slot(self.job)

    def _tell_collectives(self) -> None:
        """Sends the recorded collectives of a rank that has measured: others wait in one, or failed in it."""
        self._told_step = self._step
        recorded = self.loop.slot.write_dump() if self.loop.slot else None
        entry = {"rank": self.rank, "recorded": within_share(recorded, self.loop.world_size)}
        self.loop.request("append", key=store_keys.collectives(self.run_id, self._step), value=json.dumps(entry))

    def _report(self, slot: WorkerSlot, outcome: Outcome) -> None:
        """Sends the facts first, under their content hash, then the outcome that refers to them."""
        slot.outcome = None
        if outcome.facts_hash:
            key = store_keys.facts(self.run_id, outcome.facts_hash)
            self.loop.request("put_once", key=key, value=slot.take_facts(outcome.facts_hash))
        world = self.loop.world_size
        share = max(1024, min(LOG_TAIL, LOG_SHARE // 2 // world))
        asked_for = len(self.job.node_of(self.rank).ranks) if self.job and self.rank is not None else 1
        outcome = replace(
            outcome,
            log_tail=(outcome.log_tail or "")[-share:],
            stack=(outcome.stack or "")[:share],
            nccl_log=(outcome.nccl_log or "")[-share:],
            ras=(outcome.ras or "")[: share * asked_for],
            recorded=within_share(outcome.recorded, world),
        )
        entry = json.dumps({"rank": self.rank, "outcome": outcome.to_json()})
        self.loop.request("append", key=store_keys.done(self.run_id, self._step), value=entry)

    def _watch_rank_0(self) -> None:
        now = time.monotonic()
        if now - self._last_watch < beat_every(self.loop.world_size):
            return
        self._last_watch = now
        key = store_keys.beat(self.run_id, 0)
        beat = self.loop.request("fetch", keys=[key])[0]
        if beat is not None:
            self._last_beat = max(self._last_beat, store_messages.beat(beat, key))
        silent = self._silence.update({0: str(self._last_beat)}, now)[0]
        if silent >= SILENT_S + beat_every(self.loop.world_size):
            raise NoCoordinator(f"rank 0 gave no sign of life for {silent:.0f} s, expected one every second")

    def say_goodbye(self, why: str, kind: str) -> None:
        """Tells rank 0 that this rank leaves. `kind`: told (to end), gave_up (on rank 0), fault (preflight's
        own), foreign (something else writes into the store)."""
        entry = json.dumps({"rank": self.rank, "why": why, "kind": kind, "dead": self.dead_beside_me()})
        if self.rank is not None:
            self.loop.request("append", key=store_keys.left(self.run_id), value=entry)

    def leave_early(self, why: str, kind: str = "told") -> RunVerdict | None:
        """Called when told to end, or when something foreign was met: says so, and waits a moment for rank 0's verdict,
        which may explain it."""
        self.say_goodbye(why, kind)
        end = time.monotonic() + LAST_LOOK_S
        while self.verdict is None and time.monotonic() < end and not self.rank_0_is_dead():
            with contextlib.suppress(ForeignWriter):
                event = self._event()
                self.verdict = event if isinstance(event, RunVerdict) else None
            self.loop.pump(0.05)
        return self.verdict

    def dead_beside_me(self) -> list[int]:
        mine = self.job.node_of(self.rank).ranks if self.job and self.rank is not None else ()
        return [rank for rank in mine if rank in self._pids and not is_alive(self._pids[rank])]

    def rank_0_is_dead(self) -> bool:
        """Known only on rank 0's own node."""
        return 0 in self.dead_beside_me()

    def writes_for_its_node(self) -> bool:
        """Whether this is the lowest living rank of its node, which speaks for the node if rank 0 is lost."""
        if self.job is None or self.rank is None:
            return True
        dead = self.dead_beside_me()
        living = [rank for rank in self.job.node_of(self.rank).ranks if rank not in dead and rank != 0]
        return not living or self.rank == min(living) or os.getpid() == self._pids.get(min(living))
