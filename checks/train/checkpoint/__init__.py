"""Checkpoints: what was saved is restored to the last bit, and training continues as if it had never stopped.

A small transformer trains with AdamW and a falling learning rate. It has tied, frozen and
oddly sized parameters, a buffer, and parameters with fewer elements than ranks. It is saved, and trains on; then it is
loaded into a new training, under the same or a different strategy, on all ranks, half of them or one process. Weights,
buffers, the optimizer's moments and step counts, the schedule, the step count and the random state must be equal to the
last bit. Then the new training takes the same steps, and its losses and gradients must match those of the continued
one, as far as this hardware's own roundings allow (docs/checkpoint.md).

With --checkpoint DIR all is written into a new folder there, which is removed at the end. Before training, all nodes
look at DIR, and every rank writes and reads its part. Without it each node uses a private temporary folder.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from preflight.check import After, Context, Finding, Level, Plan, Run, Scope, option, plots, ranges
from preflight.checks.train.checkpoint import folder, resumed, speed
from preflight.checks.train.checkpoint.folder import DIR, Folder, FolderFacts
from preflight.train_smoke.checkpoint.names import CHECKPOINTS, DEFAULT

if TYPE_CHECKING:
    from preflight.train_smoke.checkpoint.run import Saved
    from preflight.train_smoke.trainer.compare import Spread

PARTS = (folder, speed, resumed)
PLAN = Plan(
    Scope.WORLD,
    lambda asked: Level.STANDARD if asked.sets(DIR) else Level.FULL,
    deadline_s=lambda job: 180.0 + job.world_size / 16,
    estimate_s=8.0,
    after=dict.fromkeys(("comm.init", "train.alone"), After.NEEDS),
)
ALL = "all"
DCP = ("dcp", "sharded", "async")
"""Forms of torch.distributed.checkpoint: each rank reads what others wrote."""


def _forms(text: str) -> dict[str, tuple[str, ...]]:
    if text.strip() == ALL:
        return dict(CHECKPOINTS)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in CHECKPOINTS:
            raise ValueError(f"{name!r} is not a form of checkpoint; known are {', '.join(CHECKPOINTS)}, or {ALL}")
    return {name: CHECKPOINTS[name] for name in names}


FORMS = option(_forms, None, "which, separated by commas, or all; unset: some")


class Facts(TypedDict):
    folder: FolderFacts
    alone: speed.AloneRates | None
    has_numpy: bool
    left_out: dict[str, str]
    """{checkpoint: why it was not made}."""
    spread: "Spread | None"
    saved: "dict[str, Saved]"


def measure(ctx: Context) -> Facts:
    import torch

    from preflight.train_smoke.trainer import task

    group = ctx.process_group()
    ctx.doing("importing torch._dynamo")
    task.import_dynamo()

    def all_well(well: bool, what: str) -> bool:
        flag = torch.tensor([int(well)], device=ctx.device)
        with ctx.collective(what):
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MIN, group=group)
        return bool(flag.item())

    token = torch.frombuffer(bytearray(os.urandom(8)), dtype=torch.uint8).to(ctx.device)
    with ctx.collective("broadcast", "the folder's name"):
        torch.distributed.broadcast(token, group=group, group_src=0)
    place = folder.make(ctx, bytes(token.tolist()).hex())
    facts = Facts(folder=place.facts, alone=None, has_numpy=_has_numpy(), left_out={}, spread=None, saved={})
    with contextlib.closing(place):
        if folder.look(ctx, place, all_well):
            facts["alone"] = speed.measure(ctx, place, all_well)
            if all_well(place.well, "the folder is well"):
                _train(ctx, place, facts, all_well)
        all_well(True, "all are done")  # no rank removes what another still reads
    return facts


def _train(ctx: Context, place: Folder, facts: Facts, all_well: folder.AllWell) -> None:
    from preflight.train_smoke.checkpoint.run import SavePlace, run
    from preflight.train_smoke.trainer.wrapped import StrategySetting

    chosen = ctx[FORMS] or DEFAULT
    group = ctx.process_group()
    setting = StrategySetting(
        group, ctx.device, len(ctx.members), ctx.part_of_group, mark=ctx.collective, doing=ctx.doing
    )
    facts["left_out"] = _left_out(chosen, ctx, place, facts["has_numpy"], all_well)
    facts_of = run(
        {name: into for name, into in chosen.items() if name not in facts["left_out"]},
        SavePlace(
            folder=Path(place.tree),
            makes=place.facts["made"],
            setting=setting,
        ),
    )
    facts["spread"], facts["saved"] = facts_of["spread"], facts_of["saved"]


def _left_out(
    chosen: Mapping[str, object], ctx: Context, place: Folder, has_numpy: bool, all_well: folder.AllWell
) -> dict[str, str]:
    """{checkpoint: why it is not made}, the same on all ranks."""
    one_folder = all_well(place.facts["seen"] is not False, "all nodes see one folder")
    has_numpy = all_well(has_numpy, "all ranks have NumPy")
    has_cpu_group = all_well(ctx.device.type == "cpu", "collectives on the CPU")
    reasons: dict[str, str] = {}
    for name in chosen:
        strategy, _, form = name.partition("/")
        if (form in DCP or strategy == "fsdp") and not has_numpy:
            reasons[name] = resumed.NEEDS_NUMPY
        elif form in DCP and not one_folder:
            reasons[name] = "nodes have no folder in common: --checkpoint DIR"
        elif form == "async" and not has_cpu_group:
            reasons[name] = "async_save needs a gloo group besides NCCL's"
    return reasons


def _has_numpy() -> bool:
    import torch

    try:
        torch.zeros(1).numpy()
    except RuntimeError:
        return False
    return True


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    folders = {rank: own["folder"] for rank, own in facts.items()}
    yield from folder.judge(folders, run)
    yield from speed.judge(folders, facts[min(facts)]["alone"], run)
    without = [rank for rank, own in facts.items() if not own["has_numpy"]]
    left_out = facts[min(facts)]["left_out"]
    yield from resumed.judge_left_out(left_out, without, len(facts), is_used=bool(run[DIR] or run[FORMS]))
    if run[FORMS]:
        yield from resumed.judge_asked(left_out)
    yield from resumed.judge(
        {rank: own["saved"] for rank, own in facts.items()}, _spreads(facts), folders[min(facts)]["path"], run
    )


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    yield from speed.plot({rank: own["folder"] for rank, own in facts.items()}, facts[min(facts)]["alone"], run)


def _spreads(facts: Mapping[int, Facts]) -> "list[Spread]":
    return [own["spread"] for own in facts.values() if own["spread"]]


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    """ "4 checkpoints of fsdp2/dcp, ddp/full on 4 ranks restored to the last bit, then as without a stop to 3e-07"."""
    some = facts[min(facts)]
    if not some["saved"]:
        left = resumed.left_out_in_words(some["left_out"])
        return f"nothing was trained{f': {left}' if left else ''}"
    made = resumed.summarize({rank: own["saved"] for rank, own in facts.items()}, _spreads(facts))
    left = resumed.left_out_in_words(some["left_out"])
    rates = speed.summarize({rank: own["folder"] for rank, own in facts.items()}, run)
    on = f"on {ranges.count(len(facts), 'rank')}"
    return "; ".join(filter(None, (f"{made} {on}", rates, f"not made: {left}" if left else "")))
