"""Reads every loader on this rank for two epochs: which samples, in which order and batches. Either the user's loaders,
or torch's DistributedSampler over datasets of a few sizes."""

import platform
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from preflight.check import Context, UserCode, UserError
from preflight.checks.data.sampler import accelerate_loaders, content, indices, spot_check, subsets
from preflight.checks.data.sampler.aggregate import Key, Whole, together
from preflight.checks.data.sampler.epoch import Ids
from preflight.checks.data.shared import sampler_chain
from preflight.checks.data.shared.readings import EPOCHS, Epoch, Facts, Reading, Together
from preflight.checks.data.shared.timeouts import Stuck
from preflight.checks.data.shared.user_function import Called, raised
from preflight.checks.data.shared.waiting import Limit, Waiting

if TYPE_CHECKING:
    import torch

BATCH = 4
ROUNDS = 16
"""Samples per rank of torch's own loaders."""
PASSES = 2
"""An epoch that continues after this many passes over the dataset is endless. Without a length, reading stops there."""
LOADED = 3
"""Batches to load from the loader itself, if its samples are known by index."""
END = object()


@dataclass(frozen=True)
class Budget:
    """Limits for reading one loader."""

    seconds: float
    samples: int
    """The most samples per epoch."""
    patience_s: float
    """Seconds that a single batch may take."""
    world: int
    end_s: float
    """The time.monotonic() until which ranks may wait for each other's readings."""
    key: str | None = None
    """The field that identifies a sample, if compared by content."""
    loaders: int = 1
    """How many loaders share what a rank may report."""


def given(ctx: Context, called: Called, budget: Budget, data_parallel: int | None) -> Facts:
    """The facts about the loaders that the user's function returned, including what it printed and wrote."""
    readings, compared = _read(ctx, called.loaders, called.function, budget, data_parallel)
    return Facts(
        given=True,
        function=str(called.function),
        mistake=called.mistake,
        readings=readings,
        together=compared,
        printed=called.printed,
        lines=called.lines,
        written=called.written,
    )


def torchs_own(ctx: Context, budget: Budget) -> Facts:
    """The facts without a user's function: DistributedSampler itself, on this world."""
    if len(ctx.members) > 1:
        ctx.process_group()
    readings, compared = _read(ctx, _distributed(ctx.group_rank, len(ctx.members)), None, budget, None)
    return Facts(
        given=False, function="", mistake=None, readings=readings, together=compared, printed=[], lines=0, written=[]
    )


def _read(
    ctx: Context, loaders: dict[str, Any], code: UserCode | None, budget: Budget, data_parallel: int | None
) -> tuple[list[Reading], list[Together]]:
    """The loaders share `budget.seconds`."""
    readings: list[Reading] = []
    mine: dict[Key, Whole] = {}
    each = replace(budget, seconds=budget.seconds / max(1, len(loaders)), loaders=max(1, len(loaders)))
    for name, loader in loaders.items():
        ctx.doing(f"reading loader {name}" if name else "reading the loader")
        reading, ids = read(loader, name, code, each)
        readings.append(reading)
        length, whole = reading["length"], [at for at, epoch in enumerate(reading["epochs"]) if epoch["whole"]]
        for number, epoch_ids in zip(whole, ids, strict=False):
            epoch = reading["epochs"][number]
            mine[name, number] = Whole(epoch_ids, length or 0, epoch["dropped"], epoch["order"])
    slower_s = budget.seconds + budget.patience_s  # how much slower another rank may be
    return readings, together(ctx, mine, data_parallel, slower_s, budget.end_s)


def _distributed(rank: int, world: int) -> dict[str, Any]:
    """torch's loaders by name. Their samplers get rank and world, so no process group is needed."""
    from torch.utils.data import DataLoader, DistributedSampler

    odd = ROUNDS * world + world // 2 + 1
    asked = {
        "even": (ROUNDS * world, False, False),
        "uneven": (odd, False, False),
        "drop_last": (odd, False, True),
        "shuffled": (odd, True, False),
    }
    found: dict[str, Any] = {}
    for name, (length, shuffle, drop_last) in asked.items():
        numbers: Any = range(length)  # works as a dataset
        sampler: Any = DistributedSampler(numbers, world, rank, shuffle=shuffle, drop_last=drop_last)
        found[name] = DataLoader(numbers, batch_size=BATCH, sampler=sampler)
    return found


# One of them


def read(loader: Any, name: str, code: UserCode | None, budget: Budget) -> "tuple[Reading, list[torch.Tensor]]":
    """(the reading, the ids (int64[samples + dropped], in order) of each epoch read whole by index). Faults of the
    user's code are in `Reading.mistake`. `code`: the user's; None for torch's own sampler."""
    began = time.monotonic()
    reader = _One(loader, name, Waiting(code, budget.patience_s), budget)
    try:
        reader.describe()
        reader.read()
    except UserError as error:
        reader.reading["mistake"] = raised(error)
    except Stuck as error:
        reader.reading["mistake"] = error.mistake()
    reader.reading["seconds"] = round(time.monotonic() - began, 3)
    return reader.reading, reader.whole if reader.reading["known_by"] == "index" else []


class _One:
    def __init__(self, loader: Any, name: str, waiting: Waiting, budget: Budget) -> None:
        self.loader, self.waiting, self.budget = loader, waiting, budget
        self.called = f"loader {name!r}" if name else "the loader"
        self.by_index, self.agree = accelerate_loaders.by_index(loader), accelerate_loaders.agreement(loader)
        self.subset: Any = None
        """This rank's part, if its place in the whole dataset is known."""
        self.whole: list[torch.Tensor] = []
        self.began = time.monotonic()
        self.reading = _unread(loader, name, "index" if self.by_index else "content")

    def describe(self) -> None:
        loader, reading = self.loader, self.reading
        samplers = sampler_chain.samplers(sampler_chain.within(loader))
        self.subset = subsets.of(loader) if self.by_index else None
        dataset = sampler_chain.linked(loader, "dataset") if self.subset is None else subsets.whole(self.subset)
        place = sampler_chain.place(loader, samplers, self.waiting.code)
        reading["file"], reading["line"] = place or (None, None)
        reading["sampler"] = type(samplers[-1]).__name__ if samplers else ""
        reading["dataset"] = "" if dataset is None else type(dataset).__name__
        with self.waiting.on(f"len() of {self.called}"):
            reading["by_design"] = sampler_chain.by_design(samplers)
            reading["length"], reading["batches"] = _length(dataset), _length(loader)
            if self.subset is not None:
                reading["subset"] = len(self.subset)
            reading["drop_last"] = sampler_chain.drops_last(loader, samplers)
            reading["parted"] = sampler_chain.parted(loader, samplers)
            reading.update(sampler_chain.settings(samplers))  # type: ignore[typeddict-item]
            if not samplers:
                reading["shuffle"] = sampler_chain.shuffles(dataset)

    def read(self) -> None:
        for epoch in EPOCHS:
            self._set_epoch(epoch)
            ids = self._by_index(epoch) if self.by_index else self._by_content(epoch)
            if not ids.indices:
                self.reading["known_by"] = "content"
            self.reading["epochs"].append(self._epoch(ids))
            if ids.whole and self.by_index:
                self.whole.append(ids.chosen())
        if self.by_index and self.waiting.code is not None:
            self._load()
            self._draw()

    def _epoch(self, ids: Ids) -> Epoch:
        length, ordered = self.reading["length"], None
        if ids.indices and not ids.whole and length and len(ids) >= PASSES * length:
            self.reading["by_design"], ordered = self.reading["by_design"] or "endless", length
        return ids.epoch(self.budget.world, self.budget.loaders, ordered)

    def _set_epoch(self, epoch: int) -> None:
        places = []
        for place, setter in sampler_chain.epoch_setters(self.loader):
            with self.waiting.on(f"set_epoch({epoch}) of {place}"):
                setter(epoch)
            places.append(place)
        self.reading["set_epoch"] = places

    def _limit(self, share: float) -> Limit:
        """Limits up to this share of the time from the start. The second epoch reads no more than an unfinished first
        one did, since no more can be compared."""
        read = self.reading["epochs"]
        samples = read[0]["samples"] if read and not read[0]["whole"] else self.budget.samples
        begins = accelerate_loaders.begins_with_a_collective(self.loader)
        return Limit(self.began + share * self.budget.seconds, samples, self.agree, begins)

    def _by_index(self, epoch: int) -> Ids:
        what = f"the next index of epoch {epoch} from the sampler of {self.called}"
        limit = self._limit((0.4, 0.8)[epoch])
        if accelerate_loaders.kind(self.loader):
            with accelerate_loaders.reads_indices(self.loader) as chooser:
                ids = indices.read(chooser, True, what, limit, self.waiting)
        else:
            chooser, batches, size = sampler_chain.without_drop_last(self.loader)
            if (length := self.reading["length"]) and _length(chooser) is None:
                limit = replace(limit, samples=min(limit.samples, PASSES * length))
            ids = indices.read(chooser, batches, what, limit, self.waiting)
            ids.drop_below(size)
        ids.from_the_end(self.reading.get("subset", self.reading["length"]) or 0)
        if self.subset is not None and ids.indices and not ids.map(partial(subsets.mapped, self.subset)):
            ids.indices = False
        return ids

    def _by_content(self, epoch: int) -> Ids:
        ids, limit = Ids(), self._limit((0.5, 1.0)[epoch])
        size = sampler_chain.linked(self.loader, "batch_size")
        cutter = content.Cutter(size if isinstance(size, int) else None, self.budget.key)
        again = epoch != EPOCHS[-1]
        with self.waiting.iterating(self.loader, f"an iterator of {self.called}", again=again) as iterator:
            while not limit.spent(len(ids)):
                batch = self._next(iterator, f"batch {ids.batches} of epoch {epoch}")
                if batch is END:
                    ids.whole = True
                    break
                self._cut(batch, cutter, ids)
        return ids

    def _next(self, iterator: Iterator[Any], batch: str) -> Any:
        with self.waiting.on(f"{batch} from {self.called}"):
            return next(iterator, END)

    def _cut(self, batch: Any, cutter: content.Cutter, ids: Ids) -> None:
        try:
            found, sized = cutter.samples(batch)
        except content.NoKey as error:
            raise UserError(f"{self.called} yields no field {self.budget.key!r}, but {error}") from None
        ids.add_batch(found, sized=sized)

    def _load(self) -> None:
        """Loads a few batches from the loader itself, which may raise or hang."""
        epochs = self.reading["epochs"]
        cutter = content.Cutter(max(size for epoch in epochs for size in (epoch["last"], *map(int, epoch["sizes"]))))
        until = self.began + 0.9 * self.budget.seconds
        with self.waiting.iterating(self.loader, f"an iterator of {self.called}") as iterator:
            for step in range(LOADED):
                batch = self._next(iterator, f"batch {step}")
                if batch is END:
                    break
                self.reading["loaded"].append(cutter.size(batch))
                if time.monotonic() > until and not self.agree:
                    break

    def _draw(self) -> None:
        length = self.reading["length"]
        if not length or self.reading["known_by"] != "index":
            return
        _, batches = sampler_chain.chooser(self.loader)
        in_lists = not batches and any(epoch["last"] for epoch in self.reading["epochs"])
        reads = (
            set[int]() if in_lists else self._reads(spot_check.places(length))
        )  # it may only accept lists of one length
        until = self.began + self.budget.seconds
        self.reading["content"] = spot_check.content(self.loader, length, reads, until, self.waiting, in_lists=in_lists)

    def _reads(self, places: list[int]) -> set[int]:
        return {place for place in places if any(bool((ids == place).any()) for ids in self.whole)}


def _unread(loader: Any, name: str, known_by: Literal["index", "content"]) -> Reading:
    import torch

    workers = sampler_chain.linked(loader, "num_workers")
    return Reading(
        name=name,
        known_by=known_by,
        loader=type(loader).__name__,
        sampler="",
        by_design="",
        file=None,
        line=None,
        dataset="",
        length=None,
        batches=None,
        drop_last=None,
        workers=workers if isinstance(workers, int) else 0,
        num_replicas=None,
        replica=None,
        seed=None,
        shuffle=None,
        set_epoch=[],
        epochs=[],
        loaded=[],
        seconds=0.0,
        content={},
        machine=f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        mistake=None,
    )


def _length(thing: Any) -> int | None:
    """Its length; None if it has none: a stream's len() may raise."""
    with suppress(Exception):
        return len(thing)
    return None
