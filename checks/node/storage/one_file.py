"""One file seen by all: a few nodes each write one and publish its name in the store; all nodes look for these names.

Writers are spread over the job, so that a bad rack does not have them all; in a small job every node is one. No wait
for a hanging node exceeds its bound: a node looks only for the names it has been told.
"""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from preflight.check import Context, ranges
from preflight.checks.node.storage import mounts
from preflight.checks.node.storage.path_probe import PathProbe, answers

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

WRITERS = 5
RETRIES_S = 5.0
"""For file systems whose clients cache look-ups for a while. Close-to-open consistency (nfs(5)) does not need it, and
no client has looked for these names before."""


class Bounds(NamedTuple):
    """Seconds, in the order of their use."""

    look_s: float
    late_s: float
    """How much later than this node another may be."""
    see_s: float
    remove_s: float

    @staticmethod
    def within(deadline_s: float, patience_s: float) -> "Bounds":
        """For a check's deadline: look, late, see, late, remove end before the store's client gives up, at 70 %."""
        return Bounds(min(patience_s, deadline_s / 4), deadline_s / 12, deadline_s / 6, deadline_s / 12)


def writers_of(nodes: Sequence[int]) -> list[int]:
    """The ranks that write: some of the ranks that look, which are one per node."""
    if len(nodes) <= WRITERS:
        return list(nodes)
    return [nodes[number * len(nodes) // WRITERS] for number in range(WRITERS)]


def look(ctx: Context, probes: Sequence[PathProbe], writers: Sequence[int], nodes: int, bounds: Bounds) -> None:
    """Makes each path's process do all its calls; results go to the probe's `facts`. `nodes`: how many look."""
    ctx.doing(f"looking at {', '.join(probe.path for probe in probes)}")
    for probe in probes:
        probe.ask("look", ctx.rank in writers)
    store = ctx.store() if nodes > 1 else None
    numbers = {probe.path: number for number, probe in enumerate(probes)}
    start = time.monotonic()
    for probe in answers(probes, bounds.look_s):
        if store and ctx.rank in writers:
            tell(store, ctx.rank, numbers[probe.path], probe)
    if store is None:
        return
    with ctx.collective("one file", ranges.count(nodes, "node")):
        until = start + bounds.look_s + bounds.late_s
        look_for_all(store, ctx.rank, writers, probes, bounds, until)
        if count_in(store, nodes) and ctx.rank in writers:
            all_have_looked(store, until + bounds.see_s + bounds.late_s)
    if ctx.rank in writers:
        for probe in probes:
            if probe.facts["written"]:
                probe.ask("remove")
        for _ in answers(probes, bounds.remove_s):
            pass


def tell(store: "Store", rank: int, number: int, probe: PathProbe) -> None:
    """Publishes this writer's file name in the path with this number; "" if it has no file."""
    store.set(f"wrote/{rank}/{number}", json.dumps(probe.name if probe.facts["written"] else ""))


def look_for_all(
    store: "Store", rank: int, writers: Sequence[int], probes: Sequence[PathProbe], bounds: Bounds, until: float
) -> None:
    """Each path's process looks for the others' files. `until`: when writers must have published, by this clock."""
    others = [writer for writer in writers if writer != rank]
    published = _published(
        store, [f"wrote/{writer}/{number}" for writer in others for number in range(len(probes))], until
    )
    for number, probe in enumerate(probes):
        names = {str(writer): published.get(f"wrote/{writer}/{number}", "") for writer in others}
        names = {writer: name for writer, name in names.items() if name}
        if names and probe.facts["opened"]:
            probe.ask("see", names, 0.0 if mounts.is_local(probe.facts["mount"]) else min(RETRIES_S, bounds.see_s / 2))
    for _ in answers(probes, bounds.see_s):
        pass
    if store.check(["gone"]):  # this node is too late to tell whether a file was there
        for probe in probes:
            probe.facts["seen"] = {writer: saw for writer, saw in probe.facts["seen"].items() if saw != "no"}


def _published(store: "Store", keys: Sequence[str], until: float) -> Mapping[str, str]:
    if keys and not _wait(store, keys, until):
        keys = [key for key in keys if store.check([key])]
    return {key: json.loads(store.get(key)) for key in keys}


def count_in(store: "Store", nodes: int) -> bool:
    """Each node calls this once after looking. Returns whether others still have to look."""
    if store.add("looked", 1) < nodes:
        return True
    store.set("all", "")
    return False


def all_have_looked(store: "Store", until: float) -> None:
    """Returns when all nodes have counted in, `until` at the latest: then the files may be removed."""
    if not _wait(store, ["all"], until):
        store.set("gone", "")


def _wait(store: "Store", keys: Sequence[str], until: float) -> bool:
    """Whether the keys arrived in time; torch's DistStoreError is a RuntimeError."""
    try:
        store.wait(list(keys), timedelta(seconds=max(0.001, until - time.monotonic())))
    except RuntimeError:
        return False
    return True
