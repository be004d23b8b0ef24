"""One trial of a way, on all ranks: all-reduces in a process of its own, which may hang, and whose sums are checked."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypedDict

from preflight.check import Context, NoReply, Probe, ranges, words
from preflight.checks.comm.paths.ways import Detour

SIZES = (4, 1 << 20, 8 << 20)
"""Bytes: the job's first collective, what NCCL splits over its channels, and what leaves its protocols for small
messages (LL and LL128)."""


LONGEST, MOST_TEXTS = 200, 8
"""Characters of an error to keep, and how many of them."""


class Trial(TypedDict):
    without: str
    works: bool
    seconds: float
    """The longest of all ranks."""
    left_s: float
    """The shortest time that a rank had left afterwards."""
    failed: dict[str, str]
    """Why: {text: the ranks, as "0-3,7"}; at most MOST_TEXTS, since each rank may name another peer."""


def join(ctx: Context, turn: str, ranks: Sequence[int], settings: Mapping[str, str], patience_s: float) -> None:
    """The process group of a trial, in a new process, where NCCL has not read the environment yet."""
    os.environ.update(settings)
    import torch
    from torch import distributed as dist

    on_gpu = ctx.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(ctx.device)
    dist.init_process_group(
        ctx.job.backend,
        store=dist.PrefixStore(f"group-{turn}", ctx.store()),  # type: ignore[attr-defined]  # not in __all__
        rank=ranks.index(ctx.rank),
        world_size=len(ranks),
        timeout=timedelta(seconds=patience_s),
        device_id=ctx.device if on_gpu else None,
    )


def sums(ctx: Context, turn: str, ranks: Sequence[int], settings: Mapping[str, str], patience_s: float) -> str:
    """What is wrong with the sums, or "". Each rank adds its number, so that each sum is known and exact."""
    import torch
    from torch import distributed as dist

    join(ctx, turn, ranks, settings, patience_s)
    value = torch.zeros(max(SIZES) // 4, device=ctx.device)
    expected = len(ranks) * (len(ranks) + 1) / 2
    for size in SIZES:
        part = value[: size // 4].fill_(ranks.index(ctx.rank) + 1.0)
        dist.all_reduce(part)
        if wrong := int((part != expected).sum().item()):
            return f"{wrong:,} of {size // 4:,} sums are wrong in an all-reduce of {words.size(size)}"
    return ""


def meet(ctx: Context, key: str, own: object, within_s: float) -> list[Any]:
    """What each member has to say, in their order: all wait here for the last, and go on with the same."""
    store = ctx.store()
    keys = [f"{key}/{rank}" for rank in ctx.members]
    with ctx.collective("meeting", key):
        store.set(f"{key}/{ctx.rank}", json.dumps(own))
        store.wait(keys, timedelta(seconds=within_s))
    return [json.loads(text) for text in store.multi_get(keys)]


def attempt(ctx: Context, turn: str, way: Detour, ranks: Sequence[int], patience_s: float, end: float) -> Trial:
    """`turn`: a word of its own for each. `ranks`: the group of this rank; one that is alone waits for the others.
    `end`: until when there is time, by time.monotonic()."""
    began_s, failed = time.monotonic(), ""
    ask = partial(sums, ctx, f"{turn}-{min(ranks)}", ranks, way.settings, patience_s)
    with Probe({way.without: ask}) as probe:  # its process lives until the others have their answers
        if len(ranks) > 1:
            ctx.doing(f"an all-reduce {way.without}")
            reply = probe.ask(way.without, deadline_s=patience_s)
            failed = reply.text[:LONGEST] if isinstance(reply, NoReply) else reply.value
        now_s = time.monotonic()
        answers = meet(ctx, f"trial-{turn}", [failed, now_s - began_s, end - now_s], 2 * patience_s)
    failed_on: dict[str, list[int]] = {}
    for rank, (text, _, _) in zip(ctx.members, answers, strict=True):
        if text:
            failed_on.setdefault(text, []).append(rank)
    kept = sorted(failed_on, key=lambda text: -len(failed_on[text]))[:MOST_TEXTS]
    return {
        "without": way.without,
        "works": not failed_on,
        "seconds": max(seconds for _, seconds, _ in answers),
        "left_s": min(left_s for _, _, left_s in answers),
        "failed": {text: ranges.to_text(failed_on[text]) for text in kept},
    }
