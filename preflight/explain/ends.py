"""How processes ended: exit codes and signals, as their launcher tells of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from preflight.explain import exceptions
from preflight.explain.line import Line
from preflight.explain.signatures import Match
from preflight.explain.story import Story
from preflight.explain.theory import EVIDENCE, Theory
from preflight.explain.tracebacks import Traceback

SIGNALS = {
    -4: ("SIGILL", "app_crash", "an instruction that this processor does not have"),
    -7: ("SIGBUS", "shm_exhausted", "as it happens when /dev/shm is full and its memory is touched"),
    -8: ("SIGFPE", "app_crash", "a division by zero in native code"),
    -9: ("SIGKILL", "host_oom_kill", "as the kernel does when the host's memory runs out, or an operator"),
    -11: ("SIGSEGV", "app_crash", "a segmentation fault in native code"),
}
"""Exit codes of processes that did not end of their own accord, as torchrun and Python write them."""
FIRST, ITSELF, LATER = 50, 25, 5
"""Weights: of a process that a signal ended and that died first, as torchrun sees it; of one that ended itself first,
with an exit code; and of signalled ones then: torchrun kills those that do not end."""
LINES = ("elastic.exit", "elastic.root_cause_exitcode", "elastic.root_cause_signal")


@dataclass(frozen=True)
class Death:
    """A process that ended with an exit code, as its launcher tells."""

    code: int
    line: Line
    where: dict[str, Any]
    first: bool
    """Whether its launcher saw it as the first."""


def theories(story: Story) -> list[Theory]:
    """Of processes that a signal ended, and of the first that ended itself."""
    dead = deaths(story)
    return [*_of_signals(story, dead), *_of_itself(story, dead)]


def superseded(story: Story) -> set[str]:
    """Rows of which this says more: torchrun's own, and of signals that tell no more than torchrun's lines, where
    another process had ended itself before."""
    dead = deaths(story)
    told = {"elastic.exit"} if any(one.code in SIGNALS for one in dead) else set()
    if not _ended_itself(dead):
        return told
    known = {(match.line.file, match.line.number) for match in story.matches(*LINES)}
    signals = {name: kept for name, kept in story.seen.items() if name.startswith("exit.")}
    return {"elastic.exit"} | {
        name for name, kept in signals.items()
        if all((match.line.file, match.line.number) in known for match in kept.matches())
    }  # fmt: skip


def deaths(story: Story) -> list[Death]:
    """From torchrun's lines: its agent's, and its box at the end, which names the rank."""
    found = [_of_agent(match) for match in story.matches("elastic.exit")]
    boxed = list(_of_boxes(story))
    known = {(one.line.file, one.where.get("local_rank"), one.code) for one in boxed}
    return [*boxed, *(one for one in found if (one.line.file, one.where["local_rank"], one.code) not in known)]


def _of_agent(match: Match) -> Death:
    where = {"node": match.line.node or None, "local_rank": int(match.groups["local_rank"])}
    return Death(int(match.groups["exitcode"]), match.line, {k: v for k, v in where.items() if v is not None}, True)


def _of_boxes(story: Story) -> Iterator[Death]:
    """Each block of lines from "host" to "exitcode"; the one behind "Root Cause" is the first to fail."""
    names = ("elastic.root_cause", "elastic.root_cause_host", "elastic.root_cause_rank", "elastic.root_cause_exitcode")
    by_file: dict[str, list[Match]] = {}
    for match in story.matches(*names):
        by_file.setdefault(match.line.file, []).append(match)
    for matches in by_file.values():
        where: dict[str, Any] = {}
        first = not any(match.signature.name == names[0] for match in matches)
        headed = not first
        for match in matches:
            groups = match.groups
            first = first or match.signature.name == names[0]
            where |= {name: groups[name] for name in ("node",) if name in groups}
            where |= {name: int(groups[name]) for name in ("rank", "local_rank") if name in groups}
            if "exitcode" in groups and groups["exitcode"].lstrip("-").isdecimal():
                yield Death(int(groups["exitcode"]), match.line, where, first)
                where, first = {}, first and not headed


def _of_signals(story: Story, dead: Sequence[Death]) -> Iterator[Theory]:
    """A process that was signalled outweighs those that ended themselves: they noticed. But what torchrun kills,
    after another had failed, did not die first."""
    for code in sorted({one.code for one in dead} & SIGNALS.keys()):
        those = sorted(
            (one for one in dead if one.code == code), key=lambda one: (not one.first, story.moment(one.line))
        )
        name, slug, meaning = SIGNALS[code]
        first = those[0].first and not _ended_itself(dead)
        ranks = frozenset(one.where["rank"] for one in those if "rank" in one.where)
        others = f", and {len(those) - 1} more" if len(those) > 1 else ""
        yield Theory(
            slug, "cause" if first else "failure", FIRST if first else LATER,
            f"{_who(those[0].where)} was ended by {name} (exit code {code}){others}: {meaning}",
            story.moment(those[0].line), those[0].where, ranks, tuple(one.line for one in those[:EVIDENCE]),
            confidence="medium", count=len(those), rows=frozenset({"elastic.exit"}),
        )  # fmt: skip


def _ended_itself(dead: Sequence[Death]) -> list[Death]:
    """With an exit code of its own, and boxed as the root cause if there is a box."""
    boxed = any("rank" in one.where and one.first for one in dead)
    return [one for one in dead if one.first and one.code > 0 and ("rank" in one.where or not boxed)]


def _of_itself(story: Story, dead: Sequence[Death]) -> Iterator[Theory]:
    for one in sorted(_ended_itself(dead), key=lambda one: story.moment(one.line))[:1]:
        own = list(_own_tracebacks(story, one))
        if own and all(exceptions.second_hand(each)[0] == "remote_peer_failure" for each in own):
            yield _of_survivor(story, one)
        if own:
            return
        yield Theory(
            "app_crash", "failure", ITSELF,
            f"{_who(one.where)} ended with exit code {one.code}, the first that torchrun saw; its own output tells why",
            story.moment(one.line), one.where, frozenset({one.where["rank"]} if "rank" in one.where else ()),
            (one.line,), confidence="low", rows=frozenset({"elastic.exit"}),
        )  # fmt: skip


def _own_tracebacks(story: Story, dead: Death) -> Iterator[Traceback]:
    """Its own output, which tells why: where lines have no ranks, any that is not the launcher's."""
    for one in story.tracebacks:
        alone = one.line.rank is None and one.line.file == dead.line.file and one.type != "ChildFailedError"
        if alone or ("rank" in dead.where and one.line.rank == dead.where["rank"]):
            yield one


def _of_survivor(story: Story, dead: Death) -> Theory:
    """The first that failed had only lost its peer: who went away did not fail, as torchrun sees it."""
    text = (
        f"{_who(dead.where)} lost its peer, and torchrun saw none fail before it: the rank that went away ended with "
        "exit code 0 (a return, sys.exit or os._exit before the others' last collective), or failed on another node"
    )
    ranks = frozenset({dead.where["rank"]} if "rank" in dead.where else ())
    return Theory(
        "remote_peer_failure", "failure", ITSELF, text, story.moment(dead.line), {}, ranks, (dead.line,),
        confidence="low", rows=frozenset({"elastic.exit"}),
    )  # fmt: skip


def _who(where: dict[str, Any]) -> str:
    words = [f"rank {where['rank']}"] if "rank" in where else []
    words += [f"local rank {where['local_rank']}"] if not words and "local_rank" in where else []
    words += [f"on {where['node']}"] if "node" in where else []
    return " ".join(words) or "a process"
