"""Sentences about ranks that parted, that wait for one of which nothing is known, or that hang together."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from preflight import out_of_step, ranges
from preflight.explain.flight_recorder import Call
from preflight.explain.hint import Hint
from preflight.out_of_step import Parting
from preflight.outcome import Outcome

TOLD = 8
"""Different things that odd ranks did, of which each gets a hint."""
PLACES = 3
"""Places in the user's code that a sentence names."""
FIRST = 2
"""Up to this number a collective that no rank leaves says that this way between the GPUs has never worked."""
IN_STEP = "explain.in_step"
"""The code of a hang in which all ranks do the same: no cause is known by it."""
BELOW = (
    "Look below the collectives: run preflight on these nodes (it names the GPU, the link or the node), and there "
    "dmesg -T | grep -iE 'xid|nvlink|mlx5'."
)
_SEND = re.compile(r"(send|recv) (\d{1,6})(?:->|<-)(\d{1,6})")


@dataclass(frozen=True)
class Job:
    """What the dumps hold."""

    outcomes: Mapping[int, Outcome]
    """By rank, of those that left a dump. `recorded` has more than a live check's: name and sends of a group, and its
    calls are those of flight_recorder."""
    files: Mapping[int, str]
    world: int

    @property
    def missing(self) -> set[int]:
        return set(range(self.world)) - set(self.outcomes)

    def members(self, group: str) -> set[int]:
        """`group`: its ranks, or "" for the world, as a parting names it."""
        return set(ranges.from_text(group)) if group else set(range(self.world))


def hints(job: Job) -> Iterator[Hint]:
    """The most direct ones alone: where ranks have parted, what else waits follows from it."""
    partings = out_of_step.partings(job.outcomes)
    found = [hint for parting in partings if parting.odd for hint in _of_odd(parting, job)]
    found = found or [_of_sides(parting, job) for parting in partings if not _wait_elsewhere(parting, job)]
    found = found or list(_of_missing(job)) or [_of_sides(parting, job) for parting in partings]
    yield from found or list(_of_sends(job)) or list(_of_step(job)) or _of_waiting(job)


def _wait_elsewhere(parting: Parting, job: Job) -> bool:
    """Those that have not come are inside another collective: it may be the first to hang."""
    absent = [rank for rank, call in parting.calls.items() if not call]
    return any(out_of_step.waits_inside(job.outcomes[rank]) for rank in absent)


def _of_odd(parting: Parting, job: Job) -> Iterator[Hint]:
    by_text: dict[str, list[int]] = {}
    for rank in sorted(parting.odd):
        by_text.setdefault(parting.told(rank, job.outcomes[rank]), []).append(rank)
    others = tuple(sorted(set(parting.calls) - parting.odd))
    for text, ranks in list(by_text.items())[:TOLD]:
        call, file = parting.calls[ranks[0]], job.files[ranks[0]]
        message = f"{ranges.ranks(ranks)} {text}{_places(parting, ranks, job)}"
        if call:
            place = {"file": call["file"], "line": call["line"]} if call["at"] else {}
            yield Hint("collective_mismatch", message, {**_rank(ranks), **place}, others, file, 90)
        elif parting.is_stuck(ranks[0], job.outcomes[ranks[0]]):
            yield Hint("slow_rank_timeout", message, _rank(ranks), others, file, 60)
        else:
            yield Hint("slow_rank_timeout", message + _late(parting, ranks), _rank(ranks), others, file, 70)


def _of_sides(parting: Parting, job: Job) -> Hint:
    """Where no majority tells who is wrong, or those that have not come wait elsewhere."""
    inside, absent = ([r for r, call in parting.calls.items() if bool(call) is there] for there in (True, False))
    file, noticed = job.files[min(parting.calls)], tuple(sorted(parting.calls))
    if parting.held:
        text = f"{parting.waiting_for_the_held()}; expected all to leave it, and no rank is out of step"
        return Hint("", text, {}, noticed, file, 40, fix=BELOW, code=IN_STEP)
    places = _places(parting, absent, job)
    text = f"the ranks parted: {parting.sides(job.outcomes)}{places}"
    if parting.differs or _wait_for(parting, absent, job) & set(inside):
        text += "; expected the same of all, in the same order"
        return Hint("collective_mismatch", text, {}, noticed, file, 80 if parting.differs else 70)
    if _wait_elsewhere(parting, job):
        text += "; expected these to leave it, and no rank is out of step"
        return Hint("", text, {}, noticed, file, 40, fix=BELOW, code=IN_STEP)
    if len(inside) < len(absent):
        alone = next(parting.named(call) for call in parting.calls.values() if call)
        text = f"{ranges.ranks(inside)} alone entered {alone}, which {ranges.ranks(absent)} never did{places}"
        text += "; expected all ranks of the group, or none"
        return Hint("collective_mismatch", text, _rank(inside), tuple(absent), file, 60)
    text += _late(parting, absent)
    return Hint("slow_rank_timeout", text, _rank(absent), tuple(inside), job.files[absent[0]], 55)


def _wait_for(parting: Parting, ranks: Sequence[int], job: Job) -> set[int]:
    """The members of the other groups in which these ranks wait."""
    groups = [
        "" if one["world"] else one["ranks"]
        for rank in ranks
        for one in job.outcomes[rank].recorded or ()
        if any(not call["over"] for call in one["calls"])
    ]
    return {member for group in set(groups) - {parting.group} for member in job.members(group)}


def _rank(ranks: Sequence[int]) -> dict[str, Any]:
    return {"rank": ranks[0]} if len(ranks) == 1 else {}


def _late(parting: Parting, ranks: Sequence[int]) -> str:
    seconds = max(call["timeout_s"] for call in parting.calls.values() if call)
    limit = f" (the others' time-out is {seconds:,.0f} s)" if seconds else ""
    return f": {ranges.ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} late, stuck or gone{limit}"


def _places(parting: Parting, ranks: Sequence[int], job: Job) -> str:
    """ "; rank 3 at train.py:40, ranks 0-2 at train.py:55", as far as the dumps have frames."""
    at: dict[str, list[int]] = {}
    for rank, call in parting.calls.items():
        if call and call["at"]:
            at.setdefault(f"at {call['at']}", []).append(rank)
        elif not call and rank in ranks and (last := _last(parting.group, job.outcomes[rank])):
            at.setdefault(f"last in {out_of_step.called(last)} #{last['seq']} at {last['at']}", []).append(rank)
    listed = sorted(at.items(), key=lambda one: (set(one[1]).isdisjoint(ranks), -len(one[1])))[:PLACES]
    return f"; {', '.join(f'{ranges.ranks(of)} {text}' for text, of in listed)}" if listed else ""


def _last(group: str, outcome: Outcome) -> Call | None:
    """What a rank entered last in a group, if it is told where that was."""
    of_group = [one for one in outcome.recorded or () if ("" if one["world"] else one["ranks"]) == group]
    calls = [call for one in of_group for call in one["calls"] if call["at"]]
    return calls[-1] if calls else None


def _waiting(job: Job) -> Iterator[tuple[str, dict[int, Call]]]:
    """By group: the first call in which each rank waits long."""
    found: dict[tuple[str, str], dict[int, Call]] = {}
    for rank, outcome in job.outcomes.items():
        for one in outcome.recorded or ():
            if call := next((call for call in one["calls"] if call["stuck"]), None):
                found.setdefault((one["name"], "" if one["world"] else one["ranks"]), {})[rank] = call
    yield from ((group, calls) for (_, group), calls in found.items())


def _named(calls: Mapping[int, Call], group: str) -> str:
    call = next(iter(calls.values()))
    of = f" of the group of {ranges.ranks(ranges.from_text(group))}" if group else ""
    return f"{out_of_step.called(call)} #{call['seq']}{of}"


def _of_missing(job: Job) -> Iterator[Hint]:
    """Those that left no dump, where others wait for them."""
    for group, calls in _waiting(job):
        missing = sorted(job.missing & job.members(group))
        if not missing:
            continue
        few = 4 * len(missing) <= job.world
        why = "ended, or hung before a dump could be written" if few else "their dumps may lie on other nodes"
        text = (
            f"{ranges.ranks(missing)} of {job.world:,} left no dump here, and {ranges.ranks(calls)} "
            f"{'waits' if len(calls) == 1 else 'wait'} inside {_named(calls, group)}: {ranges.ranks(missing)} {why}"
        )
        file = job.files[min(calls)]
        yield Hint("remote_peer_failure", text, _rank(missing), tuple(sorted(calls)), file, 50 if few else 20)
        return


def _of_step(job: Job) -> Iterator[Hint]:
    """All ranks of a group wait inside the same one: it hangs below."""
    for group, calls in _waiting(job):
        numbers = {call["seq"] for call in calls.values()}
        if set(calls) != job.members(group) or len(numbers) > 1:
            continue
        file, named = job.files[min(calls)], _named(calls, group)
        begun, held = ([r for r, call in calls.items() if call["began"] is there] for there in (True, False))
        text = f"all {len(calls):,} ranks wait inside {named}, in step, and none has left it"
        if held and len(held) < len(begun):
            text = (
                f"{named} has not begun on the GPU of {ranges.ranks(held)}, and has on those of {ranges.ranks(begun)}"
            )
            text += ", which wait in it: what was queued before holds it up"
            yield Hint("slow_rank_timeout", text, _rank(held), tuple(begun), job.files[held[0]], 55)
        elif min(numbers) <= FIRST and len(calls) > 1 and next(iter(calls.values()))["backend"] == "nccl":
            text += ": no rank is missing, and nothing has worked on this way before"
            yield Hint("p2p_acs_iommu", text, {}, tuple(sorted(calls)), file, 40)
        else:
            text += ": no rank is missing"
            yield Hint("", text, {}, tuple(sorted(calls)), file, 40, fix=BELOW, code=IN_STEP)
        return


def _of_waiting(job: Job) -> Iterator[Hint]:
    """Somebody waits long, for nobody knows whom."""
    waits: dict[int, str] = {}
    for rank, outcome in job.outcomes.items():
        for one in outcome.recorded or ():
            for call in (*one["calls"], *one["sends"]):
                if call["stuck"]:
                    waits.setdefault(rank, f"{out_of_step.called(call)} #{call['seq']}")
    if waits:
        told = out_of_step.told_of({text: [r for r in waits if waits[r] == text] for text in waits.values()})
        text = f"ranks wait long, and the dumps do not tell for whom: {told}"
        yield Hint("", text, {}, tuple(sorted(waits)), job.files[min(waits)], 30, fix=BELOW, code=IN_STEP)


def _of_sends(job: Job) -> Iterator[Hint]:
    """Who waits in a send or a receive for another rank, which is in none for it, and waits for nobody."""
    wants: dict[tuple[int, int, str], Call] = {}
    for rank, outcome in job.outcomes.items():
        for one in outcome.recorded or ():
            members = sorted(job.members("" if one["world"] else one["ranks"]))
            for call in one["sends"]:
                found = _SEND.match(call["operation"])
                if found and int(found[3]) < len(members) and call["stuck"]:
                    wants[rank, members[int(found[3])], found[1]] = call
    back = {"send": "recv", "recv": "send"}
    alone = {key: call for key, call in wants.items() if (key[1], key[0], back[key[2]]) not in wants}
    held = {rank for rank, *_ in alone}
    for (rank, peer, kind), call in alone.items():
        if peer in job.outcomes and peer not in held:
            words = f"a send to rank {peer}" if kind == "send" else f"a receive from rank {peer}"
            at = f" at {call['at']}" if call["at"] else ""
            text = f"rank {rank} waits in {words}{at}, expected rank {peer} in its {back[kind]}, and it is in none"
            yield Hint("slow_rank_timeout", text, {"rank": peer}, (rank,), job.files[peer], 55)
            return
