"""Loaders of packages that many train with, right and wrong: Accelerate, torchdata, webdataset. They are imported in
the functions: most tests run without them."""

import json
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

LENGTH = 1003
os.environ["ACCELERATE_USE_CPU"] = "true"


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, -index])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor([number, -number]) for number in range(LENGTH))


def loader(dataset: Any = None, **more: Any) -> Any:
    return DataLoader(dataset or Numbers(), **{"batch_size": 16, **more})


def _prepared(made: Any, **settings: Any) -> Any:
    from accelerate import Accelerator, DataLoaderConfiguration

    return Accelerator(dataloader_config=DataLoaderConfiguration(**settings)).prepare(made)


# Right


def accelerate() -> Any:
    return _prepared(loader(shuffle=True))


def accelerate_seeded() -> dict[str, Any]:
    from accelerate.utils import set_seed

    set_seed(42)
    return {"plain": accelerate(), "seedable": _prepared(loader(shuffle=True), use_seedable_sampler=True)}


def accelerate_settings() -> dict[str, Any]:
    return {
        "in_order": _prepared(loader()),
        "drop_last": _prepared(loader(shuffle=True, drop_last=True)),
        "workers": _prepared(loader(shuffle=True, num_workers=1, persistent_workers=True)),
        "split_batches": _prepared(loader(shuffle=True), split_batches=True),
        "stateful": _prepared(loader(shuffle=True), use_stateful_dataloader=True),
        "even_by_itself": _prepared(loader(shuffle=True, drop_last=True, batch_size=1), even_batches=False),
    }


def accelerate_dispatches() -> dict[str, Any]:
    return {
        "dispatched": _prepared(loader(shuffle=True), dispatch_batches=True),
        "dispatched_and_split": _prepared(loader(shuffle=True), dispatch_batches=True, split_batches=True),
        "stream": _prepared(loader(Stream())),
        "stream_shards": _prepared(loader(Stream()), dispatch_batches=False),
    }


def accelerate_endless() -> Any:
    """The ranks' budgets end at different times."""

    class Endless(Stream):
        def __iter__(self) -> Iterator[Any]:
            number = 0
            while True:
                yield torch.tensor([number, -number])
                number += 1

    return _prepared(loader(Endless()))


def stateful() -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = Numbers()
    return StatefulDataLoader(dataset, batch_size=16, num_workers=1, sampler=DistributedSampler(dataset))


def web() -> Any:
    import webdataset

    return _web(nodesplitter=webdataset.split_by_node)


# Wrong


def accelerate_on_top(**settings: Any) -> Any:
    dataset = Numbers()
    return _prepared(loader(dataset, sampler=DistributedSampler(dataset)), **settings)


def accelerate_dispatched_on_top() -> Any:
    return accelerate_on_top(dispatch_batches=True)


def accelerate_not_even() -> Any:
    return _prepared(loader(shuffle=True), even_batches=False)


def accelerate_unseeded() -> Any:
    """Its sampler's seed is the rank's own, where nobody calls set_seed."""
    return _prepared(loader(shuffle=True), use_seedable_sampler=True)


def accelerate_not_prepared() -> Any:
    from accelerate import Accelerator

    Accelerator()
    return loader(shuffle=True)


def stateful_without_sampler() -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Numbers(), batch_size=16, shuffle=True)


def web_not_split() -> Any:
    return _web(nodesplitter=None)


def _web(**more: Any) -> Any:
    """Eight files of ten samples."""
    import webdataset

    folder = os.environ["TEST_FOLDER"]
    for number in range(8) if dist.get_rank() == 0 else ():
        with webdataset.TarWriter(f"{folder}/{number:04d}.tar") as tar:
            for sample in range(10 * number, 10 * number + 10):
                tar.write({"__key__": f"{sample:04d}", "txt": json.dumps(sample)})
    dist.barrier()
    files = f"{folder}/{{0000..0007}}.tar"
    samples = webdataset.WebDataset(files, shardshuffle=False, **more).decode().to_tuple("__key__", "txt")
    return webdataset.WebLoader(samples, batch_size=5, num_workers=2)
