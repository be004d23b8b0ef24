"""What a DataLoader's workers draw from, and each generator's state when they start.

Starts workers like the loader's own, for two epochs. Each reads the generators' states after its worker_init_fn, passes
one sample of the user's dataset through the user's collate_fn, and reads them again: a generator whose state changed
was drawn from. Workers with equal states before and after draw the same numbers. If a sample seeds a generator itself,
the states before it differ, which is not reported.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, TypedDict

from preflight.check import UserCode, UserError
from preflight.checks.data.shared import generators, sampler_chain
from preflight.checks.data.shared.timeouts import Stuck, patience
from preflight.checks.data.shared.waiting import Waiting

EPOCHS = 2
MAIN = -1
"""Stands for a worker's number if the loader has no workers: the rank's own process."""


class FirstDraws(TypedDict):
    """What one worker drew from for its first sample of an epoch."""

    epoch: int
    worker: int
    drawn: dict[str, str]
    """By generator (torch, Python, NumPy, or a path such as "Crops.generator"): a digest of its states before and
    after."""


class Named(TypedDict):
    name: str
    file: str | None
    """Its file, and the line, if it is the user's own code."""
    line: int | None


class Draws(TypedDict):
    """The draws of one loader on one rank."""

    name: str
    """The name in data.sampler's Reading."""
    workers: int
    """0 if samples are made in the rank's own process."""
    epochs: int
    """How many epochs can be compared: persistent workers, and the rank's own process, continue where they were."""
    init: Named | None
    """The loader's worker_init_fn."""
    dataset: Named
    """The dataset's class."""
    seed: int | None
    """Seed of the loader's own generator, which seeds its workers; None if torch's does."""
    unseen: str
    """Why nothing could be read, or ""."""
    looks: list[FirstDraws]


def read(loader: Any, name: str, code: UserCode, after: dict[str, generators.State], patience_s: float) -> Draws:
    """`after`: the global generators as the user's function left them, where the loader starts. Restores them. All must
    end within `patience_s`. Never raises because of faults in the user's code."""
    inner = _torch_loader(loader)
    if inner is None:
        return _unread(loader, name, code, f"a {type(loader).__name__} is not a DataLoader, and contains none")
    draws = _unread(inner, name, code, "")
    if patience_s <= 0:
        return {**draws, "unseen": "the time for it was spent on other loaders"}
    before = generators.snapshot()
    generators.restore(after)
    try:
        start, waiting = _Start(inner), Waiting(code, patience_s)
        with patience(patience_s, "a first sample of each DataLoader worker in two epochs", code):
            for epoch in range(draws["epochs"]):
                _set_epoch([loader, inner], epoch, waiting)
                draws["looks"] += _looks(start, epoch, waiting)
    except (UserError, Stuck) as error:
        draws["unseen"] = error.text
    finally:
        generators.restore(before)
    return draws


def _unread(loader: Any, name: str, code: UserCode, unseen: str) -> Draws:
    init, dataset, generator = (
        sampler_chain.linked(loader, link) for link in ("worker_init_fn", "dataset", "generator")
    )
    workers = sampler_chain.linked(loader, "num_workers") or 0
    runs_on = not workers or bool(sampler_chain.linked(loader, "persistent_workers"))
    return Draws(
        name=name,
        workers=workers,
        epochs=1 if runs_on else EPOCHS,
        init=None if init is None else _named(init, code),
        dataset=_named(type(dataset), code),
        seed=None if generator is None else generator.initial_seed(),
        unseen=unseen,
        looks=[],
    )


def _named(thing: Any, code: UserCode) -> Named:
    file, line = code.place_of(thing) or (None, None)
    return Named(name=getattr(thing, "__name__", type(thing).__name__), file=file, line=line)


def _torch_loader(loader: Any) -> Any:
    """A DataLoader, an object that looks like one, or the one that it holds."""
    import torch

    if all(sampler_chain.linked(loader, name) is not None for name in ("dataset", "num_workers", "collate_fn")):
        return loader
    held = vars(loader).values() if hasattr(loader, "__dict__") else ()
    return next((thing for thing in held if isinstance(thing, torch.utils.data.DataLoader)), None)


def _set_epoch(loaders: list[Any], epoch: int, waiting: Waiting) -> None:
    for place, setter in (found for loader in loaders for found in sampler_chain.epoch_setters(loader)):
        with waiting.on(f"set_epoch({epoch}) of {place}"):
            setter(epoch)


def _looks(start: "_Start", epoch: int, waiting: Waiting) -> list[FirstDraws]:
    expected = max(start.workers, 1)
    found: dict[int, dict[str, str]] = {}
    with waiting.iterating(start, "the start of DataLoader workers") as iterator:
        for _ in range(2 * expected):  # a worker may have no part of a stream: then others come again
            with waiting.on("a first sample of each DataLoader worker"):
                worker, drawn = next(iterator, (None, {}))
            if worker is None:
                break
            found.setdefault(worker, drawn)
            if len(found) == expected:
                break
    return [FirstDraws(epoch=epoch, worker=worker, drawn=drawn) for worker, drawn in sorted(found.items())]


class _Start:
    """Yields each worker's number and what it drew from. Workers are seeded like the loader's own: from a generator
    with the seed of the loader's, which continues from epoch to epoch, or from torch's."""

    def __init__(self, loader: Any) -> None:
        import torch

        self.loader, self.workers = loader, loader.num_workers
        self.generator: Any = None
        if (own := sampler_chain.linked(loader, "generator")) is not None:
            self.generator = torch.Generator().manual_seed(own.initial_seed())

    def __iter__(self) -> Iterator[tuple[int, dict[str, str]]]:
        return self._in_workers() if self.workers else self._here()

    def _in_workers(self) -> Any:
        import torch

        loader, watch = self.loader, DrawWatch(self.loader)
        stream = isinstance(loader.dataset, torch.utils.data.IterableDataset)
        started: Any = torch.utils.data.DataLoader(
            loader.dataset,
            batch_size=None,
            sampler=None if stream else [0] * self.workers,  # workers get one each, in turn
            num_workers=self.workers,
            prefetch_factor=1,
            collate_fn=watch.collate,
            worker_init_fn=watch.begin,
            multiprocessing_context=sampler_chain.linked(loader, "multiprocessing_context"),
            generator=self.generator,
        )
        return iter(started)

    def _here(self) -> Iterator[tuple[int, dict[str, str]]]:
        import torch

        dataset, watch = self.loader.dataset, DrawWatch(self.loader)
        watch.look(dataset)
        if isinstance(dataset, torch.utils.data.IterableDataset):
            yield from map(watch.collate, islice(dataset, 1))
        else:
            yield watch.collate(dataset[0])


class DrawWatch:
    """Replaces a loader's worker_init_fn and collate_fn. Pickled like these if workers are spawned."""

    def __init__(self, loader: Any) -> None:
        self._init = sampler_chain.linked(loader, "worker_init_fn")
        self._collate = loader.collate_fn
        self._batched = (
            sampler_chain.linked(loader, "batch_sampler") is not None
            or sampler_chain.linked(loader, "batch_size") is not None
        )
        self._dataset: Any = None
        self._before: dict[str, str] = {}

    def begin(self, worker: int) -> None:
        import torch

        if self._init is not None:
            self._init(worker)
        info = torch.utils.data.get_worker_info()
        assert info is not None, "it is called in a worker"
        self.look(info.dataset)

    def look(self, dataset: Any) -> None:
        self._dataset = dataset
        self._before = self._states()

    def collate(self, sample: Any) -> tuple[int, dict[str, str]]:
        """The worker's number, and what was drawn from since `look`."""
        import torch

        with suppress(Exception):  # it may not accept a batch of one; what it drew until then counts
            self._collate([sample] if self._batched else sample)
        moved = {name: (self._before.get(name, ""), now) for name, now in self._states().items()}
        drawn = {name: generators.digest(f"{old} {now}") for name, (old, now) in moved.items() if old != now}
        info = torch.utils.data.get_worker_info()
        return MAIN if info is None else info.id, drawn

    def _states(self) -> dict[str, str]:
        return generators.digests({type(holder).__name__: holder for holder in (self._dataset, self._collate)})
