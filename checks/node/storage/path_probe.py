"""A Probe for each path, since a call on a dead mount sleeps and no signal wakes it."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

from preflight.check import NoReply, NoReplyKind, Probe, Reply
from preflight.checks.node.storage import mounts
from preflight.checks.node.storage.path_calls import Calls, Failed
from preflight.sdk.probe import replies

REMOVE_S = 0.5
"""Seconds to remove a file after a call has hung."""
MAKES = ("create", "write", "fsync", "close", "unlink", "read")
"""Calls during or after which the file exists."""


class Hang(TypedDict):
    call: str
    seconds: float
    stuck: bool
    """The process could not be killed (state D of ps(1))."""


class PathFacts(TypedDict):
    """What one node knows about one path. Unknown values are None or empty."""

    mount: mounts.Mount | None
    opened: bool
    size_mib: int | None
    free_mib: int | None
    inodes: int | None
    """How many files can still be created; None if the file system does not count them."""
    read_only: bool
    stat_ms: list[float]
    """Best and worst look-up of names that do not exist: no cache knows them."""
    write_ms: list[float]
    fsync_ms: list[float]
    written: bool
    failed: Failed | None
    hang: Hang | None
    seen: dict[str, str]
    """Whether this node saw the file, by the rank that wrote it: yes, no, or the error."""
    left: str
    """Our file, if it may still be there."""


def nothing_known(path: str) -> PathFacts:
    """The facts before the path is touched."""
    return {
        "mount": mounts.of_path(path),
        "opened": False,
        "size_mib": None,
        "free_mib": None,
        "inodes": None,
        "read_only": False,
        "stat_ms": [],
        "write_ms": [],
        "fsync_ms": [],
        "written": False,
        "failed": None,
        "hang": None,
        "seen": {},
        "left": "",
    }


class PathProbe:
    """A path, the process that touches it, and what is known about the path."""

    def __init__(self, path: str, name: str) -> None:
        """`name`: the file to create in the path."""
        self.path, self.name = path, name
        self.facts = nothing_known(path)
        self.disturbed = ""
        """Why nothing more is known, if the path is not the reason."""
        calls = Calls(path, name)
        self.probe = Probe(calls, at_end=calls.remove_what_was_made)

    def close(self) -> None:
        """Ends the process, which first removes its file if it is still there."""
        self.probe.end()

    def ask(self, what: str, *arguments: Any) -> None:
        """Sends a call, unless the path has hung; `answers` yields the reply."""
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
            for part in self.probe.ask("remove", deadline_s=REMOVE_S).parts:  # in another process, which may hang
                self.facts.update(part)


def answers(paths: Sequence[PathProbe], within_s: float) -> Iterator[PathProbe]:
    """Yields each path that was asked, once it has answered in full, has hung for `within_s`, or its process ended."""
    by_probe = {path.probe: path for path in paths}
    for probe, reply in replies(by_probe, within_s):
        by_probe[probe].take(reply)
        yield by_probe[probe]
