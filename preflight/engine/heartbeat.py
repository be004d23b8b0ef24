"""Rank 0 watches the others: which have left, are silent, or are dead."""

import json
import time
from collections.abc import Mapping
from typing import Any

from preflight.core.outcome import Outcome
from preflight.engine import store_keys, store_messages
from preflight.engine.event_loop import SMALL_AT_ONCE, EventLoop, StoreLog, beat_every
from preflight.engine.membership import Membership
from preflight.engine.store_messages import ForeignWriter

SILENT_S = 12.0
"""A rank whose supervisor gave no sign of life for this long is lost. (Time in which the store itself did
not answer does not count: see Silence.)"""


class StoodStill(Exception):  # noqa: N818 -- an event
    """Another rank gave up on this one, which was stopped or starved: it cannot blame others now."""


class Silence:
    """How long each rank's beat has not changed, counting only time in which the store answered."""

    def __init__(self, world_size: int = 1) -> None:
        self._longest_gap_s = max(2.0, 1.25 * beat_every(world_size))
        self._beats: dict[int, str | None] = {}
        self._silent: dict[int, float] = {}
        self._asked: dict[int, float] = {}

    def update(self, beats: Mapping[int, str | None], now: float) -> dict[int, float]:
        """Seconds of silence by rank. A long gap between two polls counts as 2 s (in a small world): then the store
        or this supervisor stood still."""
        for rank, beat in beats.items():
            passed = min(now - self._asked.get(rank, now), self._longest_gap_s)
            unchanged = rank in self._silent and beat == self._beats.get(rank)
            self._silent[rank] = self._silent[rank] + passed if unchanged else 0.0
            self._beats[rank], self._asked[rank] = beat, now
        return {rank: self._silent[rank] for rank in beats}

    def of(self, rank: int) -> float:
        """Seconds of a rank's silence at the last poll."""
        return self._silent.get(rank, 0.0)

    def pause(self) -> None:
        """Makes the time since the last poll not count: no rank was listened to."""
        self._asked.clear()


class Heartbeats:
    """`lost`: the reason by lost rank. `dragged_along`: those lost with their node, after another rank's death."""

    def __init__(self, loop: EventLoop, membership: Membership) -> None:
        self.lost: dict[int, str] = {}
        self.dragged_along: set[int] = set()
        self.own_faults: set[int] = set()
        self._loop, self._membership = loop, membership
        self._silence = Silence(membership.world_size)
        self._left = StoreLog(loop, store_keys.left(membership.run_id), "left")
        self._last_look = 0.0
        self._highest: dict[int, int] = {}
        """The number of each rank's last beat."""

    def begin(self) -> None:
        """Starts a new check: earlier silence does not count."""
        self._silence.pause()

    def look(self, members: set[int]) -> None:
        """Polls all members from time to time: one that has already answered may be cut off, too."""
        now = time.monotonic()
        if now - self._last_look < beat_every(self._membership.world_size):
            return
        self._last_look = now
        self._membership.look(late=True)
        for entry in self.refuse_foreign():
            if entry["kind"] == "gave_up":
                raise StoodStill(f"rank 0 stood still: rank {entry['rank']} left because {entry['why']}")
            self.own_faults |= {entry["rank"]} if entry["kind"] == "fault" else set()
            self.lose(set(entry["dead"]), "its supervisor has died, as its node's other ranks saw")
            self.lose({entry["rank"]}, entry["why"])
            self.dragged_along |= {entry["rank"]} if entry["dead"] else set()
        self._listen(sorted(members - set(self.lost) - {0}))
        self.find_the_dead(members)

    def refuse_foreign(self) -> list[dict[str, Any]]:
        """The new farewells. Raises ForeignWriter for what rank 0 or another rank has met of somebody else."""
        left = [entry for _, entry in self._left.new()]
        self._loop.refuse_changed(store_keys.now(self._membership.run_id))
        for entry in left:
            if entry["kind"] == "foreign":
                raise ForeignWriter(entry["why"])
        return left

    def _listen(self, ranks: list[int]) -> None:
        keys = [store_keys.beat(self._membership.run_id, rank) for rank in ranks]
        beats = dict(zip(ranks, self._loop.fetch(keys, SMALL_AT_ONCE), strict=True))
        for rank, key, text in zip(ranks, keys, beats.values(), strict=True):
            if text is None and self._highest.get(rank):
                store_messages.foreign(key, "", "a sign of life as before")
            number = store_messages.beat(text, key) if text is not None else 0
            self._highest[rank] = max(number, self._highest.get(rank, 0))  # an old one that is written again is none
        numbers = {rank: str(self._highest[rank]) for rank in ranks}
        every = beat_every(self._membership.world_size)
        for rank, seconds in self._silence.update(numbers, time.monotonic()).items():
            if seconds >= SILENT_S + every:
                doing = json.loads(beats[rank] or "{}").get("doing")
                last = f"; last doing: {doing}" if doing else ""
                self.lose({rank}, f"no sign of life for {seconds:.0f} s, expected one every {every:.0f} s{last}")

    def outcome_of(self, rank: int) -> Outcome:
        """The outcome of a check that a lost rank did not deliver."""
        dragged, at_fault = rank in self.dragged_along, rank in self.own_faults
        return Outcome("lost", reason=self.lost[rank], aborted=dragged, own_fault=at_fault)

    def suspects(self, members: set[int]) -> set[int]:
        """Members that may be about to be lost, too: a node's ranks fall silent together."""
        return {rank for rank in members - set(self.lost) if self._silence.of(rank) > SILENT_S / 2}

    def lose(self, ranks: set[int], why: str) -> None:
        """Marks ranks as lost; the first reason is kept."""
        for rank in ranks - {0}:
            self.lost.setdefault(rank, why)

    def lost_otherwise(self, why: str) -> set[int]:
        """The lost ranks, without those that gave this reason themselves (and were not dragged along)."""
        return {rank for rank, reason in self.lost.items() if reason != why or rank in self.dragged_along}

    def find_the_dead(self, ranks: set[int]) -> None:
        """Finds dead ranks on this node in the process table."""
        for rank in self._membership.dead_beside_me(ranks - set(self.lost) - {0}):
            self.lose({rank}, f"its supervisor (process {self._membership.present[rank].about['pid']}) has died")
