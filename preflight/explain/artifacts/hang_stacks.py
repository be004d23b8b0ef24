"""Where each rank is in a hang, by the stacks that `preflight debug` took: which ranks wait, and for which."""

from collections.abc import Sequence
from typing import Any

from preflight.core import rank_ranges
from preflight.core.exceptions import Frame
from preflight.explain.artifacts.first_failure import left_at
from preflight.explain.artifacts.processes import (
    ProcessSample,
    RankProcess,
    collective,
    format_place,
    own_place,
    place_where,
    ranks,
)
from preflight.explain.candidates import Candidate, from_artifact
from preflight.failure_book.line import RANKS

STOPPED, UNINTERRUPTIBLE, LATE, APART, ALONE, LINES = 90, 85, 80, 80, 60, 50
"""Weights: a rank that is stopped, or in an uninterruptible system call; one that is late while others wait; ranks in
different collectives; all at one place of their own code; in one collective, called from different lines."""
POINT_TO_POINT = {"send", "recv", "isend", "irecv", "batch_isend_irecv", "wait"}
_LOADER = ("_get_data", "_try_get_data")
_FIX_LOADER = (
    "See what the worker does at that line: storage that does not answer, a lock that was held at the fork, a queue "
    "that is never filled. num_workers=0 shows it in the rank's own stack; DataLoader(timeout=60) raises instead."
)
_FIX_LATE = (
    "See what the rank does at that line, and why the others do not: all stacks are in the report's folder (stacks/)."
)


def find_candidates(processes: Sequence[RankProcess]) -> list[Candidate]:
    """The reasons for a hang, the most direct first; [] if the stacks show none."""
    sampled = [process for process in processes if process.samples]
    halted = [candidate for process in sampled for candidate in _halted(process, sampled)]
    moved = _late(sampled, processes) or _in_different_places(sampled, processes)
    return halted or moved or _departed(sampled, processes)


def describe_places(processes: Sequence[RankProcess]) -> list[str]:
    """For the screen: "rank 1 at train.py:41 in load()", a line per place."""
    return [f"{ranks(those)} {activity}" for activity, those in _by_activity(processes).items()]


def _by_activity(processes: Sequence[RankProcess]) -> dict[str, list[RankProcess]]:
    groups: dict[str, list[RankProcess]] = {}
    for process in processes:
        if process.samples:
            groups.setdefault(_describe_activity(process), []).append(process)
    return groups


def _describe_activity(process: RankProcess) -> str:
    state, at = process.samples[0].head.get("state"), _place(process)
    where = f" at {format_place(at)}" if at else ""
    if state in ("T", "t"):
        return "stopped"
    if not process.samples[0].frames:
        return f"did not answer (state {state or 'gone'})"
    waits = _waits_in(process)
    return f"inside {waits}{where}" if waits else f"{where.strip() or 'in library code'}{_describe_workers(process)}"


def _waits_in(process: RankProcess) -> str:
    recorded = process.unfinished[0] if process.unfinished and process.samples[0].frames else ""
    return collective(process.samples[0].frames) or recorded


def _loads(frames: Sequence[Frame]) -> bool:
    """Whether the rank waits for the next batch of a DataLoader's workers (torch/utils/data/dataloader.py)."""
    return any(function in _LOADER and path.endswith("dataloader.py") for path, _, function, _ in frames)


def _workers(process: RankProcess) -> list[ProcessSample]:
    return process.samples[1:] if _loads(process.samples[0].frames) else []


def _place(process: RankProcess) -> tuple[str, int, str] | None:
    """The innermost line of the user's code; a DataLoader worker's, if the rank waits for one."""
    places = (own_place(sample.frames, process.record) for sample in (*_workers(process), process.samples[0]))
    return next(filter(None, places), None)


def _describe_workers(process: RankProcess) -> str:
    if not _loads(process.samples[0].frames):
        return ""
    workers = _workers(process)
    silent = [str(worker.head.get("state")) for worker in workers if not worker.frames]
    more = f"; {len(silent)} of them did not answer (state {silent[0]})" if silent else ""
    return f", waiting for {rank_ranges.count(len(workers), 'DataLoader worker')}{more}"


def _halted(process: RankProcess, sampled: Sequence[RankProcess]) -> list[Candidate]:
    head = process.samples[0].head
    state, kernel = head.get("state"), head.get("kernel")
    waiting = [other for other in sampled if other is not process and _waits_in(other)]
    waited = f"; {ranks(waiting)} waited for it inside a collective" if waiting else ""
    others, file = [other.rank for other in waiting], process.file
    if state in ("T", "t"):
        message = f"{process.name} is stopped (state {state}), expected it to run{waited}"
        fix = f"There: kill -CONT {process.pid}; find out what stopped it: a debugger, Ctrl-Z, a batch system."
        return [from_artifact("external_signal", message, process.where, others, file, STOPPED, fix=fix)]
    stuck = [sample for sample in process.samples if sample.head.get("state") == "D"]
    if not stuck:
        return []
    who = f"rank {process.rank}" if stuck[0] is process.samples[0] else f"a DataLoader worker of rank {process.rank}"
    call = f" ({kernel})" if isinstance(kernel, str) and kernel else ""
    message = f"{who} on {process.node} is in an uninterruptible system call{call}, expected it to return{waited}"
    fix = "There: dmesg -T | tail; does its storage answer (ls, df on the files it reads)? If not, that is the cause."
    return [from_artifact("slow_rank_timeout", message, process.where, others, file, UNINTERRUPTIBLE, fix=fix)]


def _late(sampled: Sequence[RankProcess], processes: Sequence[RankProcess]) -> list[Candidate]:
    """Ranks that do something else while others wait inside a collective; or all, at one place."""
    waiting = [process for process in sampled if _waits_in(process)]
    late = _by_activity([process for process in sampled if not _waits_in(process) and process.samples[0].frames])
    if not waiting and len(late) != 1:
        return []
    sides = f", with {_sides(waiting)}; expected all to enter it" if waiting else "; expected it to go on"
    others, weight = [process.rank for process in waiting], LATE if waiting else ALONE
    candidates = []
    for activity, those in late.items():
        first = those[0]
        message = f"{ranks(those)} stayed {activity} in two samples{sides}{_unseen(processes)}"
        where = {**(first.where if len(those) == 1 else {}), **place_where(_place(first))}
        fix = _FIX_LOADER if _loads(first.samples[0].frames) else _FIX_LATE
        candidates.append(from_artifact("slow_rank_timeout", message, where, others, first.file, weight, fix=fix))
    return candidates


def _departed(sampled: Sequence[RankProcess], processes: Sequence[RankProcess]) -> list[Candidate]:
    """Ranks that ended in order while all others wait inside a collective that they are part of."""
    waiting = [process for process in sampled if _waits_in(process)]
    left = [process for process in processes if not process.samples and left_at(process)]
    awaited = [p for p in left if all(w.unfinished is None or p.rank in w.unfinished[1] for w in waiting)]
    if not waiting or len(waiting) != len(sampled) or not awaited:
        return []
    message = f"{ranks(awaited)} finished the script while others waited: {_sides(waiting)}; expected all to enter it"
    where, others = awaited[0].where if len(awaited) == 1 else {}, [process.rank for process in waiting]
    return [from_artifact("collective_mismatch", message, where, others, awaited[0].file, LATE)]


def _in_different_places(sampled: Sequence[RankProcess], processes: Sequence[RankProcess]) -> list[Candidate]:
    names = {_waits_in(process) for process in sampled} - {""}
    if len(sampled) < 2 or names & POINT_TO_POINT or any(not process.samples[0].frames for process in sampled):
        return []
    if len(names) < 2 and len({_place(process) for process in sampled}) < 2:
        return []
    where = "different collectives" if len(names) > 1 else "one collective, called from different lines"
    message = f"ranks wait in {where}: {_sides(sampled)}; expected all to call the same ones in the same order"
    weight = APART if len(names) > 1 else LINES
    text = f"{message}{_unseen(processes)}"
    return [from_artifact("collective_mismatch", text, _odd(sampled), (), sampled[0].file, weight)]


def _odd(sampled: Sequence[RankProcess]) -> dict[str, Any]:
    """The only rank in a different place, if there are at least three."""
    groups = _by_activity(sampled).values()
    alone = [those[0] for those in groups if len(those) == 1]
    if len(sampled) < 3 or len(groups) != 2 or len(alone) != 1:
        return {}
    return {**alone[0].where, **place_where(_place(alone[0]))}


def _sides(processes: Sequence[RankProcess]) -> str:
    """ "ranks 0-2 inside all_reduce at train.py:50, rank 3 inside barrier at train.py:60"."""
    return ", ".join(describe_places(processes))


def _unseen(processes: Sequence[RankProcess]) -> str:
    size = max((process.world_size for process in processes), default=0)
    missing = set(range(min(size, RANKS))) - {process.rank for process in processes if process.samples}
    return f"; no stack of {rank_ranges.ranks(missing)}" if missing else ""
