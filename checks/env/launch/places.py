"""Where the ranks are: the node, the local rank, and the GPU that follows from it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from preflight.check import Node, Run, plots, ranges

Rank = Mapping[str, Any]
"""The facts of one rank in env.launch."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
MOST_KINDS, MOST_TEXT = 16, 40


def is_split(node: Node) -> bool:
    """Whether ranks of other nodes lie between this node's."""
    return max(node.ranks) - min(node.ranks) >= len(node.ranks)


def are_dealt_out(nodes: Sequence[Node]) -> bool:
    """Whether no rank shares a node with its neighbors: a cyclic distribution."""
    world = sum(len(node.ranks) for node in nodes)
    return all(set(node.ranks) == set(range(min(node.ranks), world, len(nodes))) for node in nodes)


def sees_one_gpu(reading: Rank) -> bool:
    """Whether the launcher shows a rank a single GPU, its own (srun --gpus-per-task=1)."""
    return bool(re.fullmatch("[^,]+", visible_devices(reading) or ""))


def visible_devices(reading: Rank) -> str | None:
    """The variable that says which GPUs the rank sees, of NVIDIA or AMD (HIP reads CUDA's, too)."""
    return next((reading["environ"][name] for name in VISIBLE if name in reading["environ"]), None)


def table(facts: Mapping[int, Rank], run: Run) -> plots.Table:
    """One row per kind of node: same number and spacing of ranks, same local ranks and GPUs."""
    kinds: dict[object, list[Node]] = {}
    for node in run.job.nodes:
        kinds.setdefault(_kind(node, facts, run), []).append(node)
    rows = [_row(alike, facts, run) for alike in list(kinds.values())[:MOST_KINDS]]
    rest = list(kinds.values())[MOST_KINDS:]
    left = f"{ranges.count(sum(map(len, rest)), 'node')} of {ranges.count(len(rest), 'other kind')} not shown"
    heads = ("ranks", "node", "local ranks", "GPUs")[: len(rows[0]) if rows else None]
    return plots.Table("where the ranks are", heads, rows, left if rest else "", screen="quiet")


def _kind(node: Node, facts: Mapping[int, Rank], run: Run) -> object:
    return tuple(rank - node.ranks[0] for rank in node.ranks), *_devices(node, facts, run)


def _row(alike: Sequence[Node], facts: Mapping[int, Rank], run: Run) -> tuple[str, ...]:
    first = alike[0]
    others = f" and {ranges.count(len(alike) - 1, 'other')} like it" if len(alike) > 1 else ""
    return short(ranges.to_text(first.ranks)), f"{first.node}{others}", *_devices(first, facts, run)


def _devices(node: Node, facts: Mapping[int, Rank], run: Run) -> tuple[str, ...]:
    """Local ranks, and on nccl GPUs, in the order of the ranks."""
    readings = [facts.get(rank) for rank in node.ranks]
    local = _in_order([str(reading["local_rank"]) if reading else "?" for reading in readings])
    gpus = _in_order([_gpu(reading) if reading else "?" for reading in readings])
    return (local, gpus) if run.job.backend == "nccl" else (local,)


def _gpu(reading: Rank) -> str:
    """The GPU as that variable names it; gpu.inventory compares UUIDs."""
    visible = visible_devices(reading)
    if visible is None:
        return str(reading["local_rank"])
    names = [name.strip() for name in visible.split(",")]
    place = 0 if len(names) == 1 else reading["local_rank"]
    return "none" if place >= len(names) or not names[place] else "UUID" if "-" in names[place] else names[place]


def _in_order(words: Sequence[str]) -> str:
    """ "0-3", "3,2,1,0", or "0 each"."""
    if len(words) > 1 and len(set(words)) == 1:
        return f"{words[0]} each"
    runs: list[list[str]] = []
    for word in words:
        if runs and word.isdecimal() and runs[-1][-1].isdecimal() and int(word) == int(runs[-1][-1]) + 1:
            runs[-1].append(word)
        else:
            runs.append([word])
    return short(",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs))


def short(text: str) -> str:
    """A comma-separated list, cut to a column's width."""
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT].rpartition(',')[0]},..."
