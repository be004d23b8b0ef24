"""The content of a dataset at a few indices, for comparison with other ranks' datasets.

If the loader has workers, it is read in one: a file that the dataset opens at its first sample must not be open when
later workers are forked.
"""

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from preflight.check import UserError
from preflight.checks.data.sampler import subsets
from preflight.checks.data.shared import digests, generators
from preflight.checks.data.shared.timeouts import Stuck
from preflight.checks.data.shared.waiting import Waiting

MOST = 8
SEED = 1


def places(length: int) -> list[int]:
    """The first, the last, and some between; the same for all datasets of this length."""
    return sorted({place * (length - 1) // (MOST - 1) for place in range(MOST)}) if length > 0 else []


def content(
    loader: Any, length: int, reads: set[int], until: float, waiting: Waiting, *, in_lists: bool = False
) -> dict[str, str]:
    """Digests by index; all are "" if one is random, since others may then agree by chance, or cannot be computed.
    `reads`: those of `places` that the loader reads: errors at others are not a mistake. `in_lists`: the dataset takes
    lists of indices. Raises UserError and Stuck."""
    found: dict[str, str] = {}
    indices = places(length)
    twice = DrawnTwice(loader.dataset, subsets.of(loader), in_lists=in_lists)
    source = _InWorker(loader, twice, indices) if getattr(loader, "num_workers", 0) else map(twice, indices)
    with waiting.iterating(source, "iter() of the dataset") as iterator:
        for index in indices:
            if time.monotonic() > until:
                break
            try:
                with waiting.on(f"dataset[{index}]"):
                    found[str(index)] = next(iterator)
            except (UserError, Stuck) as error:
                if index in reads:
                    raise
                if isinstance(error, Stuck):
                    break
    return found if all(found.values()) else dict.fromkeys(found, "")


class DrawnTwice:
    """Yields digests of a dataset's samples."""

    def __init__(self, dataset: Any, subset: Any = None, *, in_lists: bool = False) -> None:
        """`subset`: the dataset itself, if indices are those of the whole it is a part of."""
        self.dataset, self.in_lists = dataset, in_lists
        self.whole = dataset if subset is None else subsets.whole(subset)

    def __call__(self, index: int) -> str:
        before = self._generators()
        try:
            first, second = self._digest(index), self._digest(index)
        except digests.Unknown:
            return ""
        return first if first == second and self._generators() == before else ""

    __getitem__ = __call__

    def _generators(self) -> dict[str, str]:
        """States of the dataset's own generators, which `seeded` does not reach."""
        return {path: state for path, state in generators.digests({"": self.dataset}).items() if "." in path}

    def _digest(self, index: int) -> str:
        with seeded():
            sample = self._sample(index)
        return f"{digests.digest(sample):016x}"

    def _sample(self, index: int) -> Any:
        """A sample, read as torch's DataLoader does (torch/utils/data/_utils/fetch.py): datasets may allow one way."""
        if self.in_lists:
            return self.whole[[index]]
        many = getattr(self.whole, "__getitems__", None)
        return many([index])[0] if callable(many) else self.whole[index]


@contextmanager
def seeded() -> Iterator[None]:
    """Seeds Python's, NumPy's and torch's random generators; restores their states afterwards."""
    import torch

    numpy = sys.modules.get("numpy")
    before = generators.snapshot()
    random.seed(SEED)
    torch.default_generator.manual_seed(SEED)
    if numpy:
        numpy.random.seed(SEED)
    try:
        yield
    finally:
        generators.restore(before)


class _InWorker:
    """Iterates `Twice` in a worker like the loader's."""

    def __init__(self, loader: Any, twice: DrawnTwice, indices: list[int]) -> None:
        import torch

        begin = getattr(loader, "worker_init_fn", None)
        self.loader: Any = torch.utils.data.DataLoader(
            twice,  # type: ignore[arg-type]
            batch_size=None,
            sampler=indices,
            num_workers=1,
            collate_fn=_as_it_is,
            worker_init_fn=_Begin(begin) if begin else None,
            multiprocessing_context=getattr(loader, "multiprocessing_context", None),
            generator=torch.Generator(),  # else it would draw from the user's
        )

    def __iter__(self) -> Any:
        return iter(self.loader)


def _as_it_is(text: Any) -> Any:
    return text


class _Begin:
    """Calls the user's worker_init_fn so that it finds the user's dataset in get_worker_info()."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, worker: int) -> None:
        import torch

        info = torch.utils.data.get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[union-attr]
        self.function(worker)
