"""How processes ended: exit codes and signals, as their launcher reports them."""

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from preflight.explain.candidates import NONE, Candidate, from_lines
from preflight.explain.causes import exceptions
from preflight.explain.logs.tracebacks import Traceback
from preflight.explain.timeline import Timeline
from preflight.failure_book.book import Match
from preflight.failure_book.line import Line
from preflight.failure_book.signals import DECISIVE, SIGNALS

FIRST, ITSELF, LATER = 50, 25, 5
"""Weights: of the first process to die, as torchrun sees it, by a signal, or by its own exit; and of later signals:
torchrun kills the processes that do not end."""
ABORTED = ("crash.terminate", "exit.sigabrt", "exit.sigabrt_name")
"""Rows of a process that ends itself."""
LOST_PEER = re.compile(r"remote process exited|ncclRemoteError")
LOOPBACK = "localhost"
"""What torchrun --standalone calls its host, and many hosts are called."""
LINES = ("elastic.exit", "elastic.root_cause_exitcode", "elastic.root_cause_signal")


@dataclass(frozen=True)
class Death:
    """A process that ended with an exit code, as its launcher reports."""

    code: int
    line: Line
    where: dict[str, Any]
    first: bool
    """Whether its launcher saw it as the first."""


def find_candidates(timeline: Timeline) -> list[Candidate]:
    """Processes that a signal ended, and the first one that exited by itself."""
    dead = deaths(timeline)
    lost = [_lost_peer(timeline, death) for death in _given_up(timeline, dead) if death.first]
    return [*_signalled(timeline, dead), *_first_exit(timeline, dead), *lost[:1]]


def superseded(timeline: Timeline) -> set[str]:
    """Rows that add nothing to this module's candidates: torchrun's own, and, where another process exited before,
    those of signals that match torchrun's lines only."""
    dead = deaths(timeline)
    names = {"elastic.exit"} if any(death.code in DECISIVE for death in dead) else set()
    names |= {"elastic.exit", *ABORTED} if _given_up(timeline, dead) else set()
    if not _own_exits(dead):
        return names
    known = {(match.line.file, match.line.number) for match in timeline.matches(*LINES)}
    signals = {name: kept for name, kept in timeline.seen.items() if name.startswith("exit.")}
    return {"elastic.exit"} | {
        name for name, kept in signals.items()
        if all((match.line.file, match.line.number) in known for match in kept.matches())
    }  # fmt: skip


def deaths(timeline: Timeline) -> list[Death]:
    """The deaths that torchrun's lines report: its agent's lines, and the box at the end, which names the rank."""
    dead = list(_from_boxes(timeline))
    known = {(death.line.file, death.where.get("local_rank"), death.code) for death in dead}
    for match in timeline.matches("elastic.exit"):
        local_rank, code = int(match.groups["local_rank"]), int(match.groups["exitcode"])
        if (match.line.file, local_rank, code) not in known:
            where = {"node": match.line.node} if match.line.node else {}
            dead.append(Death(code, match.line, {**where, "local_rank": local_rank}, True))
    return dead


def _from_boxes(timeline: Timeline) -> Iterator[Death]:
    """Blocks of lines from "host" to "exitcode"; the one after "Root Cause" was the first to fail."""
    names = ("elastic.root_cause", "elastic.root_cause_host", "elastic.root_cause_rank", "elastic.root_cause_exitcode")
    by_file: dict[str, list[Match]] = {}
    for match in timeline.matches(*names):
        by_file.setdefault(match.line.file, []).append(match)
    for matches in by_file.values():
        where: dict[str, Any] = {}
        first = not any(match.signature.name == names[0] for match in matches)
        headed = not first
        for match in matches:
            groups = match.groups
            first = first or match.signature.name == names[0]
            where |= {name: groups[name] for name in ("node",) if groups.get(name, LOOPBACK) != LOOPBACK}
            where |= {name: int(groups[name]) for name in ("rank", "local_rank") if name in groups}
            if node := timeline.ranks.get(where.get("rank", -1)):
                where.setdefault("node", node)
            if "exitcode" in groups and groups["exitcode"].lstrip("-").isdecimal():
                yield Death(int(groups["exitcode"]), match.line, where, first)
                where, first = {}, first and not headed


def _signalled(timeline: Timeline, dead: Sequence[Death]) -> Iterator[Candidate]:
    """A process ended by a signal outweighs those that exited: they noticed it. But a process that torchrun kills after
    another has failed did not die first."""
    for code in sorted({death.code for death in dead} & DECISIVE):
        those = [death for death in dead if death.code == code]
        those.sort(key=lambda death: (not death.first, timeline.moment(death.line)))
        of_code, where = SIGNALS[code], those[0].where
        first = those[0].first and not _own_exits(dead)
        others = f", and {len(those) - 1} more" if len(those) > 1 else ""
        ended = f"was ended by {of_code.name} (exit code {code}){others}: {of_code.meaning}"
        yield from_lines(
            timeline, of_code.slug, "cause" if first else "failure", FIRST if first else LATER,
            f"{_describe_process(where)} {ended}", [death.line for death in those], where, _ranks(those),
            confidence="medium", row="elastic.exit",
        )  # fmt: skip


def _given_up(timeline: Timeline, dead: Sequence[Death]) -> list[Death]:
    """The deaths by SIGABRT, if in each of them the watchdog ended a rank that had lost its peer."""
    ends = timeline.matches("watchdog.terminated")
    lost = {match.line.rank for match in ends if LOST_PEER.search(match.groups["error"])} - {None}
    aborted = [death for death in dead if death.code == -signal.SIGABRT]
    return aborted if all(death.where.get("rank") in lost for death in aborted) else []


def _own_exits(dead: Sequence[Death]) -> list[Death]:
    """Processes that exited by themselves; if torchrun printed a box, only its root cause."""
    boxed = any("rank" in death.where and death.first for death in dead)
    return [death for death in dead if death.first and death.code > 0 and ("rank" in death.where or not boxed)]


def _first_exit(timeline: Timeline, dead: Sequence[Death]) -> Iterator[Candidate]:
    for death in sorted(_own_exits(dead), key=lambda death: timeline.moment(death.line))[:1]:
        own = list(_own_tracebacks(timeline, death))
        if own and all(exceptions.second_hand(traceback)[0] == "remote_peer_failure" for traceback in own):
            yield _lost_peer(timeline, death)
        if own:
            return
        text = f"{_describe_process(death.where)} ended with exit code {death.code}, the first that torchrun saw"
        yield from_lines(
            timeline, "app_crash", "failure", ITSELF, f"{text}; its own output says why", [death.line],
            death.where, _ranks([death]), confidence=NONE, row="elastic.exit",
        )  # fmt: skip


def _own_tracebacks(timeline: Timeline, dead: Death) -> Iterator[Traceback]:
    """The tracebacks in its output, which say why. If lines have no ranks, any that is not the launcher's."""
    for traceback in timeline.tracebacks:
        line = traceback.line
        alone = line.rank is None and line.file == dead.line.file and traceback.type != "ChildFailedError"
        if alone or ("rank" in dead.where and line.rank == dead.where["rank"]):
            yield traceback


def _lost_peer(timeline: Timeline, death: Death) -> Candidate:
    """The first process to fail had only lost its peer. torchrun does not count a process that returned as failed."""
    text = (
        f"{_describe_process(death.where)} lost its peer, and torchrun saw no failure before it: the rank that went "
        "away ended with exit code 0 (a return, sys.exit or os._exit before the others' last collective), or failed "
        "on another node"
    )
    return from_lines(
        timeline, "remote_peer_failure", "failure", ITSELF, text, [death.line], ranks=_ranks([death]),
        confidence="low", row="elastic.exit",
    )  # fmt: skip


def _ranks(dead: Iterable[Death]) -> frozenset[int]:
    return frozenset(death.where["rank"] for death in dead if "rank" in death.where)


def _describe_process(where: dict[str, Any]) -> str:
    words = [f"rank {where['rank']}"] if "rank" in where else []
    words += [f"local rank {where['local_rank']}"] if not words and "local_rank" in where else []
    words += [f"on {where['node']}"] if "node" in where else []
    return " ".join(words) or "a process"
