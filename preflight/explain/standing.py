"""Who stands where in a hang, by the stacks that `preflight debug` took: who waits, and whom for."""

from collections.abc import Sequence
from typing import Any

from preflight import ranges
from preflight.explain.hint import Hint
from preflight.explain.line import RANKS
from preflight.explain.processes import Process, Taken, collective, own_place, told
from preflight.raised import Frame

STOPPED, UNINTERRUPTIBLE, LATE, APART, ALONE, LINES = 90, 85, 80, 80, 60, 50
"""Weights: a rank that is stopped, or in a call to the kernel that nothing ends; one that is late while others wait;
ranks in different collectives; all at one place of their own code; in one collective, called from different lines."""
POINT_TO_POINT = {"send", "recv", "isend", "irecv", "batch_isend_irecv", "wait"}
_LOADER = ("_get_data", "_try_get_data")
Told = dict[str, list[int]]
"""Ranks by what they do."""


def hints(processes: Sequence[Process]) -> list[Hint]:
    """The reasons for a hang, the most direct first; [] where the stacks show none."""
    seen = [one for one in processes if one.taken]
    if not seen:
        return []
    halted = [hint for one in seen for hint in _halted(one, seen)]
    return halted or _late(seen, processes) or _apart(seen, processes)


def places(processes: Sequence[Process]) -> list[str]:
    """For the screen: "rank 1 at train.py:41 in load()", a line for all ranks of one place."""
    found: Told = {}
    for one in processes:
        if one.taken:
            found.setdefault(_does(one), []).append(one.rank)
    return [f"{ranges.ranks(ranks)} {words}" for words, ranks in found.items()]


def _does(one: Process) -> str:
    state, at = one.taken[0].head.get("state"), _place(one)
    where = f" at {told(at)}" if at else ""
    if state in ("T", "t"):
        return "stopped"
    if not one.taken[0].frames:
        return f"did not tell where it is (state {state or 'gone'})"
    waits = _waits(one)
    return (
        f"inside {waits}{where}" if waits else f"{where.strip() or 'in code that is not its own'}{_workers_words(one)}"
    )


def _waits(one: Process) -> str:
    return collective(one.taken[0].frames)


def _loads(frames: Sequence[Frame]) -> bool:
    """Whether it waits for the next batch of a DataLoader's workers (torch/utils/data/dataloader.py)."""
    return any(function in _LOADER and path.endswith("dataloader.py") for path, _, function, _ in frames)


def _workers(one: Process) -> list[Taken]:
    return one.taken[1:] if _loads(one.taken[0].frames) else []


def _place(one: Process) -> tuple[str, int, str] | None:
    """The innermost line of its user's; in a worker of its DataLoader, where it waits for one."""
    for taken in (*_workers(one), one.taken[0]):
        if found := own_place(taken.frames, one.record):
            return found
    return None


def _workers_words(one: Process) -> str:
    if not _loads(one.taken[0].frames):
        return ""
    silent = [str(taken.head.get("state")) for taken in _workers(one) if not taken.frames]
    more = f", of which {len(silent)} do not tell where they are (state {silent[0]})" if silent else ""
    return f", waiting for {ranges.count(len(_workers(one)), 'DataLoader worker')}{more}"


def _halted(one: Process, seen: Sequence[Process]) -> list[Hint]:
    head = one.taken[0].head
    state, kernel = head.get("state"), head.get("kernel")
    others = tuple(each.rank for each in seen if each is not one and _waits(each))
    where = {"rank": one.rank, "node": one.node}
    waited = f"; {ranges.ranks(others)} waited for it inside a collective" if others else ""
    if state in ("T", "t"):
        message = (
            f"rank {one.rank} on {one.node} (pid {one.pid}) is stopped (state {state}), expected it to run{waited}"
        )
        fix = f"There: kill -CONT {one.pid}; ask who stopped it: a debugger, a batch system that suspends jobs, Ctrl-Z."
        return [Hint("external_signal", message, where, others, one.file, STOPPED, fix=fix)]
    stuck = [taken for taken in one.taken if taken.head.get("state") == "D"]
    if not stuck:
        return []
    who = f"rank {one.rank}" if stuck[0] is one.taken[0] else f"a DataLoader worker of rank {one.rank}"
    call = f" ({kernel})" if isinstance(kernel, str) and kernel else ""
    uninterruptible = f"in a call to the kernel{call} that cannot be interrupted"
    message = f"{who} on {one.node} is {uninterruptible}, expected it to return{waited}"
    fix = "There: dmesg -T | tail; does its storage answer (ls, df on what it reads)? If not, that is the cause."
    return [Hint("slow_rank_timeout", message, where, others, one.file, UNINTERRUPTIBLE, fix=fix)]


def _late(seen: Sequence[Process], processes: Sequence[Process]) -> list[Hint]:
    """Ranks that do something of their own while others wait inside a collective; or all, at one place."""
    waiting = [one for one in seen if _waits(one)]
    late = [one for one in seen if not _waits(one) and one.taken[0].frames]
    if not late or not (waiting or len({_does(one) for one in late}) == 1):
        return []
    others = tuple(one.rank for one in waiting)
    by_place: dict[str, list[Process]] = {}
    for one in late:
        by_place.setdefault(_does(one), []).append(one)
    return [_of_late(does, those, waiting, others, processes) for does, those in by_place.items()]


def _of_late(
    does: str,
    those: Sequence[Process],
    waiting: Sequence[Process],
    others: tuple[int, ...],
    processes: Sequence[Process],
) -> Hint:
    first, place = those[0], _place(those[0])
    where: dict[str, Any] = {"rank": first.rank, "node": first.node} if len(those) == 1 else {}
    where |= {"file": place[0], "line": place[1]} if place else {}
    waits = f", with {_sides(waiting)}; expected all to enter it" if waiting else "; expected it to go on"
    message = f"{ranges.ranks(one.rank for one in those)} stood {does} in two looks{waits}{_unseen(processes)}"
    fix = _FIX_LOADER if _loads(first.taken[0].frames) else _FIX_LATE
    return Hint("slow_rank_timeout", message, where, others, first.file, LATE if waiting else ALONE, fix=fix)


_FIX_LOADER = (
    "See what the worker does at that line: storage that does not answer, a lock that was held at the fork, a queue "
    "that nobody fills. num_workers=0 shows it in the rank's own stack; DataLoader(timeout=60) makes it an exception."
)
_FIX_LATE = (
    "See what the rank does at that line, and why the others do not: the report's folder has all stacks (stacks/)."
)


def _apart(seen: Sequence[Process], processes: Sequence[Process]) -> list[Hint]:
    """All wait, but not for the same."""
    names = {_waits(one) for one in seen} - {""}
    if len(seen) < 2 or names & POINT_TO_POINT or any(not one.taken[0].frames for one in seen):
        return []
    lines = {_place(one) for one in seen}
    if len(names) < 2 and len(lines) < 2:
        return []
    words = "different collectives" if len(names) > 1 else "one collective, called from different lines"
    message = f"ranks wait in {words}: {_sides(seen)}; expected all to call the same ones in the same order"
    return [
        Hint(
            "collective_mismatch",
            f"{message}{_unseen(processes)}",
            _odd(seen),
            (),
            seen[0].file,
            APART if len(names) > 1 else LINES,
        )
    ]


def _odd(seen: Sequence[Process]) -> dict[str, Any]:
    """The one that stands elsewhere than all others, where there are at least three."""
    found: dict[str, list[Process]] = {}
    for one in seen:
        found.setdefault(_does(one), []).append(one)
    few = [those[0] for those in found.values() if len(those) == 1]
    if len(seen) < 3 or len(found) != 2 or len(few) != 1:
        return {}
    place = _place(few[0])
    where: dict[str, Any] = {"rank": few[0].rank, "node": few[0].node}
    return where | ({"file": place[0], "line": place[1]} if place else {})


def _sides(processes: Sequence[Process]) -> str:
    """ "ranks 0-2 inside all_reduce at train.py:50, rank 3 inside barrier at train.py:60"."""
    return ", ".join(places(processes))


def _unseen(processes: Sequence[Process]) -> str:
    """Ranks of which nothing is known."""
    size = max((one.record.get("world_size") or 0 for one in processes), default=0)
    missing = set(range(min(size, RANKS))) - {one.rank for one in processes if one.taken}
    return f"; where {ranges.ranks(missing)} stood was not seen" if missing else ""
