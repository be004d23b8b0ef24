"""Which parts of a checkpoint did not come back as they were, to the last bit."""

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor

from preflight.train_smoke.checkpoint.training import Moment
from preflight.train_smoke.trainer.wrapped import Piece, Wrapped, plain_name

MOST = 64
"""The most differences of a kind that are kept: more than the model can have."""


class Difference(TypedDict):
    """One thing that differs from what was written."""

    kind: str
    """weights, buffers, moments, step, rate, schedule, random or tie."""
    name: str
    share: float
    """The share of its elements that differ: 1.0 if it is missing, or is a number."""
    own: float | None
    """The same for the piece that this rank keeps; None if every rank keeps all."""
    was: str
    now: str


def differences(was: Moment, now: Moment, places: Mapping[str, Piece]) -> list[Difference]:
    """The differences between a training and the loaded one, at most MOST of each kind."""
    found = list[Difference]()
    for kind, tensors in was.tensors.items():
        found += [*_of_tensors(kind, tensors, now.tensors[kind], places)][:MOST]
    found += [*_of_numbers(was.numbers, now.numbers)][:MOST]
    if not torch.equal(was.random, now.random):
        found.append(_number("random", "torch's random state", "as it was", "a different one"))
    return found


def _of_tensors(
    kind: str, was: Mapping[str, Tensor], now: Mapping[str, Tensor], places: Mapping[str, Piece]
) -> Iterator[Difference]:
    for name, expected in was.items():
        value = now.get(name)
        if value is None or value.shape != expected.shape:
            shape = "nothing" if value is None else f"a tensor of shape {tuple(value.shape)}"
            yield Difference(kind=kind, name=name, share=1.0, own=None, was=_largest(expected), now=shape)
            continue
        off = value != expected
        if not off.any():
            continue
        place = places.get(name.partition(" ")[0])
        own = None if place is None else _share(place.of(off))
        told = "0" if not value[off].any() else _largest(value)
        yield Difference(kind=kind, name=name, share=_share(off), own=own, was=_largest(expected), now=told)


def _share(off: Tensor) -> float:
    return float(f"{off.float().mean():.3g}") if off.numel() else 0.0


def _largest(tensor: Tensor) -> str:
    return f"{float(tensor.abs().max()):.4g} at most" if tensor.numel() else "empty"


NUMBERS = {"step": "the step count", "rate": "the learning rate", "schedule": "the schedule's step"}


def _of_numbers(was: Mapping[str, float], now: Mapping[str, float]) -> Iterator[Difference]:
    """Differences in numbers. On another mesh a rank may have pieces of other parameters: all are at the same step."""
    for name, value in now.items():
        kind, of, parameter = name.partition(" of ")
        expected = was["step"] if of else was[name]
        if value != expected:
            told = "nothing" if value < 0 else f"{value:.7g}"
            words = f"Adam's step count of {parameter}" if of else NUMBERS[name]
            yield _number(kind, words, f"{expected:.7g}", told)


def _number(kind: str, name: str, was: str, now: str) -> Difference:
    return Difference(kind=kind, name=name, share=1.0, own=None, was=was, now=now)


def untied(model: Mapping[str, Any], wrapped: Wrapped) -> Iterator[Difference]:
    """Names of one parameter that have different values in a checkpoint."""
    names: dict[int, list[str]] = {}
    for name, parameter in wrapped.plain.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(plain_name(name))
    for first, *others in names.values():
        for other in others:
            if first in model and other in model and not _equal(model[first], model[other]):
                yield _number("tie", other, f"equal to {first}", "a tensor with different values")


def _equal(value: Any, other: Any) -> bool:
    local, another = (_pieces(each) for each in (value, other))
    return len(local) == len(another) and all(torch.equal(*pair) for pair in zip(local, another, strict=True))


def _pieces(value: Any) -> list[Tensor]:
    """The pieces of a tensor, a DTensor or a ShardedTensor that this rank has."""
    if hasattr(value, "local_shards"):
        return [shard.tensor for shard in value.local_shards()]
    return [value.to_local() if hasattr(value, "to_local") else value]
