"""Where each rank stood when its collective failed: the user's line and what it was part of, by the exceptions that
`preflight debug` recorded, and by the stacks of ranks that the collective's library has aborted."""

import re
from collections.abc import Sequence
from dataclasses import replace

from preflight.core.exceptions import Frame, printed_frames
from preflight.explain.artifacts.processes import RankProcess, collective, format_place, own_place, ranks
from preflight.explain.candidates import Candidate

ABOUT_RANKS = frozenset(("collective_mismatch", "slow_rank_timeout", "remote_peer_failure", "explain.in_step"))
"""Causes in which ranks wait for each other."""
MOST = 4
"""Places that a sentence names."""
WAITS = {"wait": "the wait for a collective", "backward": "a backward"}
"""What processes.collective() names in other words than an operation's."""
PARTS = (
    ("a backward", re.compile(r"/torch/(?:_tensor|autograd/(?:__init__|graph))\.py$")),
    ("an optimizer's step", re.compile(r"/torch/optim/")),
    ("the save or load of a checkpoint", re.compile(r"/torch/(?:distributed/checkpoint/|serialization\.py$)")),
    ("FSDP, which gathers parameters", re.compile(r"/torch/distributed/(?:fsdp|_composable/fsdp)/")),
    ("a forward", re.compile(r"/torch/nn/modules/module\.py$")),
)
"""What a library's frame shows a rank to be in."""


def add_places(cause: Candidate, processes: Sequence[RankProcess]) -> Candidate:
    """Adds "; rank 0 stood in all_gather at train.py:89 (a forward), rank 1 in all_reduce at train.py:71" to the
    message, unless the cause has no ranks that wait, or names these places."""
    if (cause.slug or cause.code) not in ABOUT_RANKS or cause.severity == "info":
        return cause
    by_place: dict[str, list[RankProcess]] = {}
    for process in processes:
        if (place := _place(process)) and place.partition(" in ")[0].rpartition("at ")[2] not in cause.message:
            by_place.setdefault(place, []).append(process)
    listed = [f"{ranks(those)} stood {place}" for place, those in list(by_place.items())[:MOST]]
    return replace(cause, message=f"{cause.message}; {', '.join(listed)}") if listed else cause


def _place(process: RankProcess) -> str:
    exception = process.record.get("exception")
    stack = str(exception.get("traceback", "")) if isinstance(exception, dict) else ""
    frames = printed_frames(stack.rpartition("Traceback (most recent call last):")[2])[::-1] or process.last
    place = own_place(frames, process.record)
    if not place or not any("/torch/" in path for path, *_ in frames):
        return ""
    waits, part = WAITS.get(name := collective(frames), name), _part(frames)
    within = f" (part of {part})" if part and part != waits else ""
    return f"{f'in {waits} ' if waits else ''}at {format_place(place)}{within}"


def _part(frames: Sequence[Frame]) -> str:
    return next((name for name, pattern in PARTS if any(pattern.search(path) for path, *_ in frames)), "")
