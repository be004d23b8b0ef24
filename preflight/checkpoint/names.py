"""Names of tensors, and what wrappers of a model add to them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

WRAPPERS = {
    "module": "DDP's or DataParallel's",
    "_orig_mod": "torch.compile's",
    "_fsdp_wrapped_module": "FSDP's",
    "_checkpoint_wrapped_module": "activation checkpointing's",
    "_forward_module": "a wrapper's",
}
ALL = "(all)"
DEEPEST = 4
"""The most levels above the model in a checkpoint's names, as in state.model."""


def bare(name: str) -> str:
    """The name without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def wrappers_of(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.split(".") if part in WRAPPERS)


def section(saved: Iterable[str], expected: Iterable[str]) -> str:
    """The prefix under which the checkpoint holds most of a model's names: "", "model", "state.model"."""
    wanted = {bare(name) for name in expected}
    hits: Counter[str] = Counter()
    for name in saved:
        parts = bare(name).split(".")
        for depth in range(min(DEEPEST + 1, len(parts))):
            if ".".join(parts[depth:]) in wanted:
                hits[".".join(parts[:depth])] += 1
    most = max(hits.values(), default=0)
    return next((start for start in hits if hits[start] == most), "")


def under(saved: Iterable[str], start: str) -> dict[str, str]:
    """Full names by their bare form without the prefix `start`."""
    found: dict[str, str] = {}
    for name in saved:
        stripped = bare(name)
        if not start or stripped.startswith(f"{start}."):
            found[stripped.removeprefix(f"{start}.") if start else stripped] = name
    return found


def groups(names: Sequence[str], most: int = 8) -> Mapping[str, list[str]]:
    """Groups names by their first parts: by as many parts as give at most `most` groups."""
    by_start: dict[str, list[str]] = {ALL: list(names)}
    for depth in range(1, DEEPEST):
        finer: dict[str, list[str]] = {}
        for name in names:
            finer.setdefault(".".join(name.split(".")[:depth]), []).append(name)
        if len(finer) > most or max(map(len, finer.values()), default=0) == 1:
            break
        by_start = finer
    return by_start
