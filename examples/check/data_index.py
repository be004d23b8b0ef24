"""Data index: every node can read it, and reads the same."""

import hashlib
import json

from preflight.check import Code, Level, NoReply, NoReplyKind, Plan, Probe, Scope, Skip, option, seconds, vote

INDEX = option(str, "", "the index of the data set, a JSON file: {shard: number of samples}")
PLAN = Plan(Scope.NODE, lambda asked: Level.QUICK if asked.sets(INDEX) else None, deadline_s=60)
PATIENCE_S = option(seconds, 20.0, "seconds in which it must be read")
UNREADABLE = Code("A node cannot read the index.", fix="On that node: findmnt -T {file}; python -m json.tool {file}")
DIFFERENT = Code("Nodes read different indexes.", fix="sha256sum {file}: on this node and on another.")


def read_index(path):
    """Runs in the probe's process."""
    Probe.doing(f"opening {path}")
    with open(path, "rb") as file:
        Probe.doing(f"reading {path}")
        content = file.read()
    shards = json.loads(content)
    digest = hashlib.sha256(content).hexdigest()[:12]
    return {"shards": len(shards), "samples": sum(shards.values()), "digest": digest, "error": ""}


def measure(ctx):
    ctx.doing("reading the index", file=ctx[INDEX])
    with Probe({"read_index": read_index}) as probe:
        reply = probe.ask("read_index", ctx[INDEX], deadline_s=ctx[PATIENCE_S])
    if not isinstance(reply, NoReply):
        return reply.value
    if reply.kind == NoReplyKind.DISTURBED:
        raise Skip(f"the process that read the index {reply.text}")
    return {"shards": 0, "samples": 0, "digest": "", "error": f"{reply.call}: {reply.text}"}


def judge(facts, run):
    index = run[INDEX]
    for rank, measured in facts.items():
        if measured["error"]:
            text = f"{measured['error']}; expected to read the index within {run[PATIENCE_S]:g} s"
            yield UNREADABLE.fail(text, node=run.job.node_of(rank).node, file=index)
    votes = vote((rank, measured["digest"]) for rank, measured in facts.items() if measured["digest"])
    for rank, digest in votes.odd():
        text = f"the index is {digest}, expected {votes.usual} as on most nodes"
        yield DIFFERENT.fail(text, node=run.job.node_of(rank).node, file=index)
    if not votes.unanimous and not votes.decided:
        yield DIFFERENT.fail(f"the index is {votes.sides()}, expected the same on all nodes", file=index)


def summarize(facts, _run):
    measured = next(iter(facts.values()))
    return f"{measured['samples']:,} samples in {measured['shards']:,} shards"
