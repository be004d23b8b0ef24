"""Storage: the paths that the job uses answer on all nodes, have room, and show the same files where shared.

With --set node.storage.paths=/data,/checkpoints one rank per node opens each path, looks up names, and, if allowed,
writes and fsyncs 4 KiB into its own file; a few nodes leave theirs for a moment for the others to see. A separate
process touches each path, so that a dead mount costs its deadline and no more.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypedDict

from preflight.check import (
    Action,
    Code,
    Context,
    Finding,
    Level,
    NotApplicable,
    Plan,
    Run,
    Scope,
    Skip,
    option,
    ranges,
    words,
)
from preflight.checks.node.storage import mounts, one_file, sameness
from preflight.checks.node.storage.path_probe import Hang, PathFacts, PathProbe

PLAN = Plan(Scope.WORLD, Level.QUICK, deadline_s=60.0, estimate_s=1.0)


def path_list(text: str) -> tuple[str, ...]:
    """Absolute paths separated by commas, normalized (no "//" or "."). Raises ValueError."""
    paths = [path.strip() for path in text.split(",")] if text.strip() else []
    for path in paths:
        if not path.startswith("/") or "\0" in path:
            raise ValueError(f"{path!r} is not an absolute path; expected paths such as /data,/checkpoints")
    return tuple(dict.fromkeys(re.sub(r"^//+", "/", os.path.normpath(path)) for path in paths))


NONE: tuple[str, ...] = ()
PATHS = option(path_list, NONE, "the paths that the job uses, separated by commas")
SHARED = option(path_list, NONE, "paths, listed above or not, that must be one file system on all nodes")
WRITTEN = option(path_list, NONE, "paths, listed above or not, that the job must be able to write to")
PATIENCE_S = option(float, 15.0, "seconds without an answer after which a path counts as dead; at most 15")
"""An automounter, a disk that spins up and a busy server take a few. nfs(5) itself waits a minute (timeo=600) before
it retries, but no training step that reads can wait for that."""
FREE_MIB = option(int, 1024, "free space that a writable path needs")
"""A checkpoint of 100 million parameters: 12 bytes for each, with Adam's two states in fp32 (ZeRO, arXiv 1910.02054,
3.1)."""
INODES = option(int, 1000, "files (inodes) that such a path must have room for")
"""As in node.limits: one per rank of a large job's checkpoint."""
SLOW_FACTOR = option(float, 10.0, "warn if a node takes this many times as long as the median of all")
STAT_MS = option(float, 20.0, "milliseconds below which a name look-up is never called slow")
"""As in net.rendezvous: within a site a round trip takes a few milliseconds at most."""
FSYNC_MS = option(float, 100.0, "milliseconds below which an fsync of 4 KiB is never called slow")
"""A hard disk takes 10 to 30: one turn at 7200 rpm is 8.3 ms, and a journal needs several writes."""
STANDSTILL_MS = 1000.0
"""Slow for any storage: reported without blaming a node, even if all are equally slow."""
LEAST_PATIENCE_S = 5.0
"""If the run's deadline leaves less, silence proves nothing: a sound path may take that long."""

NO_ANSWER = Code(
    "A path does not answer: its server or its mount is dead.",
    fix="On the node: dmesg | grep -i 'not responding'; check its server and the network to it, and wait minutes for a "
    "failover. If it persists, drain the node before umount -f -l {file}: other jobs on it lose what they write.",
    action=Action.NONE,
)
MISSING = Code("A path does not exist.", fix="On the node: ls -ld {file}; findmnt -T {file}; mount or create it there.")
BROKEN = Code(
    "A path returns an error.",
    fix="On the node: findmnt -T {file}; dmesg | tail; ulimit -f; drain the node before you remount it.",
)
DENIED = Code(
    "The job's user may not write to a path.",
    fix="On the node, as the job's user: id; ls -ld {file}; findmnt -T {file}; see its export.",
)
READ_ONLY = Code(
    "A path is read-only on some nodes.",
    fix="On the node: findmnt -T {file}; dmesg | grep -i 'read-only'; ext4 and xfs become read-only after an error.",
)
SPACE = Code("A file system is full, or nearly so.", fix="df -h {file}; remove old checkpoints, or use another path.")
INODES_LEFT = Code("A file system has few inodes left.", fix="df -i {file}; remove or pack many small files.")
QUOTA = Code("The quota is used up.", fix="quota -s (lfs quota -h {file}); remove old files, or ask for more.")
NOT_SHARED = Code(
    "Nodes do not see the same files.", fix="On the node: findmnt -T {file}; mount what the other nodes have there."
)
NODE_LOCAL = Code(
    "Each node has its own files.", fix="If all should see one: --set node.storage.shared={file}", action=Action.NONE
)
DIFFERENT_MOUNT = Code(
    "The path is on a different file system than on the other nodes.",
    fix="On the node: findmnt -T {file}; mount what the other nodes have there (/etc/fstab, or the container's -v).",
)
DIFFERENT_OPTIONS = Code(
    "Nodes mount a path with different options.", fix="On each node: findmnt -no OPTIONS -T {file}"
)
SOFT = Code("A soft NFS mount may lose writes (nfs(5)).", fix="Mount {file} with the option hard.")
SLOW = Code(
    "A path is slow.",
    fix="On the node: nfsiostat or iostat -x 1; ping its server; see what else uses the disk.",
    action=Action.NONE,
)
NOT_REMOVED = Code("A file of this check could not be removed.", fix="rm -f {file}")

CLOSED = {"ENOENT": MISSING, "ENOTDIR": MISSING, "ELOOP": MISSING, "EACCES": DENIED, "EPERM": DENIED}
"""The code for each error of opening a folder; any other error is BROKEN."""


class Facts(TypedDict):
    """Ranks that do not look have no paths: one per node looks."""

    paths: dict[str, PathFacts]
    writers: list[int]
    """The ranks whose files the others looked for."""


def measure(ctx: Context) -> Facts:
    paths = tuple(dict.fromkeys((*ctx[PATHS], *ctx[SHARED], *ctx[WRITTEN])))
    if not paths:
        raise NotApplicable("no path was named: --set node.storage.paths=/data,/checkpoints")
    nodes = ctx.job.one_per_node(ctx.members)
    writers = one_file.writers_of(nodes) if len(nodes) > 1 else []
    if ctx.rank not in nodes:
        return {"paths": {}, "writers": writers}
    bounds = one_file.Bounds.within(ctx.deadline_s, ctx[PATIENCE_S])
    name = f".preflight-{os.urandom(8).hex()}"
    probes = [PathProbe(path, f"{name}-{number}") for number, path in enumerate(paths)]
    try:
        one_file.look(ctx, probes, writers, len(nodes), bounds)
    finally:
        for probe in probes:
            probe.close()
    facts: Facts = {"paths": {probe.path: probe.facts for probe in probes}, "writers": writers}
    if why := _unsure(probes, ctx[PATIENCE_S]):
        raise Skip(why, facts)
    return facts


def _unsure(probes: Sequence[PathProbe], patience_s: float) -> str:
    """Why these probes prove nothing about a path, or ""."""
    for probe in probes:
        if probe.disturbed:
            return probe.disturbed
        hang = probe.facts["hang"]
        if hang and not _counts(hang, patience_s):
            waited = f"{probe.path} did not answer {hang['call']} within {hang['seconds']:g} s"
            return f"{waited}, but may be healthy: set a longer --deadline"
    return ""


def _counts(hang: Hang, patience_s: float) -> bool:
    """Whether the wait was long enough to prove a hang: the run's deadline may have cut it short."""
    return hang["seconds"] >= min(patience_s, LEAST_PATIENCE_S)


Views = Mapping[int, PathFacts]
"""What is known of one path, by the rank that looked at it for its node."""


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    for path, views in _by_path(facts).items():
        usable = {rank: view for rank, view in views.items() if view["opened"]}
        yield from _unusable(path, views, run)
        for judged in (_errors, _unwritable, _room, _same, _slow, _left):
            yield from judged(path, usable, run, facts)


def _by_path(facts: Mapping[int, Facts]) -> dict[str, Views]:
    found: dict[str, dict[int, PathFacts]] = {}
    for rank, measured in facts.items():
        for path, known in measured["paths"].items():
            found.setdefault(path, {})[rank] = known
    return dict(found)


def _each(
    say: Callable[..., Finding], texts: Mapping[int, str], of: int, path: str, run: Run, **where: object
) -> Iterator[Finding]:
    """A finding per node; if all `of` nodes have it, a single one without a node, since the path itself is at fault."""
    if len(texts) == of > 1:
        yield say(f"on all {of:,} nodes {texts[min(texts)]}", file=path, **where)
        return
    for rank, text in texts.items():
        yield say(text, node=run.job.node_of(rank).node, file=path, **where)


def _unusable(path: str, views: Views, run: Run) -> Iterator[Finding]:
    """Paths that cannot be opened, or that stopped answering."""
    silent = {
        rank: _hanging(path, hang, view["mount"])
        for rank, view in views.items()
        if (hang := view["hang"]) and _counts(hang, run[PATIENCE_S])
    }
    yield from _each(NO_ANSWER.fail, silent, len(views), path, run)
    closed = {rank: view["failed"] for rank, view in views.items() if not view["opened"] and view["failed"]}
    sorts: dict[Code, dict[int, str]] = {MISSING: {}, DENIED: {}, BROKEN: {}}
    for rank, failed in closed.items():
        assert failed
        code = CLOSED.get(failed["error"], BROKEN)
        place = f" ({mounts.describe(views[rank]['mount'])})" if code is BROKEN else ""
        sorts[code][rank] = f"{path} cannot be opened: {failed['text']}{place}; expected a folder"
    for code, texts in sorts.items():
        yield from _each(code.fail, texts, len(views), path, run)


def _hanging(path: str, hang: Hang, mount: mounts.Mount | None) -> str:
    stuck = ", and the process that asked cannot be killed (state D)" if hang["stuck"] else ""
    waited = f"{hang['call']} in {path} did not return within {hang['seconds']:.0f} s{stuck}"
    return f"{waited}; expected milliseconds from {mounts.describe(mount)}"


def _errors(path: str, views: Views, run: Run, _: Mapping[int, Facts]) -> Iterator[Finding]:
    """Errors of calls in an open folder. Running out of room is a failure only if the job is known to write there."""
    wrote = {sameness.sort(view["mount"]) for view in views.values() if view["written"]}
    sorts: dict[Callable[..., Finding], dict[int, str]] = {}
    for rank, view in views.items():
        failed = view["failed"]
        if failed and not sameness.is_denied(view) and not sameness.is_sealed(view):
            full = INODES_LEFT if view["inodes"] == 0 else SPACE
            code = {"ENOSPC": full, "EDQUOT": QUOTA}.get(failed["error"], BROKEN)
            text = f"{failed['call']} in {path} failed with {failed['text']} ({mounts.describe(view['mount'])})"
            must = code is BROKEN or path in run[WRITTEN] or sameness.sort(view["mount"]) in wrote
            expected = f"expected to write 4 KiB{'' if must else ', unless the job only reads there'}"
            sorts.setdefault(code.fail if must else code.warn, {})[rank] = f"{text}, {expected}"
    for say, texts in sorts.items():
        yield from _each(say, texts, len(views), path, run)


def _unwritable(path: str, views: Views, run: Run, _: Mapping[int, Facts]) -> Iterator[Finding]:
    """A data set that no node may write to is fine. A node that may not, while its peers may, is a fault."""
    if path in run[WRITTEN]:
        expected = "expected the job's user to have write access"
        for code, ranks, why in _barred(views):
            texts = {rank: f"{path} {why} ({mounts.describe(views[rank]['mount'])}), {expected}" for rank in ranks}
            yield from _each(code.fail, texts, len(views), path, run)
        return
    if any(map(sameness.is_denied, views.values())) and not any(
        view["written"] or sameness.is_sealed(view) for view in views.values()
    ):
        yield DENIED.info(f"{path} was not written to: this user may not; fine for read-only data", file=path)
    for peers in sameness.peers(views):
        yield from _differing_rights(path, peers, run)


def _barred(views: Views) -> tuple[tuple[Code, list[int], str], ...]:
    sealed = [rank for rank, view in views.items() if sameness.is_sealed(view)]
    denied = [rank for rank, view in views.items() if sameness.is_denied(view)]
    return (READ_ONLY, sealed, "is read-only"), (DENIED, denied, "may not be written to")


def _differing_rights(path: str, peers: Views, run: Run) -> Iterator[Finding]:
    written = [rank for rank, view in peers.items() if view["written"]]
    (_, sealed, _), (_, denied, _) = barred = _barred(peers)
    if not written or not sealed + denied:
        return
    if 2 * len(written) <= len(peers):
        sides = f"on {sameness.names(run, sealed + denied)}, and can be on {sameness.names(run, written)}"
        code = READ_ONLY if sealed else DENIED
        yield code.warn(f"{path} cannot be written to {sides}; expected the same on all nodes", file=path)
        return
    most = f"expected to write to it, as on {len(written):,} of {ranges.count(len(peers), 'node')}"
    for code, ranks, why in barred:
        for rank in ranks:
            text = f"{path} {why} ({mounts.describe(peers[rank]['mount'])}), {most}"
            yield (code.fail if code is READ_ONLY else code.warn)(text, node=run.job.node_of(rank).node, file=path)


def _room(path: str, views: Views, run: Run, _: Mapping[int, Facts]) -> Iterator[Finding]:
    """Free space of the paths written to: a full disk that is only read does not matter to the job."""
    written = {rank: view for rank, view in views.items() if view["written"]}
    free = {rank: view["free_mib"] for rank, view in written.items()}
    few = {
        rank: f"{path} has {left:,} MiB free of {written[rank]['size_mib'] or 0:,}, expected {run[FREE_MIB]:,} MiB"
        for rank, left in free.items()
        if left is not None and left < run[FREE_MIB]
    }
    yield from _each(SPACE.warn, few, len(views), path, run)
    # If a file could be created with no inodes left, this file system does not count them as others do.
    files = {
        rank: f"{path} has room for {view['inodes']:,} more files (inodes), expected {run[INODES]:,}"
        for rank, view in written.items()
        if view["inodes"] and view["inodes"] < run[INODES]
    }
    yield from _each(INODES_LEFT.warn, files, len(views), path, run)


def _same(path: str, views: Views, run: Run, facts: Mapping[int, Facts]) -> Iterator[Finding]:
    """Decides by who saw whose file; if that says nothing, by what is mounted there."""
    writers = next(iter(facts.values()))["writers"]
    groups = sameness.groups(views, writers)
    must = path in run[SHARED]
    if len(groups) > 1:
        yield from _unshared(path, views, groups, run, must=must)
    known = {rank: mount for rank, view in views.items() if (mount := view["mount"])}
    alone = all(len(group) == 1 for group in groups)
    if not groups or (alone and not (must and sameness.all_wrote(views))):
        yield from _differing_mounts(path, views, known, run, written=bool(groups))
    if not groups and sameness.should_be_shared(views):
        yield from _differing_sizes(path, views, run)
    options = {rank: ",".join(mount["options"]) for rank, mount in known.items()}
    if len(groups) < 2 and len(set(options.values())) > 1 and sameness.vote_of_kinds(known).unanimous:
        sides = sameness.told_apart(options, run)
        yield DIFFERENT_OPTIONS.info(f"{path} is mounted with {sides}, expected the same on all nodes", file=path)
    soft = [rank for rank, view in views.items() if view["written"] and sameness.is_soft(view)]
    if soft:
        text = f"{path} is mounted soft on {ranges.count(len(soft), 'node')}: a write may be lost while its server"
        yield SOFT.info(f"{text} does not answer, expected hard", file=path)


def _unshared(path: str, views: Views, groups: Sequence[Sequence[int]], run: Run, *, must: bool) -> Iterator[Finding]:
    most, nodes = groups[0], sum(map(len, groups))
    within = f"within {one_file.RETRIES_S:g} s"
    if 2 * len(most) > nodes:
        mounted = mounts.describe(views[most[0]]["mount"])
        for rank in (rank for group in groups[1:] for rank in group):
            text = f"{path} is not what the other nodes have: none of their files was seen {within}"
            expected = f"expected {mounted} as on {len(most):,} of {ranges.count(nodes, 'node')}"
            place = mounts.describe(views[rank]["mount"])
            yield NOT_SHARED.fail(f"{text} (it is {place}), {expected}", node=run.job.node_of(rank).node, file=path)
    elif len(most) > 1:
        sides = words.some((sameness.names(run, group) for group in groups), last=", ")
        text = f"{path} has {len(groups):,} different contents: {sides} each see their own files; expected one"
        yield (NOT_SHARED.fail if must else NOT_SHARED.warn)(text, file=path)
    elif must or sameness.should_be_shared(views):
        text = (
            f"none of {nodes:,} nodes saw another's file in {path} {within} ({mounts.describe(views[most[0]]['mount'])}"
        )
        yield (NOT_SHARED.fail if must else NOT_SHARED.warn)(f"{text} on {run.job.node_of(most[0]).node}), "
                                                             "expected one file seen by all", file=path)  # fmt: skip
    elif sameness.all_wrote(views):
        yield NODE_LOCAL.info(f"each of {nodes:,} nodes has its own files in {path}, as on a local disk", file=path)


def _differing_mounts(
    path: str, views: Views, known: Mapping[int, mounts.Mount], run: Run, *, written: bool
) -> Iterator[Finding]:
    """`written`: each node has its own files, for which a server may well have a folder each."""
    votes = sameness.vote_of_kinds(known)
    odd = dict(sameness.odd_mounts(votes, known)) or sameness.bare(views)
    for rank, usual in odd.items():
        lost = mounts.is_local(known[rank]) and not mounts.is_local(usual)
        ranks = votes.ranks_of[mounts.kind(usual)]
        most = f"{len(ranks):,} of {ranges.count(votes.voters, 'node')}" if 2 * len(ranks) > votes.voters else ""
        others = most or f"{sameness.names(run, ranks)}, where it is only read"
        text = f"{path} is on {mounts.describe(known[rank])}, expected {mounts.describe(usual)}, as on {others}"
        say = DIFFERENT_MOUNT.fail if lost else DIFFERENT_MOUNT.warn
        yield say(text, node=run.job.node_of(rank).node, file=path)
    if not odd and sameness.undecided(votes, known, written=written):
        sides = sameness.told_apart({rank: mounts.describe(mount) for rank, mount in known.items()}, run)
        yield DIFFERENT_MOUNT.warn(f"{path} is {sides}, expected the same on all nodes", file=path)


def _differing_sizes(path: str, views: Views, run: Run) -> Iterator[Finding]:
    """One export name may mean different servers: an old one, or another site's."""
    votes = sameness.vote_of_sizes(views)
    for rank, size in votes.odd():
        text = f"{path} has {size:,} MiB in all ({mounts.describe(views[rank]['mount'])})"
        expected = f"expected about {votes.usual:,} MiB, as on {votes.share('node')}"
        yield DIFFERENT_MOUNT.warn(f"{text}, {expected}", node=run.job.node_of(rank).node, file=path)
    if not votes.unanimous and not votes.decided:
        sizes = {rank: f"{size:,} MiB" for size, ranks in votes.ranks_of.items() for rank in ranks}
        text = f"{path} has in all {sameness.told_apart(sizes, run)}, expected the same on all nodes"
        yield DIFFERENT_MOUNT.warn(text, file=path)


def _slow(path: str, views: Views, run: Run, _: Mapping[int, Facts]) -> Iterator[Finding]:
    """Compares each node's best try with the median of at least three nodes."""
    for what, floor in (("stat", run[STAT_MS]), ("fsync", run[FSYNC_MS])):
        best = {rank: times[0] for rank, view in views.items() if (times := view[f"{what}_ms"])}  # type: ignore[literal-required]
        if not best:
            continue
        middle = sorted(best.values())[len(best) // 2]
        slow = [rank for rank, took in best.items() if len(best) > 2 and took > max(floor, run[SLOW_FACTOR] * middle)]
        for rank in slow:
            text = f"{what} in {path} takes {best[rank]:,.0f} ms at best ({mounts.describe(views[rank]['mount'])})"
            expected = f"expected about {middle:.2g} ms as on most nodes"
            yield SLOW.warn(f"{text}, {expected}", node=run.job.node_of(rank).node, file=path)
        if middle > STANDSTILL_MS:
            text = f"{what} in {path} takes {middle:,.0f} ms at best on most nodes, expected less than 1 s"
            yield SLOW.info(text, file=path)


def _left(_path: str, views: Views, run: Run, _: Mapping[int, Facts]) -> Iterator[Finding]:
    for rank, view in views.items():
        if view["left"]:
            text = f"{view['left']} may still be there, expected it to be gone: removing it failed or did not return"
            yield NOT_REMOVED.info(text, node=run.job.node_of(rank).node, file=view["left"])


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    parts = []
    for path, views in _by_path(facts).items():
        kinds = "/".join(sorted({view["mount"]["type"] for view in views.values() if view["mount"]}))
        syncs = [view["fsync_ms"][0] for view in views.values() if view["fsync_ms"]]
        speed = f"fsync {min(syncs):.2g}-{max(syncs):.2g} ms" if syncs else "not written to"
        parts.append(f"{path} ({kinds or '?'}) {speed}")
    return f"{ranges.count(sum(bool(measured['paths']) for measured in facts.values()), 'node')}: {', '.join(parts)}"
