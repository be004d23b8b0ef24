"""Whether ranks that keep the same piece of a parameter keep the same bits of it."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypedDict

import torch
from torch import Tensor
from torch import distributed as dist

from preflight.sdk.arithmetic import kind_of
from preflight.train_smoke.trainer.wrapped import Piece, StrategySetting, Wrapped

MOST = 4
"""The most parameters that are named."""
AT_ONCE = 2**22
"""Elements whose bits are added up at once: 32 MiB each for themselves, their places and their products."""


class Differing(TypedDict):
    parameter: str
    odd: list[int]
    """Ranks whose bits differ from those of most ranks with the same piece, by their number in the group."""
    alike: list[int]
    """The ranks that agree; of two equally large sides the one with the lowest rank."""


class Replicas(TypedDict):
    differing: list[Differing]
    """At most MOST of them."""
    count: int
    """The number of parameters that differ."""


def compared(wrapped: Wrapped, setting: StrategySetting) -> Replicas:
    """The same on all ranks, which call it together. Ranks with different kinds of devices are not compared, nor those
    that are left over in their own mesh: their arithmetic may round differently."""
    places = wrapped.places()
    kind = json.dumps([kind_of(setting.device, os.environ), [*wrapped.mesh]], sort_keys=True)
    pieces = [*wrapped.pieces()]
    here = [[_number(f"{kind} {_place(name, places, piece)}"), _bits(piece)] for name, piece in pieces]
    rows = torch.tensor(here, dtype=torch.int64, device=setting.device).view(-1)
    gathered = rows.new_empty(setting.ranks, rows.numel())
    dist.all_gather(list(gathered.unbind()), rows, group=setting.group)
    table = gathered.view(setting.ranks, len(pieces), 2).cpu()
    found = [*_differing([name for name, _ in pieces], table)]
    return Replicas(differing=found[:MOST], count=len({told["parameter"] for told in found}))


def _differing(names: Iterable[str], table: Tensor) -> Iterator[Differing]:
    """`table` (ranks, parameters, 2): piece and bits."""
    for column, name in enumerate(names):
        own: list[tuple[int, int]] = [tuple(row) for row in table[:, column].tolist()]
        if len(set(own)) == len({piece for piece, _ in own}):
            continue
        for piece in dict.fromkeys(piece for piece, _ in own):
            ranks = [rank for rank, (its, _) in enumerate(own) if its == piece]
            counts = Counter(own[rank] for rank in ranks)
            (usual, _), *others = counts.most_common()
            if others:
                odd = [rank for rank in ranks if own[rank] != usual]
                yield Differing(parameter=name, odd=odd, alike=[rank for rank in ranks if own[rank] == usual])


def _place(name: str, places: Mapping[str, Piece], piece: Tensor) -> str:
    return f"{places.get(name.partition(' ')[0])} {[*piece.shape]}"


def _bits(piece: Tensor) -> int:
    """A sum of a piece's bits as whole numbers, each times an odd number of its own: it changes with any single bit,
    and where elements change places. (Products and sums wrap around at 64 bits.)"""
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[piece.element_size()]
    bits, total = piece.detach().contiguous().view(whole).flatten(), 0
    for number, part in enumerate(torch.split(bits, AT_ONCE)):
        places = torch.arange(part.numel(), device=part.device) + number * AT_ONCE
        total += int((part.to(torch.int64) * (2 * places + 1)).sum())
    return (total + 2**63) % 2**64 - 2**63


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
