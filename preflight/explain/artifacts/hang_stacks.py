"""Where each rank is in a hang, by the stacks that `preflight debug` took: which ranks wait, and for which."""

from collections.abc import Sequence
from typing import Any

from preflight.core import rank_ranges
from preflight.core.exceptions import Frame
from preflight.explain.artifacts.processes import ProcessSample, RankProcess, collective, format_place, own_place
from preflight.explain.candidates import Candidate, from_artifact
from preflight.failure_book.line import RANKS

STOPPED, UNINTERRUPTIBLE, LATE, APART, ALONE, LINES = 90, 85, 80, 80, 60, 50
"""Weights: a rank that is stopped, or in an uninterruptible system call; one that is late while others wait; ranks in
different collectives; all at one place of their own code; in one collective, called from different lines."""
POINT_TO_POINT = {"send", "recv", "isend", "irecv", "batch_isend_irecv", "wait"}
_LOADER = ("_get_data", "_try_get_data")
RanksByText = dict[str, list[int]]
"""Ranks by what they do."""


def find_candidates(processes: Sequence[RankProcess]) -> list[Candidate]:
    """The reasons for a hang, the most direct first; [] if the stacks show none."""
    seen = [process for process in processes if process.samples]
    if not seen:
        return []
    halted = [candidate for process in seen for candidate in _halted(process, seen)]
    return halted or _late(seen, processes) or _in_different_places(seen, processes)


def describe_places(processes: Sequence[RankProcess]) -> list[str]:
    """For the screen: "rank 1 at train.py:41 in load()", a line per place."""
    ranks_at: RanksByText = {}
    for process in processes:
        if process.samples:
            ranks_at.setdefault(_describe_activity(process), []).append(process.rank)
    return [f"{rank_ranges.ranks(ranks)} {words}" for words, ranks in ranks_at.items()]


def _describe_activity(process: RankProcess) -> str:
    state, at = process.samples[0].head.get("state"), _place(process)
    where = f" at {format_place(at)}" if at else ""
    if state in ("T", "t"):
        return "stopped"
    if not process.samples[0].frames:
        return f"did not answer (state {state or 'gone'})"
    waits = _waits_in(process)
    return f"inside {waits}{where}" if waits else f"{where.strip() or 'in library code'}{_workers_words(process)}"


def _waits_in(process: RankProcess) -> str:
    return collective(process.samples[0].frames)


def _loads(frames: Sequence[Frame]) -> bool:
    """Whether it waits for the next batch of a DataLoader's workers (torch/utils/data/dataloader.py)."""
    return any(function in _LOADER and path.endswith("dataloader.py") for path, _, function, _ in frames)


def _workers(process: RankProcess) -> list[ProcessSample]:
    return process.samples[1:] if _loads(process.samples[0].frames) else []


def _place(process: RankProcess) -> tuple[str, int, str] | None:
    """The innermost line of the user's code; of a DataLoader worker's, if it waits for one."""
    for samples in (*_workers(process), process.samples[0]):
        if place := own_place(samples.frames, process.record):
            return place
    return None


def _workers_words(process: RankProcess) -> str:
    if not _loads(process.samples[0].frames):
        return ""
    silent = [str(samples.head.get("state")) for samples in _workers(process) if not samples.frames]
    more = f"; {len(silent)} of them did not answer (state {silent[0]})" if silent else ""
    return f", waiting for {rank_ranges.count(len(_workers(process)), 'DataLoader worker')}{more}"


def _halted(process: RankProcess, seen: Sequence[RankProcess]) -> list[Candidate]:
    head = process.samples[0].head
    state, kernel = head.get("state"), head.get("kernel")
    others = tuple(each.rank for each in seen if each is not process and _waits_in(each))
    where = {"rank": process.rank, "node": process.node}
    waited = f"; {rank_ranges.ranks(others)} waited for it inside a collective" if others else ""
    if state in ("T", "t"):
        who = f"rank {process.rank} on {process.node} (pid {process.pid})"
        message = f"{who} is stopped (state {state}), expected it to run{waited}"
        fix = f"There: kill -CONT {process.pid}; find out what stopped it: a debugger, Ctrl-Z, a batch system."
        return [from_artifact("external_signal", message, where, others, process.file, STOPPED, fix=fix)]
    stuck = [sample for sample in process.samples if sample.head.get("state") == "D"]
    if not stuck:
        return []
    who = f"rank {process.rank}" if stuck[0] is process.samples[0] else f"a DataLoader worker of rank {process.rank}"
    call = f" ({kernel})" if isinstance(kernel, str) and kernel else ""
    uninterruptible = f"in an uninterruptible system call{call}"
    message = f"{who} on {process.node} is {uninterruptible}, expected it to return{waited}"
    fix = "There: dmesg -T | tail; does its storage answer (ls, df on the files it reads)? If not, that is the cause."
    return [from_artifact("slow_rank_timeout", message, where, others, process.file, UNINTERRUPTIBLE, fix=fix)]


def _late(seen: Sequence[RankProcess], processes: Sequence[RankProcess]) -> list[Candidate]:
    """Ranks that do something else while others wait inside a collective; or all, at one place."""
    waiting = [process for process in seen if _waits_in(process)]
    late = [process for process in seen if not _waits_in(process) and process.samples[0].frames]
    if not late or not (waiting or len({_describe_activity(process) for process in late}) == 1):
        return []
    others = tuple(process.rank for process in waiting)
    by_place: dict[str, list[RankProcess]] = {}
    for process in late:
        by_place.setdefault(_describe_activity(process), []).append(process)
    return [_of_late(does, those, waiting, others, processes) for does, those in by_place.items()]


def _of_late(
    does: str,
    those: Sequence[RankProcess],
    waiting: Sequence[RankProcess],
    others: tuple[int, ...],
    processes: Sequence[RankProcess],
) -> Candidate:
    first, place = those[0], _place(those[0])
    where: dict[str, Any] = {"rank": first.rank, "node": first.node} if len(those) == 1 else {}
    where |= {"file": place[0], "line": place[1]} if place else {}
    waits = f", with {_sides(waiting)}; expected all to enter it" if waiting else "; expected it to go on"
    who = rank_ranges.ranks(process.rank for process in those)
    message = f"{who} stayed {does} in two samples{waits}{_unseen(processes)}"
    fix = _FIX_LOADER if _loads(first.samples[0].frames) else _FIX_LATE
    return from_artifact("slow_rank_timeout", message, where, others, first.file, LATE if waiting else ALONE, fix=fix)


_FIX_LOADER = (
    "See what the worker does at that line: storage that does not answer, a lock that was held at the fork, a queue "
    "that is never filled. num_workers=0 shows it in the rank's own stack; DataLoader(timeout=60) raises instead."
)
_FIX_LATE = (
    "See what the rank does at that line, and why the others do not: all stacks are in the report's folder (stacks/)."
)


def _in_different_places(seen: Sequence[RankProcess], processes: Sequence[RankProcess]) -> list[Candidate]:
    """All wait, but in different places."""
    names = {_waits_in(process) for process in seen} - {""}
    if len(seen) < 2 or names & POINT_TO_POINT or any(not process.samples[0].frames for process in seen):
        return []
    lines = {_place(process) for process in seen}
    if len(names) < 2 and len(lines) < 2:
        return []
    words = "different collectives" if len(names) > 1 else "one collective, called from different lines"
    message = f"ranks wait in {words}: {_sides(seen)}; expected all to call the same ones in the same order"
    return [
        from_artifact(
            "collective_mismatch",
            f"{message}{_unseen(processes)}",
            _odd(seen),
            (),
            seen[0].file,
            APART if len(names) > 1 else LINES,
        )
    ]


def _odd(seen: Sequence[RankProcess]) -> dict[str, Any]:
    """The only rank in a different place, if there are at least three."""
    by_activity: dict[str, list[RankProcess]] = {}
    for process in seen:
        by_activity.setdefault(_describe_activity(process), []).append(process)
    few = [those[0] for those in by_activity.values() if len(those) == 1]
    if len(seen) < 3 or len(by_activity) != 2 or len(few) != 1:
        return {}
    place = _place(few[0])
    where: dict[str, Any] = {"rank": few[0].rank, "node": few[0].node}
    return where | ({"file": place[0], "line": place[1]} if place else {})


def _sides(processes: Sequence[RankProcess]) -> str:
    """ "ranks 0-2 inside all_reduce at train.py:50, rank 3 inside barrier at train.py:60"."""
    return ", ".join(describe_places(processes))


def _unseen(processes: Sequence[RankProcess]) -> str:
    """Ranks without a stack."""
    size = max((process.record.get("world_size") or 0 for process in processes), default=0)
    missing = set(range(min(size, RANKS))) - {process.rank for process in processes if process.samples}
    return f"; no stack of {rank_ranges.ranks(missing)}" if missing else ""
