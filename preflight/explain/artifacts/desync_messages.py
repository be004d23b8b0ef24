"""Candidates from flight-recorder dumps: ranks out of step, ranks without a dump, and ranks that hang together."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from preflight.core import rank_ranges
from preflight.core.outcome import Outcome
from preflight.explain.artifacts.flight_recorder import Call
from preflight.explain.candidates import Candidate, from_artifact
from preflight.hangs.desync import (
    Desync,
    describe_by_rank,
    describe_call,
    describe_numbered,
    find_desyncs,
    waits_inside,
)

TOLD = 8
"""At most this many different actions of odd ranks get a candidate each."""
PLACES = 3
"""Places in the user's code that a sentence names."""
FIRST = 2
"""If no rank leaves a collective up to this number, this path between the GPUs has never worked."""
IN_STEP = "explain.in_step"
"""The code of a hang in which all ranks are in step, which names no cause."""
BELOW = (
    "Look below the collectives: run preflight on these nodes (it names the GPU, the link or the node), and there "
    "dmesg -T | grep -iE 'xid|nvlink|mlx5'."
)
AT_ITS_GPU = (
    "All others have finished that call: look at that rank's GPU, not at the branches of your code. Run preflight on "
    "its node, and there dmesg -T | grep -iE 'xid|nvlink|mlx5'; a kernel that never ends: py-spy dump, cuda-gdb."
)
ROOTED = re.compile("broadcast|scatter|gather|reduce")
NO_ROOT = re.compile("all_|_scatter|allreduce|allgather|alltoall")
ROOT = "Do all ranks name the same src or dst? No record shows it, and where they differ, each waits for another. "
"""Before BELOW, for operations with a root."""
_SEND = re.compile(r"(send|recv) (\d{1,6})(?:->|<-)(\d{1,6})")


@dataclass(frozen=True)
class JobDumps:
    outcomes: Mapping[int, Outcome]
    """By rank, of those with a dump. `recorded` has more than in a live check: a group's name and sends, and calls as
    in flight_recorder."""
    files: Mapping[int, str]
    world: int

    @property
    def missing(self) -> set[int]:
        return set(range(self.world)) - set(self.outcomes)

    def records(self) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        """Yields rank, group (named as in a Desync) and record, for each rank and group."""
        for rank, outcome in self.outcomes.items():
            for record in outcome.recorded or ():
                yield rank, "" if record["world"] else record["ranks"], record

    def unfinished(self) -> dict[int, tuple[str, set[int]]]:
        """Of each rank the operation of its first call that is not over, and the ranks of that call's group."""
        found: dict[int, tuple[str, set[int]]] = {}
        for rank, group, record in self.records():
            for call in record["calls"]:
                if not call["over"]:
                    found.setdefault(rank, (str(call["operation"]), self.ranks_of(group)))
        return found

    def ranks_of(self, group: str) -> set[int]:
        """The ranks of `group`, which is named as in a Desync: by its ranks, or "" for the world."""
        return set(rank_ranges.from_text(group)) if group else set(range(self.world))


def find_candidates(job: JobDumps) -> Iterator[Candidate]:
    """Yields only the most direct causes: if ranks are out of step, the other waits follow from that."""
    desyncs = find_desyncs(job.outcomes)
    candidates = [candidate for desync in desyncs if desync.odd for candidate in _odd_ranks(desync, job)]
    candidates = candidates or [_two_sides(desync, job) for desync in desyncs if not _wait_elsewhere(desync, job)]
    candidates = candidates or list(_missing_dumps(job)) or [_two_sides(desync, job) for desync in desyncs]
    yield from candidates or list(_unmatched_sends(job)) or list(_all_in_step(job)) or _unknown_waits(job)


def _wait_elsewhere(desync: Desync, job: JobDumps) -> bool:
    """Whether absent ranks are inside a different collective, which may have hung first."""
    absent = [rank for rank, call in desync.calls.items() if not call]
    return any(waits_inside(job.outcomes[rank]) for rank in absent)


def _odd_ranks(desync: Desync, job: JobDumps) -> Iterator[Candidate]:
    by_text: dict[str, list[int]] = {}
    for rank in sorted(desync.odd):
        by_text.setdefault(desync.describe_odd(rank, job.outcomes[rank]), []).append(rank)
    others = tuple(sorted(set(desync.calls) - desync.odd))
    for text, ranks in list(by_text.items())[:TOLD]:
        call, file = desync.calls[ranks[0]], job.files[ranks[0]]
        message = f"{rank_ranges.ranks(ranks)} {text}{_places(desync, ranks, job)}"
        if call:
            place = {"file": call["file"], "line": call["line"]} if call["at"] else {}
            yield from_artifact("collective_mismatch", message, {**_rank(ranks), **place}, others, file, 90)
        elif desync.is_stuck(ranks[0], job.outcomes[ranks[0]]):
            yield from_artifact("slow_rank_timeout", message, _rank(ranks), others, file, 60, fix=AT_ITS_GPU)
        else:
            yield from_artifact("slow_rank_timeout", message + _late(desync, ranks), _rank(ranks), others, file, 70)


def _two_sides(desync: Desync, job: JobDumps) -> Candidate:
    """The candidate for a desync without a majority, or with absent ranks that wait elsewhere."""
    inside, absent = ([r for r, call in desync.calls.items() if bool(call) is there] for there in (True, False))
    file, noticed = job.files[min(desync.calls)], tuple(sorted(desync.calls))
    if desync.held:
        text = f"{desync.describe_held()}; expected all to leave it; the ranks are not at fault"
        return from_artifact("", text, {}, noticed, file, 40, fix=BELOW, code=IN_STEP)
    places = _places(desync, absent, job)
    text = f"the ranks are out of step: {desync.describe_sides(job.outcomes)}{places}"
    if desync.differs or _wait_for(desync, absent, job) & set(inside):
        text += "; expected the same calls on all ranks, in the same order"
        return from_artifact("collective_mismatch", text, {}, noticed, file, 80 if desync.differs else 70)
    if _wait_elsewhere(desync, job):
        text += "; expected them to leave it; the ranks are not at fault"
        return from_artifact("", text, {}, noticed, file, 40, fix=BELOW, code=IN_STEP)
    if len(inside) < len(absent):
        alone = next(desync.describe_numbered(call) for call in desync.calls.values() if call)
        text = f"{rank_ranges.ranks(inside)} alone entered {alone}, which {rank_ranges.ranks(absent)} never did{places}"
        text += "; expected all ranks of the group, or none"
        return from_artifact("collective_mismatch", text, _rank(inside), tuple(absent), file, 60)
    text += _late(desync, absent)
    return from_artifact("slow_rank_timeout", text, _rank(absent), tuple(inside), job.files[absent[0]], 55)


def _wait_for(desync: Desync, ranks: Sequence[int], job: JobDumps) -> set[int]:
    """The ranks of the other groups in which these ranks wait."""
    groups = {
        group for rank, group, record in job.records()
        if rank in ranks and any(not call["over"] for call in record["calls"])
    }  # fmt: skip
    return {member for group in groups - {desync.group} for member in job.ranks_of(group)}


def _rank(ranks: Sequence[int]) -> dict[str, Any]:
    return {"rank": ranks[0]} if len(ranks) == 1 else {}


def _late(desync: Desync, ranks: Sequence[int]) -> str:
    seconds = max(call["timeout_s"] for call in desync.calls.values() if call)
    limit = f" (the others' timeout is {seconds:,.0f} s)" if seconds else ""
    return f": {rank_ranges.ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} late, stuck or gone{limit}"


def _places(desync: Desync, ranks: Sequence[int], job: JobDumps) -> str:
    """ "; rank 3 at train.py:40, ranks 0-2 at train.py:55", as far as the dumps have frames."""
    at: dict[str, list[int]] = {}
    for rank, call in desync.calls.items():
        if call and call["at"]:
            at.setdefault(f"at {call['at']}", []).append(rank)
        elif not call and rank in ranks and (last := _last(rank, desync.group, job)):
            at.setdefault(f"last in {describe_call(last)} #{last['seq']} at {last['at']}", []).append(rank)
    listed = sorted(at.items(), key=lambda place: (set(place[1]).isdisjoint(ranks), -len(place[1])))[:PLACES]
    return f"; {', '.join(f'{rank_ranges.ranks(of)} {text}' for text, of in listed)}" if listed else ""


def _last(rank: int, group: str, job: JobDumps) -> Call | None:
    """The last call of a rank in a group, if its line is known."""
    records = [record for of, name, record in job.records() if (of, name) == (rank, group)]
    calls = [call for record in records for call in record["calls"] if call["at"]]
    return calls[-1] if calls else None


def _first_waits(job: JobDumps) -> Iterator[tuple[str, dict[int, Call]]]:
    """Yields each group with the first stuck call of each of its ranks."""
    waits: dict[tuple[str, str], dict[int, Call]] = {}
    for rank, group, record in job.records():
        if call := next((call for call in record["calls"] if call["stuck"]), None):
            waits.setdefault((record["name"], group), {})[rank] = call
    yield from ((group, calls) for (_, group), calls in waits.items())


def _missing_dumps(job: JobDumps) -> Iterator[Candidate]:
    for group, calls in _first_waits(job):
        missing = sorted(job.missing & job.ranks_of(group))
        if not missing:
            continue
        few, who, call = 4 * len(missing) <= job.world, rank_ranges.ranks(missing), next(iter(calls.values()))
        whose = "their dumps may be on other nodes" if len(missing) > 1 else "its dump may be on another node"
        why = f"{who} ended, or hung before a dump was written" if few else f"{who} ended, or {whose}"
        text = (
            f"{who} of {job.world:,} left no dump here, and {rank_ranges.ranks(calls)} "
            f"{'waits' if len(calls) == 1 else 'wait'} inside {describe_numbered(call, group)}"
            f"{' at ' + call['at'] if call['at'] else ''}: {why}"
        )
        file = job.files[min(calls)]
        yield from_artifact("remote_peer_failure", text, _rank(missing), tuple(sorted(calls)), file, 50 if few else 20)
        return


def _all_in_step(job: JobDumps) -> Iterator[Candidate]:
    """For groups whose ranks all wait inside the same call: the hang is below the collectives."""
    for group, calls in _first_waits(job):
        numbers = {call["seq"] for call in calls.values()}
        if set(calls) != job.ranks_of(group) or len(numbers) > 1:
            continue
        file, named = job.files[min(calls)], describe_numbered(next(iter(calls.values())), group)
        begun, held = ([r for r, call in calls.items() if call["began"] is there] for there in (True, False))
        text = f"all {len(calls):,} ranks wait inside {named}, in step, and none has left it"
        if held and len(held) < len(begun):
            begun_on = f"and has on those of {rank_ranges.ranks(begun)}, which wait in it"
            text = f"{named} has not begun on the GPU of {rank_ranges.ranks(held)}, {begun_on}"
            text += ": what was queued before holds it up"
            yield from_artifact("slow_rank_timeout", text, _rank(held), tuple(begun), job.files[held[0]], 55)
        elif min(numbers) <= FIRST and len(calls) > 1 and next(iter(calls.values()))["backend"] == "nccl":
            text += ": no rank is missing, and nothing has worked on this way before"
            yield from_artifact("p2p_acs_iommu", text, {}, tuple(sorted(calls)), file, 40)
        else:
            text += ": no rank is missing"
            operation = next(iter(calls.values()))["operation"]
            is_rooted = ROOTED.search(operation) and not NO_ROOT.search(operation)
            fix = f"{ROOT if is_rooted else ''}{BELOW}"
            yield from_artifact("", text, {}, tuple(sorted(calls)), file, 40, fix=fix, code=IN_STEP)
        return


def _unknown_waits(job: JobDumps) -> Iterator[Candidate]:
    waits: dict[int, str] = {}
    for rank, _, record in job.records():
        for call in (*record["calls"], *record["sends"]):
            if call["stuck"]:
                waits.setdefault(rank, f"{describe_call(call)} #{call['seq']}")
    if waits:
        stuck = describe_by_rank({text: [r for r in waits if waits[r] == text] for text in waits.values()})
        text = f"ranks wait long, and the dumps do not show for which rank: {stuck}"
        yield from_artifact("", text, {}, tuple(sorted(waits)), job.files[min(waits)], 30, fix=BELOW, code=IN_STEP)


def _unmatched_sends(job: JobDumps) -> Iterator[Candidate]:
    """For ranks that wait in a send or receive for a rank that has no matching call and waits for none."""
    wants: dict[tuple[int, int, str], Call] = {}
    for rank, group, record in job.records():
        members = sorted(job.ranks_of(group))
        for call in record["sends"]:
            match = _SEND.match(call["operation"])
            if match and int(match[3]) < len(members) and call["stuck"]:
                wants[rank, members[int(match[3])], match[1]] = call
    back = {"send": "recv", "recv": "send"}
    alone = {key: call for key, call in wants.items() if (key[1], key[0], back[key[2]]) not in wants}
    held = {rank for rank, *_ in alone}
    for (rank, peer, kind), call in alone.items():
        if peer in job.outcomes and peer not in held:
            words = f"a send to rank {peer}" if kind == "send" else f"a receive from rank {peer}"
            at = f" at {call['at']}" if call["at"] else ""
            text = f"rank {rank} waits in {words}{at}, expected rank {peer} to be in its {back[kind]}, but it is not"
            yield from_artifact("slow_rank_timeout", text, {"rank": peer}, (rank,), job.files[peer], 55)
            return
