"""What chooses a loader's samples: nested samplers, and their attributes."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

from preflight.check import UserCode

DEEPEST = 4
LINKS = ("sampler", "batch_sampler", "dataset")
INDEX_READERS = ("torch.utils.data", "torchdata.stateful_dataloader")
"""Modules whose `__iter__` yields the sampler's choice, and does nothing before that."""


def by_index(loader: Any) -> bool:
    """Whether its sampler determines its samples: the dataset is map-style, and the loader's `__iter__` is that of
    torch's DataLoader, or known to do the same. A user's own may do anything."""
    import torch

    module, _ = iterator_of(loader)
    known = any(module == package or module.startswith(f"{package}.") for package in INDEX_READERS)
    dataset = linked(loader, "dataset")
    streams = isinstance(dataset, torch.utils.data.IterableDataset)
    return known and hasattr(type(dataset), "__getitem__") and not streams and chooser(loader)[0] is not None


def iterator_of(loader: Any) -> tuple[str, str]:
    """The module and class that define its `__iter__`; "" if unknown."""
    iterates = getattr(type(loader), "__iter__", None)
    return str(getattr(iterates, "__module__", "")), str(getattr(iterates, "__qualname__", "")).partition(".")[0]


def chooser(loader: Any) -> tuple[Any, bool]:
    """(the batch sampler, or else the sampler; whether it is the former)."""
    batch_sampler = linked(loader, "batch_sampler")
    return (linked(loader, "sampler"), False) if batch_sampler is None else (batch_sampler, True)


def without_drop_last(loader: Any) -> tuple[Any, bool, int]:
    """Like `chooser`, but if torch's BatchSampler drops an incomplete last batch, one that does not, and the size of a
    complete one, so that what is dropped is known. The size is 0 if nothing is dropped."""
    from torch.utils.data import BatchSampler

    outermost, is_batches = chooser(loader)
    if type(outermost) is BatchSampler and outermost.drop_last:
        return BatchSampler(outermost.sampler, outermost.batch_size, drop_last=False), True, outermost.batch_size
    return outermost, is_batches, 0


def linked(thing: Any, name: str) -> Any:
    try:
        return getattr(thing, name, None)
    except Exception:  # a property of the user's
        return None


def within(loader: Any) -> Any:
    """The DataLoader that a user's own loader holds, or the loader itself: its samplers are known, although a training
    script cannot reach them."""
    if chooser(loader)[0] is None:
        for held in vars(loader).values() if hasattr(loader, "__dict__") else ():
            if linked(held, "dataset") is not None and chooser(held)[0] is not None:
                return held
    return loader


def samplers(loader: Any) -> list[Any]:
    """The loader's samplers, from the outermost to the innermost."""
    import torch

    found: list[Any] = []
    sampler, _ = chooser(loader)
    while sampler is not None and len(found) < DEEPEST and not any(sampler is other for other in found):
        found.append(sampler)
        sampler, _ = chooser(sampler)
    streams = isinstance(linked(loader, "dataset"), torch.utils.data.IterableDataset)
    return [] if streams else found  # torch gives each stream a meaningless sampler


def epoch_setters(loader: Any) -> Iterator[tuple[str, Callable[[int], Any]]]:
    """Each `set_epoch` that a training script can reach, and where: "loader.sampler"."""
    seen: list[Any] = [None]
    level = [("loader", loader)]
    for _ in range(DEEPEST + 1):
        below: list[tuple[str, Any]] = []
        for path, thing in level:
            if any(thing is other for other in seen):
                continue
            seen.append(thing)
            setter = linked(thing, "set_epoch")
            if callable(setter):
                yield path, setter
            below += [(f"{path}.{name}", linked(thing, name)) for name in LINKS]
        level = below


def settings(chain: list[Any]) -> dict[str, int | bool | None]:
    """`num_replicas`, `replica`, `seed` and `shuffle` of the innermost sampler that has them."""
    replicas = next((sampler for sampler in reversed(chain) if _number(sampler, "num_replicas") is not None), None)
    return {
        "num_replicas": _number(replicas, "num_replicas"),
        "replica": _number(replicas, "rank"),
        "seed": next((seed for sampler in reversed(chain) if (seed := _number(sampler, "seed")) is not None), None),
        "shuffle": next((flag for sampler in reversed(chain) if (flag := shuffles(sampler)) is not None), None),
    }


def parted(loader: Any, chain: list[Any]) -> list[str]:
    """Types that each split samples between ranks: DistributedSampler and the like, Accelerate's, by their numbers of
    ranks; a dispatcher splits each batch."""
    module, kind = iterator_of(loader)
    dispatches = [kind] if (module, kind) == ("accelerate.data_loader", "DataLoaderDispatcher") else []
    numbers = [
        (sampler, _number(sampler, "num_replicas") or _number(sampler, "num_processes") or 1) for sampler in chain
    ]
    return dispatches + [type(sampler).__name__ for sampler, number in numbers if number > 1]


def shuffles(thing: Any) -> bool | None:
    """The `shuffle` attribute of a sampler or stream, or None."""
    return _flag(thing, "shuffle")


def drops_last(loader: Any, chain: list[Any]) -> bool | None:
    """Whether the loader or any of its samplers drops a tail; None if none says."""
    flags = [flag for chooser in [loader, *chain] if (flag := _flag(chooser, "drop_last")) is not None]
    return any(flags) if flags else None


def by_design(chain: list[Any]) -> Literal["", "subset", "repeats", "augments"]:
    """The purpose of torch's own samplers, and of those for repeated augmentation (`repetitions` in DeiT and
    torchvision, `num_repeats` in timm). torchdata has its own RandomSampler."""
    for sampler in chain:
        if any((_number(sampler, name) or 0) > 1 for name in ("repetitions", "num_repeats")):
            return "augments"
        names = {kind.__name__ for kind in type(sampler).__mro__}
        if "WeightedRandomSampler" in names:
            return "repeats" if sampler.replacement else "subset"
        if "SubsetRandomSampler" in names:
            return "subset"
        if "RandomSampler" in names and (sampler.replacement or sampler.num_samples > len(sampler.data_source)):
            return "repeats"
        if "RandomSampler" in names and sampler.num_samples < len(sampler.data_source):
            return "subset"
    return ""


def place(loader: Any, chain: list[Any], code: UserCode | None) -> tuple[str, int] | None:
    """(file, line) of the user's code that chooses samples: a sampler's class, a stream's or loader's `__iter__`."""
    if code is None:
        return None
    dataset = linked(loader, "dataset")
    iterates = [getattr(type(thing), "__iter__", None) for thing in (dataset, loader)]
    candidates = [type(sampler) for sampler in reversed(chain)] or iterates
    return next((found for thing in candidates if thing is not None and (found := code.place_of(thing))), None)


def _number(thing: Any, name: str) -> int | None:
    value = linked(thing, name)
    return value if type(value) is int else None


def _flag(thing: Any, name: str) -> bool | None:
    value = linked(thing, name)
    return value if isinstance(value, bool) else None
