"""Which nodes belong together, from a file that the user gives and from Slurm's topology."""

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypedDict

from preflight.check import Code, Context, Finding, Group, Job, NoReply, Probe, Run, grouped, option, ranges, words

GROUPS = option(str, "", 'a file that says which nodes belong together, one line per node: "gpu-17 rack=7 room=b"')
BAD_GROUPS = Code(
    "The file of groups (env.launch.groups) cannot be used as it is written.",
    fix="Give each node one line: its name, then words like rack=7; # starts a comment.",
)
READ_S = 5.0
LARGEST = 4 << 20
"""Bytes: enough for 10,000 nodes with ten groups each."""


class Listed(TypedDict):
    """What the file says about the job's nodes."""

    path: str
    groups: dict[str, list[str]]
    """{"rack 7": its nodes}."""
    wrong: str
    """Why it cannot be used, or ""."""


def listed(ctx: Context) -> Listed | None:
    """Only one rank reads the file, in another process: its file system may hang. None on all other ranks."""
    path = ctx[GROUPS]
    if not path or ctx.rank != ctx.members[0]:
        return None
    ctx.doing(f"reading {path}")
    with Probe({"reading": partial(_read, ctx.job)}) as probe:
        reply = probe.ask("reading", path, deadline_s=READ_S)
    groups, wrong = ({}, _unread(reply.text)) if isinstance(reply, NoReply) else reply.value
    return {"path": path, "groups": groups, "wrong": wrong}


def _read(job: Job, path: str) -> tuple[dict[str, list[str]], str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return parsed(file.read(LARGEST), job)
    except OSError as error:
        return {}, _unread(error.strerror or str(error))


def _unread(why: str) -> str:
    return f"it cannot be read ({why})"


def parsed(text: str, job: Job) -> tuple[dict[str, list[str]], str]:
    """(the job's nodes by group, what is wrong with the first bad line). A line may use a node's name in the job or its
    short host name: "gpu-17" matches "gpu-17.cluster.example", and both "gpu-17#0" and "gpu-17#1"."""
    by_host = grouped((node.node for node in job.nodes), _host)
    groups: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, *pairs = [*itertools.takewhile(lambda word: not word.startswith("#"), line.split())] or [""]
        nodes = by_host.get(_host(name), [])
        nodes = [name] if name in nodes else nodes
        for kind, sign, value in (pair.partition("=") for pair in pairs):
            if not (kind and sign and value):
                word = (kind + sign + value)[:40]
                return {}, f"line {number} has {word!r}, expected words like rack=7 after the node's name"
            members = groups.setdefault(f"{kind} {value}", [])
            members += [node for node in nodes if node not in members]
    return {name: members for name, members in groups.items() if members}, ""


def _host(name: str) -> str:
    return name.partition("#")[0].partition(".")[0]


def findings(listed: Listed, run: Run) -> Iterator[Finding]:
    if listed["wrong"]:
        yield BAD_GROUPS.warn(f"{listed['path']}: {listed['wrong']}; it was ignored")
        return
    known = {node for nodes in listed["groups"].values() for node in nodes}
    if left := [node.node for node in run.job.nodes if node.node not in known]:
        text = f"{listed['path']} has no group for {len(left):,} of {ranges.count(len(run.job.nodes), 'node')}"
        yield BAD_GROUPS.info(f"{text} ({words.some(left, 3, last=', ')}), expected all")


def behind_switches(places: Mapping[str, str]) -> Iterator[Group]:
    """A group per switch; `places` has each node's `switches` fact."""
    behind: dict[str, list[str]] = {}
    for node, place in places.items():
        for name in place.split(".") if place else ():
            behind.setdefault(name, []).append(node)
    yield from (Group(f"switch {name}", tuple(nodes)) for name, nodes in behind.items())
