"""Parts that ranks take by hand: Subset(dataset, range(rank, len(dataset), world)). A Subset knows each sample's index
in the dataset, so what ranks read is compared there, as if a sampler had split the dataset."""

from typing import TYPE_CHECKING, Any

from preflight.checks.data.shared import sampler_chain

if TYPE_CHECKING:
    import torch

OVERRIDES = ("__getitem__", "__getitems__", "__len__")
"""Methods that must not be overridden: a user's subclass of Subset that does may yield different samples."""


def of(loader: Any) -> Any:
    """The loader's Subset, if no sampler splits it between ranks; else None."""
    dataset, chain = sampler_chain.linked(loader, "dataset"), sampler_chain.samplers(loader)
    own = any(not type(sampler).__module__.startswith(("torch.", "torchdata.")) for sampler in chain)
    parted = own or sampler_chain.settings(chain)["num_replicas"] is not None or sampler_chain.parted(loader, chain)
    return dataset if _is_one(dataset) and not parted else None


def _is_one(dataset: Any) -> bool:
    from torch.utils.data import Subset

    kind = type(dataset)
    return isinstance(dataset, Subset) and all(getattr(kind, name) is getattr(Subset, name) for name in OVERRIDES)


def whole(dataset: Any) -> Any:
    """The dataset it is a part of, over any number of levels."""
    while _is_one(dataset):
        dataset = dataset.dataset
    return dataset


def mapped(subset: Any, ids: "torch.Tensor") -> "torch.Tensor | None":
    """The indices in `whole`; None if they cannot be determined."""
    import torch

    while _is_one(subset):
        indices = torch.as_tensor(subset.indices)
        if indices.dtype != torch.int64 or (len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(indices)):
            return None
        ids, subset = indices[ids], subset.dataset
    return ids
