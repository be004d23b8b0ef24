"""What touches a path: a Probe for each, since a call on a dead mount sleeps where no signal wakes it."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

from preflight.check import NoReply, NoReplyKind, Probe, Reply
from preflight.checks.node.storage import mounts
from preflight.checks.node.storage.path_calls import Calls, Failed
from preflight.sdk.probe import replies

REMOVE_S = 0.5
"""What removing a file may take after a call has hung."""
MAKES = ("create", "write", "fsync", "close", "unlink", "read")
"""Calls in which, or after which, there is a file."""


class Hang(TypedDict):
    call: str
    seconds: float
    stuck: bool
    """The process could not be killed (state D of ps(1))."""


class PathFacts(TypedDict):
    """What one node knows of one path. What is not known is None, or left empty."""

    mount: mounts.Mount | None
    opened: bool
    size_mib: int | None
    free_mib: int | None
    inodes: int | None
    """Files that can still be made. None where they are not counted."""
    read_only: bool
    stat_ms: list[float]
    """Best and worst of some look-ups of names that are not there: no cache knows them."""
    write_ms: list[float]
    fsync_ms: list[float]
    written: bool
    failed: Failed | None
    hang: Hang | None
    seen: dict[str, str]
    """By the rank that wrote a file: yes, no, or the error."""
    left: str
    """A file of ours that may still be there."""


def nothing_known(path: str) -> PathFacts:
    """Before the path is touched."""
    return {
        "mount": mounts.of_path(path), "opened": False, "size_mib": None, "free_mib": None, "inodes": None,
        "read_only": False, "stat_ms": [], "write_ms": [], "fsync_ms": [], "written": False, "failed": None,
        "hang": None, "seen": {}, "left": "",
    }  # fmt: skip


class PathProbe:
    """One path, the process that touches it, and what is known of the path."""

    def __init__(self, path: str, name: str) -> None:
        """`name`: of the file to be made in it."""
        self.path, self.name = path, name
        self.facts = nothing_known(path)
        self.disturbed = ""
        """Why nothing more is known, where that says nothing of the path."""
        calls = Calls(path, name)
        self.probe = Probe(calls, at_end=calls.remove_what_was_made)

    def close(self) -> None:
        """Its process removes the file first, where it is still there."""
        self.probe.end()

    def ask(self, what: str, *arguments: Any) -> None:
        """`answers` has the answer. Nothing is asked of a path that has hung."""
        if self.facts["hang"] is None and not self.disturbed:
            self.probe.begin(what, *arguments)

    def take(self, reply: Reply | NoReply) -> None:
        for part in reply.parts:
            self.facts.update(part)
        if isinstance(reply, Reply):
            return
        if reply.kind != NoReplyKind.TIMED_OUT:
            self.disturbed = f"the process that looked at {self.path} {reply.text}"
            return
        self.facts["hang"] = {"call": reply.call, "seconds": round(reply.seconds, 1), "stuck": reply.stuck}
        if reply.call in MAKES:
            self.facts["left"] = os.path.join(self.path, self.name)
            for part in self.probe.ask("remove", deadline_s=REMOVE_S).parts:  # by another process, which may hang
                self.facts.update(part)


def answers(paths: Sequence[PathProbe], within_s: float) -> Iterator[PathProbe]:
    """Each that was asked something when it has answered in full, has hung for so long, or has ended."""
    by_probe = {path.probe: path for path in paths}
    for probe, reply in replies(by_probe, within_s):
        by_probe[probe].take(reply)
        yield by_probe[probe]
