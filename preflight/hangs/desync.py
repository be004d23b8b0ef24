"""Finds where the ranks of a process group are out of step: which one never entered the collective in which the others
wait, or entered a different one. Pure: turns each rank's records of torch's flight recorder into sentences.

torch has its own analyzer (torch.distributed.flight_recorder). It needs each group's ranks in `pg_config`, which gloo
does not write, and it needs torch, but blame runs where torch may not be imported.
The comparison is the same: operation, size and type by process group and number (its `Op.match`).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from preflight.core import rank_ranges
from preflight.core.outcome import Outcome

Call = dict[str, Any]
SAME_SIZE = {
    "allreduce", "allreducecoalesced", "broadcast", "reduce", "allgather", "allgatherbase", "allgathercoalesced",
    "allgatherintotensorcoalesced", "reducescatter", "reducescatterbase", "reducescattercoalesced",
    "reducescattertensorcoalesced",
}  # fmt: skip
"""Operations with the same input size on all ranks, in lower case and without "_": an all-to-all's, a gather's and a
scatter's may differ."""


GLOOS_ABORT = "op.preamble.length <= op.nbytes"
"""gloo (transport/tcp/pair.cc) ends a process that receives more bytes than its own call has room for."""
LISTED = 4
"""How many different things a sentence lists."""
SMALLER = -1
"""Stands for the number of elements of such a call, which is unknown since the process died."""


@dataclass(frozen=True)
class Held:
    """Ranks that did not come because they are still inside another collective."""

    ranks: tuple[int, ...]
    call: Call
    group: str
    """Its ranks in the job; "" for the world group."""

    def describe(self) -> str:
        """ "ranks 2-3 did not leave all_reduce of 4 float32 #3"."""
        return f"{rank_ranges.ranks(self.ranks)} did not leave {describe_numbered(self.call, self.group)}"


@dataclass(frozen=True)
class Desync:
    """The first number at which the ranks of a group did not do the same and a rank waits."""

    number: int
    group: str
    """Its ranks in the job; "" for the world group."""
    calls: Mapping[int, Call | None]
    """By rank; None for a rank that has not entered this number. Ranks about which nothing is known are left out."""
    odd: frozenset[int]
    """The minority, if more than half of the group's ranks agree; else empty."""
    held: Held | None = None
    """Those of the minority that another collective holds: they are not odd."""

    @property
    def usual(self) -> Call | None:
        """The call of the ranks that are not odd; None if they have not entered it."""
        return next(call for rank, call in self.calls.items() if rank not in self.odd and not (self.held and not call))

    @property
    def differs(self) -> bool:
        """Whether ranks called different things; if not, some have not come."""
        return len({_key(call) for call in self.calls.values() if call}) > 1

    def describe_sides(self, outcomes: Mapping[int, Outcome]) -> str:
        """ "rank 0 inside all_reduce of 4 float32 #3, rank 1 left measure() before #3"."""
        by_text: dict[str, list[int]] = {}
        for rank, call in sorted(self.calls.items()):
            words = f"inside {self.describe_numbered(call)}" if call else self._absent(outcomes[rank])
            by_text.setdefault(words, []).append(rank)
        return describe_by_rank(by_text)

    def describe_held(self) -> str:
        """ "ranks 0-1 did not leave all_reduce of 4 float32 #3, and ranks 2-7 waited inside barrier #9"."""
        usual = self.usual
        assert self.held is not None and usual is not None, "held ranks are held back from a call"
        others = rank_ranges.ranks(rank for rank, call in self.calls.items() if call)
        return f"{self.held.describe()}, and {others} waited inside {self.describe_numbered(usual)}"

    def _absent(self, outcome: Outcome) -> str:
        if outcome.kind == "measured":
            return f"left measure() before #{self.number}"
        elsewhere = waits_inside(outcome)
        return f"inside {elsewhere} instead" if elsewhere else f"never entered #{self.number}"

    def describe_numbered(self, call: Call) -> str:
        """ "all_reduce of 4 float32 #3"."""
        return describe_numbered(call, self.group)

    def describe_odd(self, rank: int, outcome: Outcome) -> str:
        """The sentence about an odd rank."""
        mine, usual = self.calls[rank], self.usual
        others = rank_ranges.ranks(set(self.calls) - self.odd)
        if usual is None:
            assert mine is not None, "an odd rank has done something different from the others"
            return f"waited alone inside {self.describe_numbered(mine)}: {others} left measure() without it"
        if mine is None:
            return f"{self._elsewhere(outcome, self.describe_numbered(usual))}, inside which {others} waited"
        inside = "called" if mine["over"] else "was inside"
        theirs = "called" if usual["over"] else "waited inside"
        return f"{inside} {self.describe_numbered(mine)} while {others} {theirs} {self.describe_numbered(usual)}"

    def is_stuck(self, rank: int, outcome: Outcome) -> bool:
        """Whether it has not come because it is stuck in an earlier call of this group that the others have left."""
        return self.calls[rank] is None and bool(self._stuck_in(outcome))

    def _stuck_in(self, outcome: Outcome) -> list[Call]:
        return [call for group, call in _waiting_in(outcome) if group == self.group]

    def _elsewhere(self, outcome: Outcome, collective: str) -> str:
        inside = self._stuck_in(outcome)
        if inside:
            return f"was still inside {describe_call(inside[0])} #{inside[0]['seq']}, and not inside {collective}"
        if outcome.kind == "measured":
            return f"left measure() without entering {collective}"
        return f"never entered {collective}"


def describe_by_rank(ranks: Mapping[str, Sequence[int]]) -> str:
    """Ranks by what they do, most first: "ranks 0-2 inside all_reduce of 4 float32 #3, rank 3 inside barrier #3"."""
    most = sorted(ranks.items(), key=lambda entry: -len(entry[1]))
    more = sum(len(listed) for _, listed in most[LISTED:])
    parts = [f"{rank_ranges.ranks(listed)} {words}" for words, listed in most[:LISTED]]
    return ", ".join([*parts, f"{rank_ranges.count(more, 'rank')} elsewhere"] if more else parts)


def describe_call(call: Call) -> str:
    """ "all_reduce of 1,048,576 float32"."""
    if call["elements"] == SMALLER:
        return f"a different or a smaller collective than {call['operation']}"
    size = f" of {call['elements']:,} {call['dtype']}" if call["sizes"] else ""
    return f"{call['operation']}{size}"


def lines(recorded: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """For a log: the last collectives of each group, the oldest first."""
    for group in recorded:
        ranks = "all ranks" if group["world"] else rank_ranges.ranks(rank_ranges.from_text(group["ranks"]))
        yield f"Collectives of the group of {ranks}: {group['entered']} entered"
        for call in group["calls"]:
            yield f"  #{call['seq']} {describe_call(call)}{'' if call['over'] else ': not over'}"


def has_same_size(operation: str) -> bool:
    """Whether an operation's input has one size on all ranks. The flight recorder writes "_all_gather_base", the
    watchdog "_ALLGATHER_BASE"."""
    return operation.lower().replace("_", "") in SAME_SIZE


def got_too_much(outcome: Outcome) -> bool:
    """Whether gloo ended it because another rank's call was larger than its own: either may be the odd one."""
    return outcome.kind == "crashed" and outcome.signal == "SIGABRT" and GLOOS_ABORT in (outcome.log_tail or "")


def is_waiting(outcome: Outcome) -> bool:
    """Whether a collective, a send or a receive that it has entered is not over."""
    return bool(waits_inside(outcome))


def is_at_work(outcome: Outcome) -> bool:
    """Whether it has recently entered a collective and is stuck in none."""
    groups = outcome.recorded or ()
    is_stuck = any(call["stuck"] for group in groups for call in group["calls"])
    return any(group.get("lately") for group in groups) and not is_stuck


def waits_inside(outcome: Outcome) -> str:
    """ "all_reduce of 4 float32 #3": the first call that is not over; "" if there is none."""
    other = "a send or a receive" if _is_sending(outcome) else ""
    return next((describe_numbered(call, group) for group, call in _waiting_in(outcome)), other)


def _is_sending(outcome: Outcome) -> bool:
    """Whether a send or receive is not over; its partner is not recorded, and may be the one that did not come."""
    return any(group.get("sending") for group in outcome.recorded or ())


def describe_numbered(call: Call, group: str) -> str:
    """ "all_reduce of 4 float32 #3 of the group of ranks 0-1". `group`: its ranks, "" for the world's."""
    of = f" of the group of {rank_ranges.ranks(rank_ranges.from_text(group))}" if group else ""
    return f"{describe_call(call)} #{call['seq']}{of}"


def _waiting_in(outcome: Outcome) -> list[tuple[str, Call]]:
    """(group, named as in Desync; call) for each call that it has entered and that is not over."""
    groups = [("" if group["world"] else group["ranks"], group["calls"]) for group in outcome.recorded or ()]
    return [(group, call) for group, calls in groups for call in calls if not call["over"]]


def _opened_first(outcome: Outcome) -> str | None:
    """The group of its oldest call that is not over, named as in Desync; None if the times are not recorded."""
    opened = [group for group in outcome.recorded or () if group.get("opened_s", math.inf) < math.inf]
    oldest = min(opened, key=lambda group: float(group["opened_s"]), default=None)
    return None if oldest is None else "" if oldest["world"] else str(oldest["ranks"])


def find_desyncs(outcomes: Mapping[int, Outcome]) -> list[Desync]:
    """Where the ranks are out of step: with odd ranks if a majority shows which they are (in several groups, if these
    have no rank in common), else the first place found, without odd ranks. [] if the records show nothing."""
    found = [_without_the_busy(desync, outcomes) for desync in _desyncs(outcomes)]
    disjoint: list[Desync] = []
    seen: set[int] = set()
    for desync in found:
        ranks = set(rank_ranges.from_text(desync.group)) if desync.group else set(outcomes)
        if desync.odd and not ranks & seen:
            disjoint.append(desync)
            seen |= ranks
    return disjoint or found[:1]


def _desyncs(outcomes: Mapping[int, Outcome]) -> Iterator[Desync]:
    by_group: dict[tuple[str, bool, str], dict[int, dict[str, Any]]] = {}
    for rank, outcome in outcomes.items():
        for group in outcome.recorded or ():
            by_group.setdefault((group["ranks"], group["world"], group.get("name", "")), {})[rank] = group
    small = {rank for rank, outcome in outcomes.items() if not outcome.recorded and got_too_much(outcome)}
    for (ranks, is_world, _), records in by_group.items():
        all_ranks = rank_ranges.from_text(ranks)
        dead = small.intersection(all_ranks)
        place = _first(records) or _with_one_that_died(records, dead)
        if place:
            number, calls = place
            least = _smallest(calls)
            calls |= dict.fromkeys(dead - set(calls), least) if least else {}
            yield Desync(number, "" if is_world else ranks, calls, _odd(calls, len(all_ranks), outcomes))


def _first(records: Mapping[int, Mapping[str, Any]]) -> tuple[int, dict[int, Call | None]] | None:
    """The first number at which these ranks differ, and what they called; None if there is none."""
    calls = {rank: {call["seq"]: call for call in reversed(record["calls"])} for rank, record in records.items()}
    for number in sorted({number for of_rank in calls.values() for number in of_rank}):
        calls_at = {
            rank: calls[rank].get(number)
            for rank, record in records.items()
            if number in calls[rank] or record["entered"] < number
        }
        if len({_key(call) for call in calls_at.values()}) > 1 and _matters(number, calls_at, calls):
            return None if _wait_before(number, calls_at, calls) else (number, calls_at)
    return None


def _wait_before(number: int, calls_at: Mapping[int, Call | None], calls: Mapping[int, Mapping[int, Call]]) -> bool:
    """Whether half of these ranks or more are inside an earlier call that a few have left (a broadcast's root may):
    they are not out of step, but stuck there."""
    stuck = [
        rank
        for rank, call in calls_at.items()
        if call is None and any(not earlier["over"] for of, earlier in calls[rank].items() if of < number)
    ]
    return 2 * len(stuck) >= len(calls_at)


def _with_one_that_died(
    records: Mapping[int, Mapping[str, Any]], dead: set[int]
) -> tuple[int, dict[int, Call | None]] | None:
    """(number, calls) if all ranks with records are in one call, and a dead rank, which has none, was not in it."""
    waiting = {rank: call for rank, record in records.items() for call in record["calls"][-1:] if not call["over"]}
    numbers = {call["seq"] for call in waiting.values()}
    if not dead or len(numbers) != 1:
        return None
    odd = {**next(iter(waiting.values())), "elements": SMALLER}
    return numbers.pop(), {**waiting, **dict.fromkeys(dead, odd)}


def _smallest(calls: Mapping[int, Call | None]) -> Call | None:
    """The smallest call of one operation; None if the calls differ in more than size."""
    known = [call for call in calls.values() if call]
    if len({call["operation"] for call in known}) > 1:
        return None
    return min(known, key=_bytes)


def _bytes(call: Call) -> int:
    bits = call["dtype"].lstrip("abcdefghijklmnopqrstuvwxyz")  # float32; a bool is a byte
    return int(call["elements"]) * (int(bits) if bits.isdecimal() else 8) // 8


def _key(call: Call | None) -> tuple[Any, ...] | None:
    """A key that is equal for calls that belong together."""
    if call is None:
        return None
    if call["elements"] == SMALLER:
        return ("another",)
    if not has_same_size(call["operation"]):
        return (call["operation"],)
    return call["operation"], call["elements"], call["dtype"]


def _matters(number: int, calls_at: Mapping[int, Call | None], calls: Mapping[int, Mapping[int, Call]]) -> bool:
    """Whether ranks did different things, or one has not come and another is stuck waiting for it. Waiting in an
    earlier call does not count (on NCCL a host runs ahead of its GPU), nor not waiting (a broadcast's root)."""
    if len({_key(call) for call in calls_at.values() if call}) > 1:
        return True
    first = {rank: min((n for n, call in calls[rank].items() if not call["over"]), default=-1) for rank in calls_at}
    return any(call and call["stuck"] and first[rank] == number for rank, call in calls_at.items())


def _odd(calls: Mapping[int, Call | None], size: int, outcomes: Mapping[int, Outcome]) -> frozenset[int]:
    """The ranks that do not do what more than half of the group's `size` ranks do. If most have not entered the call in
    which a rank waits, they may only be late, unless they are done: then none is odd."""
    keys = {rank: _key(call) for rank, call in calls.items()}
    (usual, count), *_ = Counter(keys.values()).most_common(1)
    most = [rank for rank, key in keys.items() if key == usual]
    if 2 * count <= size or (usual is None and not all(outcomes[rank].sound for rank in most)):
        return frozenset()
    return frozenset(set(keys) - set(most))


def _without_the_busy(found: Desync, outcomes: Mapping[int, Outcome]) -> Desync:
    """Removes ranks that are not the cause: one that waits in another group, or for one other rank; and several that
    are still inside an earlier call that the others have left, since the link between them may be the cause. What a
    rank has queued behind its oldest open call, in whatever group, is no wait."""
    sending = {rank for rank in found.odd if found.calls[rank] is None and _is_sending(outcomes[rank])}
    found = replace(found, odd=found.odd - sending)
    busy: dict[int, tuple[str, Call]] = {}
    stuck: dict[int, tuple[str, Call]] = {}
    for rank in found.odd:
        waiting = _waiting_in(outcomes[rank]) if found.calls[rank] is None else []
        is_first = _opened_first(outcomes[rank]) == found.group
        elsewhere = [(group, call) for group, call in waiting if group != found.group and not is_first]
        if elsewhere:
            busy[rank] = elsewhere[0]
        elif waiting:
            stuck[rank] = waiting[0]
    if not busy and len(stuck) > 1:
        busy = stuck
    if not busy:
        return found
    together = {(group, call["seq"], _key(call)) for group, call in busy.values()}
    group, call = next(iter(busy.values()))
    is_held = len(together) == 1 and (busy is stuck or set(busy) == set(rank_ranges.from_text(group)))
    held = Held(tuple(busy), call, group) if is_held else None
    return replace(found, odd=found.odd - set(busy), held=held)
