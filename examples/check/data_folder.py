"""Data folder: every node sees it, with the same entries."""

import os

from preflight.check import Code, Level, Plan, Scope, Skip, option, vote

PLAN = Plan(Scope.NODE, Level.QUICK, deadline_s=30)
FOLDER = option(str, "", "the folder of the training data")
MISSING = Code("A node does not see the data folder.", fix="On that node: findmnt -T {file}; mount it there.")
DIFFERENT = Code("Nodes see different data.", fix="findmnt -T {file}; ls {file} | head: on this node and on another.")


def measure(ctx):
    folder = ctx[FOLDER]
    if not folder:
        raise Skip(f"no folder was given: --set {ctx.check}.folder=DIR")
    ctx.doing("listing", file=folder)
    return {"entries": len(os.listdir(folder)) if os.path.isdir(folder) else None}


def judge(facts, run):
    folder = run[FOLDER]
    for rank, measured in facts.items():
        if measured["entries"] is None:
            text = f"{folder} is not there, expected the training data"
            yield MISSING.fail(text, node=run.job.node_of(rank).node, file=folder)
    votes = vote((rank, measured["entries"]) for rank, measured in facts.items() if measured["entries"] is not None)
    for rank, entries in votes.odd():
        text = f"{folder} has {entries} entries, expected {votes.usual} as on most nodes"
        yield DIFFERENT.fail(text, node=run.job.node_of(rank).node, file=folder)
    if not votes.unanimous and not votes.decided:
        text = f"the number of entries of {folder} is {votes.sides()}, expected the same on all nodes"
        yield DIFFERENT.fail(text, file=folder)


def summarize(facts, run):
    measured = next(iter(facts.values()))
    return f"{measured['entries']} entries in {run[FOLDER]}"
