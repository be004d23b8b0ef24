"""A supervisor's event loop: it waits, listens and keeps deadlines, and does nothing that could hang."""

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from preflight.core.answer import Failure, FailureKind, Returned
from preflight.engine import store_keys, store_messages
from preflight.engine.breadcrumb import Breadcrumb
from preflight.engine.channel import Channel
from preflight.engine.child import Child, limit_hit
from preflight.engine.store_messages import ForeignWriter
from preflight.engine.worker_slot import WorkerSlot
from preflight.sdk import system_call

FETCH_AT_ONCE = 32
"""Values per message: a channel's message can hold this many of the largest facts (1 MiB)."""
SMALL_AT_ONCE = 512
"""Values per message that are small, as beats are."""
BEAT_S = 1.0
"""Seconds between signs of life, in a small world; see `beat_every`."""
LOOK_S = 0.25
"""The most seconds between two polls, in a small world."""
DEAD_MAN_S = 30.0
"""This long after the run's deadline the kernel ends a supervisor that is stuck itself."""
ENDING_S = 10.0
"""Time for the report and the farewell of a run that was interrupted or has used up its time."""
LEAST_S = 1.0
"""Least time for a child's work, so that what was measured late in the run is judged, too."""
MOST_ENTRIES, ENTRIES_PER_RANK = 1024, 256
"""Entries that a log may gain between two looks: a job may have been restarted many times on one store."""
SECOND_SIGNAL_S = 1.0
"""A SIGINT sooner than this is the launcher forwarding the same Ctrl-C of the terminal, not a second one."""


class Interrupted(Exception):  # noqa: N818 -- an event
    """A signal, or the launcher's death. Its text says which."""


class Store(Protocol):
    """The store client, or a dictionary if the world is a single process (memory_store.py)."""

    @property
    def child(self) -> Child | None: ...
    def request(self, do: str, **arguments: Any) -> Any: ...
    def tell(self, do: str, **arguments: Any) -> None: ...
    def end(self) -> None: ...


def beat_every(world_size: int) -> float:
    """Seconds between beats, and between polls for them: the store's single thread serves all ranks."""
    return min(10.0, max(BEAT_S, world_size / 2000))


def poll_every(world_size: int) -> float:
    """Seconds between a rank's polls for its next check: the store answers about 19,000 polls per second
    (one client, 2 cores), and half of that is left for work."""
    return min(1.0, max(0.004, world_size / 10000))


class PollPace:
    """Rank 0 polls the store with back-off: polling must not slow down a long check, nor waiting a short one."""

    def __init__(self, world_size: int) -> None:
        self._least = poll_every(world_size)
        self._since = self._next = 0.0
        self.restart()

    def restart(self) -> None:
        """Polls often again: something has happened, and more may follow soon."""
        self._since = self._next = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time to poll; if so, sets the next time, after 5% of the time waited so far."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + max(self._least, min(LOOK_S, (now - self._since) / 20))
        return True

    @property
    def pause(self) -> float:
        """Seconds until the next poll."""
        return max(0.0, self._next - time.monotonic())


def tell_all(loop: "EventLoop", run: str, event: Mapping[str, Any]) -> None:
    """On rank 0: what all ranks are to do now."""
    loop.put(store_keys.now(run), json.dumps(event))
    loop.request("append", key=store_keys.news(run), value="")


class EventLoop:
    """Signals, deadlines, children and the store of one supervisor."""

    def __init__(self, deadline_s: float, parent: int | None = None) -> None:
        """`parent`: the process that started this one, if it told its id: it may have died since."""
        self.started = time.monotonic()
        self.deadline_s = deadline_s
        self.end_at = self.started + deadline_s
        self.store: Store | None = None
        self.slot: WorkerSlot | None = None
        self.beat_key = ""
        self.on_turn: Callable[[], None] = lambda: None
        """Called in every iteration of the loop."""
        self.world_size = 1
        self.foreign: ForeignWriter | None = None
        """The first thing in the store that no rank of this run has written."""
        self._written: dict[str, str] = {}
        self.ending = False
        self._last_beat = 0.0
        self._beats = 0
        self.still_s = 0.0
        """The longest gap between two iterations: if it is more than a few seconds, this process was stopped."""
        self._last_turn = 0.0
        self._errands: list[Child] = []
        self._parent = parent or os.getppid()
        self.watches_launcher = True
        """Whether the launcher's death ends the run."""
        self._signals: list[tuple[int, float]] = []
        self._wake, self._woken = socket.socketpair()
        self._listen_to_signals()

    def _listen_to_signals(self) -> None:
        for end in (self._wake, self._woken):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # set by nohup
                signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by a parent, it would hide how children end
        # The dead-man's switch is the kernel's alone. faulthandler's timer is a thread: a forked child cannot arm
        # its own after that. Its signal handler writes the stack to stderr, which may be a full pipe.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, self.deadline_s + DEAD_MAN_S)

    def _on_signal(self, number: int, _frame: object) -> None:
        now = time.monotonic()
        if self._signals and number == signal.SIGINT and now - self._signals[0][1] > SECOND_SIGNAL_S:
            self.end_children()
            os._exit(3)
        self._signals.append((number, now))

    @property
    def left(self) -> float:
        """Seconds until the run's deadline."""
        return self.end_at - time.monotonic()

    def request(self, do: str, **arguments: Any) -> Any:
        """One request to the store (store_client.py has the operations). Raises StoreLost."""
        assert self.store is not None
        return self.store.request(do, **arguments)

    def put(self, key: str, value: str) -> None:
        """Puts what no other rank may change. Raises StoreLost."""
        self._written[key] = value
        self.request("put", key=key, value=value)

    def refuse_changed(self, *keys: str) -> None:
        """Raises ForeignWriter if something foreign was met, or if what this rank has put under these keys (all, if
        none is named) is not there any more."""
        if self.foreign is not None:
            raise self.foreign
        looked = [key for key in keys or self._written if key in self._written]
        for key, text in zip(looked, self.fetch(looked, SMALL_AT_ONCE), strict=True):
            if text != self._written[key]:
                store_messages.foreign(key, text or "", "what rank 0 has written there")

    def fetch(self, keys: Sequence[str], at_once: int = FETCH_AT_ONCE) -> Iterator[str | None]:
        """Yields the values of keys, None for an absent one; requests them lazily, `at_once` at a time."""
        for start in range(0, len(keys), at_once):
            yield from self.request("fetch", keys=keys[start : start + at_once])

    def has_come(self, key: str, within_s: float = float("inf")) -> bool:
        """Whether a key of the store is there: waits for it, at most `within_s` and LOOK_S (in worlds of more than 250
        ranks longer, up to BEAT_S: a wait in vain takes half a millisecond of CPU). Beats wait as long; the worker and
        signals do not."""
        turn_s = min(BEAT_S, max(LOOK_S, self.world_size / 1000))
        return bool(self.request("await_key", key=key, within_s=max(0.001, min(within_s, turn_s))))

    def begin_ending(self) -> None:
        """From here on signals are ignored, and the rest of the work gets ENDING_S."""
        self.ending = True
        self.end_at = max(self.end_at, time.monotonic() + ENDING_S)

    def until(self, seconds: float) -> float:
        """The end of a wait as a point in time: after `seconds`, or at the run's deadline if that is sooner."""
        return min(time.monotonic() + seconds, self.end_at)

    def pump(self, seconds: float) -> None:
        """Waits until something comes, at most `seconds` (and never longer than a beat), and handles it.

        Raises Interrupted, unless the run is already ending.
        """
        if not self.ending:
            self._raise_if_interrupted()
        now = time.monotonic()
        self.still_s = max(self.still_s, now - (self._last_turn or now))
        self._last_turn = now
        bound = min(seconds, 0.25, self.slot.deadline_in() if self.slot else 1.0)
        poll = select.poll()  # select() cannot handle more than 1,024 descriptors
        for descriptor, events in self._descriptors().items():
            poll.register(descriptor, events)
        with contextlib.suppress(InterruptedError):
            poll.poll(max(0.0, bound) * 1000)
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        for child in self.children():
            child.channel.flush()
        if self.slot:
            self.slot.tick()
        self._beat()
        self.on_turn()
        if not self.ending:
            self._raise_if_interrupted()

    def forget_gap(self) -> None:
        """After a step that blocks before the run: no other rank listens yet."""
        self._last_turn = 0.0

    def _raise_if_interrupted(self) -> None:
        if self._signals:
            raise Interrupted(f"was sent {signal.Signals(self._signals[0][0]).name}")
        if self.watches_launcher and os.getppid() != self._parent:
            raise Interrupted(f"its launcher (process {self._parent}) has died")

    def children(self) -> Iterator[Child]:
        if self.store and self.store.child:
            yield self.store.child
        if self.slot and self.slot.worker:
            yield self.slot.worker
        yield from self._errands

    def _descriptors(self) -> dict[int, int]:
        found = {self._woken.fileno(): select.POLLIN}
        for child in self.children():
            if not child.channel.closed:
                found[child.channel.fileno()] = select.POLLIN | (select.POLLOUT if child.channel.wants_to_write else 0)
            if child.fileno() >= 0 and not child.silent:
                found[child.fileno()] = select.POLLIN
        return found

    def _beat(self) -> None:
        now = time.monotonic()
        if self.beat_key and self.store and now - self._last_beat >= beat_every(self.world_size):
            self._last_beat, self._beats = now, self._beats + 1
            doing = self.slot.doing() if self.slot and self.slot.busy else None
            self.store.tell("put", key=self.beat_key, value=json.dumps({"beat": self._beats, "doing": doing}))

    def ask(self, work: Callable[[], dict[str, Any]], deadline_s: float) -> Returned | Failure:
        """Runs `work` in its own child, which gets at least LEAST_S even if the run's deadline is near or past."""
        child = self.fork(lambda channel, _page: channel.send_all({"value": work()}))
        if isinstance(child, Failure):
            return child
        try:
            return self.answer_of(child, deadline_s)
        finally:
            self.dismiss(child)

    def fork(self, target: Callable[[Channel, Breadcrumb], None]) -> Child | Failure:
        """A child that answers questions until `dismiss`, or the end of the run."""
        try:
            self._errands.append(Child(target))
        except OSError as error:
            if limit := limit_hit(error):
                return Failure(FailureKind.NO_PROCESS, limit)
            return Failure(FailureKind.CRASHED, f"could not be forked: {error.strerror}")
        return self._errands[-1]

    def answer_of(self, child: Child, deadline_s: float) -> Returned | Failure:
        """The next answer of a child of `fork`, for which it has as much time as in `ask`."""
        start = time.monotonic()
        end = max(self.until(deadline_s), start + min(deadline_s, LEAST_S))
        while (message := child.channel.receive()) is None:
            if child.channel.closed:
                return _why_it_ended(child)
            if time.monotonic() >= end:
                text = f"did not end within {end - start:.1f} s{system_call.waits_for(child.pid)}"
                return Failure(FailureKind.TIMED_OUT, text, child.dump_stack())
            child.drain()  # else one that prints more than a pipe holds waits for its reader
            self.pump(end - time.monotonic())
        return Returned(message["value"])

    def dismiss(self, child: Child) -> None:
        """Ends a child of `fork`."""
        self._errands.remove(child)
        child.end()

    def end_children(self) -> None:
        """Ends all children, right before the exit."""
        for child in list(self._errands):
            child.end()
        if self.slot:
            self.slot.leave()
        if self.store:
            self.store.end()


def _why_it_ended(child: Child) -> Failure:
    status = child.wait_status(1.0)
    if limit := child.refused_by(status):
        return Failure(FailureKind.NO_PROCESS, limit, child.log_tail())
    how = "for no known reason" if status is None else child.described(status)
    return Failure(FailureKind.CRASHED, f"ended {how}", child.stack() or child.log_tail())


class StoreLog:
    """Reads a log on the store: each entry once, in order of arrival, as a message of one kind (store_messages.py).
    What is none is noted as `loop.foreign`, and left out. Without a kind entries are any JSON, else ValueError."""

    def __init__(
        self, loop: EventLoop, name: str, kind: str = "", excused: Callable[[int, str], bool] = lambda *_: False
    ) -> None:
        """`excused`: says of (number, text) of what is no such message whether it is explained otherwise."""
        self._loop, self._name, self._kind, self._excused = loop, name, kind, excused
        self._count = 0
        self._holes: set[int] = set()

    @property
    def next_key(self) -> str:
        """Where the next entry will be."""
        return f"{self._name}/{self._count + 1}"

    def count(self) -> int:
        return int(self._loop.request("count", key=self._name))

    def new(self) -> list[tuple[int, dict[str, Any]]]:
        """(number from 1, entry) of all new entries. An appender that died between counting and writing leaves
        a hole, which is read again each time."""
        count = self.count()
        if not self._count <= count <= self._count + MOST_ENTRIES + ENTRIES_PER_RANK * self._loop.world_size:
            self._note(ForeignWriter(f"{self._name} counts {count} entries, expected about {self._count}"))
            return []
        wanted = sorted(self._holes | set(range(self._count + 1, count + 1)))
        self._count = count
        values = list(self._loop.fetch([f"{self._name}/{index}" for index in wanted]))
        self._holes = {index for index, value in zip(wanted, values, strict=True) if not value}
        return list(self._read(zip(wanted, values, strict=True)))

    def _read(self, values: Iterable[tuple[int, str | None]]) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, value in values:
            try:
                if value and self._kind:
                    yield index, store_messages.read(self._kind, value, f"{self._name}/{index}")
                elif value:
                    yield index, json.loads(value)
            except ForeignWriter as why:
                if not self._excused(index, value or ""):
                    self._note(why)

    def _note(self, why: ForeignWriter) -> None:
        self._loop.foreign = self._loop.foreign or why
