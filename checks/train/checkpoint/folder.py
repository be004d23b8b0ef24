"""Tests the folder for checkpoints before training: whether it supports what a checkpoint needs, and how fast."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NotRequired, TypedDict

from preflight.check import (
    Action,
    Code,
    Context,
    Finding,
    NoReply,
    NoReplyKind,
    Option,
    Probe,
    Run,
    Skip,
    option,
    ranges,
    words,
)
from preflight.checks.train.checkpoint.folder_calls import FailedCall, FolderCalls, WrongByte

PATIENCE_S = 15.0
"""As in node.storage: an automounter, a disk that spins up and a busy server take a few."""
SEE_S = 5.0
"""For file systems whose clients cache look-ups for a while; none has looked for this name before."""
LEAST_ROOM = 64 * 2**20
"""Bytes. The small model's checkpoints take 2 MB each, and 10 MB with all else that is written."""
PREFIX = ".preflight-checkpoint-"


def _folder(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ValueError(f"{text!r} is not an absolute path; expected one such as /checkpoints/run-7")
    return os.path.normpath(text)


def _gib(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1024.0:
        raise ValueError(f"{text!r} is not a number of GiB from 0 to 1024")
    return value


DIR: Option[str | None] = option(_folder, None, "the folder for checkpoints; unset: a private one on each node")
GIB = option(_gib, 0.25, "GiB that a node's ranks together write into the folder and read back; 0: none")

UNUSABLE = Code(
    "The folder for checkpoints cannot be written to.",
    fix="On the node, as the job's user: ls -ld {file}; findmnt -T {file}; mkdir -p it, or mount what belongs there.",
)
NO_ROOM = Code(
    "The folder for checkpoints has no room.",
    fix="df -h {file}; df -i {file}; quota -s; remove old checkpoints, ask for more, or use another folder.",
)
NOT_SHARED = Code(
    "Nodes do not see the same folder for checkpoints.",
    fix="On the node: findmnt -T {file}; mount what the other nodes have there, or use a folder on a shared file "
    "system: with sharded checkpoints, ranks read what others wrote.",
)
UNSAFE = Code(
    "The folder's file system lacks a call that keeps checkpoints intact.",
    fix="Write checkpoints to another file system and copy them, or keep the last two: a torn file loses one.",
)
NO_ANSWER = Code(
    "The folder for checkpoints does not answer.",
    fix="On the node: findmnt -T {file}; dmesg | tail; check its server and the network to it.",
    action=Action.NONE,
)
CORRUPTS = Code(
    "What is read from the folder for checkpoints is not what was written there.",
    fix="Do not save there. On the node: findmnt -T {file}; dmesg | tail; smartctl -x on its disk; test the memory of "
    "the node and of the folder's server, and compare sha256sum of one file on several nodes.",
    action=Action.NONE,
)
NOT_REMOVED = Code("A folder of this check could not be removed.", fix="rm -rf {file}")


class FolderFacts(TypedDict):
    """What a rank knows about the folder. All but a node's lowest rank only know what they wrote."""

    path: str
    made: bool
    """Whether this rank created what all ranks of its node use."""
    owner: str
    free: int | None
    """Bytes available to this user."""
    fsync: str
    """The error of a file system without fsync, or ""."""
    rename: str
    failed: FailedCall | None
    wrong: NotRequired[WrongByte | None]
    hang: str
    """The call that did not return, and for how long; or ""."""
    seen: bool | None
    """Whether the first node's file is visible here; None if not checked."""
    written: int
    write_s: float
    read: int
    read_s: float
    left: str


class Folder:
    """A rank's folder and the process that touches it. When the process ends, for any reason, its files are removed."""

    def __init__(self, path: str, tree: str, patience_s: float) -> None:
        self.facts = FolderFacts(
            path=path, made=False, owner="", free=None, fsync="", rename="", failed=None, hang="", seen=None,
            written=0, write_s=0.0, read=0, read_s=0.0, left="", wrong=None,
        )  # fmt: skip
        calls = FolderCalls(path, tree)
        self.tree, self._patience_s = tree, patience_s
        self._probe = Probe(calls, at_end=calls.remove_tree)

    @property
    def well(self) -> bool:
        return not (self.facts["failed"] or self.facts["hang"] or self.facts.get("wrong"))

    def ask(self, name: str, *arguments: Any, more_s: float = 0.0) -> None:
        """Makes a call and puts the answer into the facts. Raises Skip if something else ended the process."""
        reply = self._probe.ask(name, *arguments, deadline_s=self._patience_s + more_s)
        found: dict[str, Any] = {}
        for part in reply.parts:
            found |= part
        if not isinstance(reply, NoReply):
            found |= reply.value or {}
        elif reply.kind is NoReplyKind.TIMED_OUT:
            found["hang"] = f"{reply.call} for {reply.seconds:.1f} s"
        else:
            raise Skip(f"the process that looked at {self.facts['path']} {reply.text}")
        self.facts.update(found)  # type: ignore[typeddict-item]

    def start(self) -> None:
        """Starts the process on a rank that makes no call before it writes."""
        self._probe.ask("see", "", 0.0, deadline_s=self._patience_s)

    def close(self) -> None:
        if self.well:
            self.ask("remove")
        self._probe.end()


def make(ctx: Context, token: str) -> Folder:
    """`token`: the same on all ranks, and unique to this run."""
    top = ctx[DIR] or tempfile.gettempdir()
    return Folder(top, os.path.join(top, f"{PREFIX}{token}"), min(PATIENCE_S, ctx.deadline_s / 8))


AllWell = Callable[[bool, str], bool]


def look(ctx: Context, folder: Folder, all_well: AllWell) -> bool:
    """Whether all nodes can write there. All ranks must call it."""
    nodes = ctx.job.one_per_node(ctx.members)
    ctx.doing(f"looking at {folder.facts['path']}")
    first, mine = ctx.rank == nodes[0], ctx.rank in nodes
    if first:
        folder.ask("look")
        if not (folder.facts["failed"] or folder.facts["hang"]):
            folder.ask("leave", "first")
    all_well(folder.well, "the first node has looked")
    if mine and not first:
        folder.ask("see", "first", SEE_S, more_s=SEE_S)
        if folder.well:
            folder.ask("look")
    if not mine:
        folder.start()
    return all_well(folder.well and _has_room(folder.facts, ctx[GIB] if ctx[DIR] else 0.0), "all nodes have looked")


def _has_room(own: FolderFacts, gib: float) -> bool:
    return own["free"] is None or own["free"] >= _needed(gib)


def _needed(gib: float) -> float:
    return gib * 2**30 + LEAST_ROOM


# What it means


def judge(facts: Mapping[int, FolderFacts], run: Run) -> Iterator[Finding]:
    """A finding per node, or one for all if all have the same."""
    alike: dict[tuple[Code, str, str], list[int]] = {}
    for rank, own in facts.items():
        if told := _told(own, run):
            alike.setdefault(told, []).append(rank)
    nodes = run.job.one_per_node(facts)
    for (code, text, fix), ranks in alike.items():
        everywhere = len(ranks) == len(nodes) > 1
        who = f" on all {len(nodes)} nodes" if everywhere else ""
        for rank in ranks[:1] if everywhere or len(nodes) == 1 else ranks:
            own = facts[rank]
            where = {} if everywhere or len(nodes) == 1 else {"node": run.job.node_of(rank).node}
            evidence = {"owner": own["owner"], "free_bytes": own["free"]}
            yield code.fail(f"{text}{who}", fix=fix or None, file=own["path"], evidence=evidence, **where)
    corrupted = [*_corrupted(facts, run, nodes)]
    yield from corrupted
    yield from () if corrupted else _shared(facts, run, nodes)
    for own in facts.values():
        if own["left"]:
            yield NOT_REMOVED.info(
                f"{own['left']} could not be removed, expected nothing of ours to remain", file=own["left"]
            )
            return


def _told(own: FolderFacts, run: Run) -> tuple[Code, str, str] | None:
    path, failed = own["path"], own["failed"]
    if own["hang"]:
        return NO_ANSWER, f"{path} does not answer: {own['hang']}, expected milliseconds", ""
    if failed:
        return _of_error(path, failed, own["owner"])
    gib = run[GIB] if run[DIR] else 0.0
    if own["free"] is not None and own["free"] < _needed(gib):
        need = (
            f"{words.size(_needed(gib))}, what a node writes there (train.checkpoint.gib) plus {words.size(LEAST_ROOM)}"
        )
        return NO_ROOM, f"{path} has {words.size(own['free'])} free, expected {need}", ""
    if own["rename"] or own["fsync"]:
        lacks = " and ".join(name for name in ("rename", "fsync") if own[name])
        why = own["rename"] or own["fsync"]
        text = f"the file system of {path} has no {lacks} ({why}), expected both: a checkpoint is written whole under "
        return UNSAFE, f"{text}another name, synced and then renamed", ""
    return None


def _corrupted(facts: Mapping[int, FolderFacts], run: Run, nodes: list[int]) -> Iterator[Finding]:
    """The medium is judged before anything that was loaded from it. If all nodes get wrong bytes, what they share is at
    fault."""
    of_node: dict[str, tuple[int, WrongByte]] = {}
    for rank, own in facts.items():
        if wrong := own.get("wrong"):
            of_node.setdefault(run.job.node_of(rank).node, (rank, wrong))
    everywhere = len(of_node) == len(nodes)
    for node, (rank, wrong) in [*of_node.items()][: 1 if everywhere else None]:
        who = f" on rank {rank}" + (f", and so on all {len(nodes)} nodes" if everywhere and len(nodes) > 1 else "")
        details = {"file": facts[rank]["path"], "evidence": {"rank": rank, **wrong}}
        where = {} if everywhere else {"node": node}
        yield CORRUPTS.fail(f"{_wrong_in_words(facts[rank]['path'], wrong)}{who}", **details, **where)


def _wrong_in_words(path: str, wrong: WrongByte) -> str:
    place = f"byte {wrong['offset']:,} of a file in {path}"
    if wrong["read"] < 0:
        return f"{place} was written, and is not there when it is read back; expected the bytes that were written"
    bits = (wrong["read"] ^ wrong["written"]).bit_count()
    flipped = f"{wrong['read']:#04x} when it is read back, expected {wrong['written']:#04x} as it was written"
    return f"{place} is {flipped} ({ranges.count(bits, 'bit')} flipped)"


_FIXES = {
    "ENOENT": "On the node: mkdir -p {file}, or mount what belongs there (findmnt -T {file}).",
    "EROFS": "On the node: findmnt -T {file}; dmesg | grep -i 'read-only'; ext4 and xfs turn so after an error.",
    "EACCES": "As the folder's owner: chown or chmod {file} for the job's user (id), or use your own folder.",
}
_FIXES["EPERM"] = _FIXES["EACCES"]


def _of_error(path: str, failed: FailedCall, owner: str) -> tuple[Code, str, str]:
    text = f"{failed['call']} in {path} failed with {failed['text']}"
    if failed["error"] in ("ENOSPC", "EDQUOT"):
        return NO_ROOM, f"{text}, expected room for a checkpoint", ""
    more = f" ({owner})" if owner and failed["error"] in ("EACCES", "EPERM") else ""
    return UNUSABLE, f"{text}, expected to write checkpoints there{more}", _FIXES.get(failed["error"], "")


def _shared(facts: Mapping[int, FolderFacts], run: Run, nodes: list[int]) -> Iterator[Finding]:
    """Checks a folder that the user named. Only the first node writes, so with two nodes either may be wrong; with
    more, those that see nothing are odd if most others see the file."""
    if not run[DIR]:
        return
    asked = [rank for rank in nodes if rank in facts and facts[rank]["seen"] is not None]
    blind = [rank for rank in asked if not facts[rank]["seen"]]
    if not blind:
        return
    path, first = facts[blind[0]]["path"], run.job.node_of(nodes[0]).node
    named = 2 * len(blind) < len(asked) + 1
    told = f"a file that {first} wrote into {path} was not seen within {SEE_S:.0f} s"
    if not named:
        names = words.some(run.job.node_of(rank).node for rank in blind)
        text = (
            f"{told} on {names} ({len(blind)} of {ranges.count(len(asked), 'other node')}), expected one folder for all"
        )
        yield NOT_SHARED.fail(text, file=path)
        return
    for rank in blind:
        text = f"{told}, expected it as on {len(asked) - len(blind)} of {ranges.count(len(asked), 'other node')}"
        yield NOT_SHARED.fail(text, file=path, node=run.job.node_of(rank).node)
