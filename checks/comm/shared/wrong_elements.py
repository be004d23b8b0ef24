"""The wrong elements of a result: how many there are, and enough of them to see whose they are."""

import ctypes
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.checks.comm.shared.readings import Whose, Wrong

if TYPE_CHECKING:
    import torch

MOST = 65536
"""How many wrong elements to examine: even of 8,192 ranks each owns several of them."""
RUN = 64
"""If there are more, samples are runs of this many wrong elements."""


@dataclass(frozen=True)
class Sample:
    """Wrong elements, on the CPU."""

    index: "torch.Tensor"
    """int64, ascending."""
    got: "torch.Tensor"
    """float64."""
    is_exact: bool
    """Whether the type is exact for whole numbers only up to 256, so that a fraction proves nothing."""


def count(result: "torch.Tensor", right: "Iterable[tuple[int, int, torch.Tensor]]") -> int:
    """How many elements differ from `right`: (start, end, values), piece by piece."""
    import torch

    if result.device.type == "cpu":  # equal bytes cost a quarter of what comparing and counting elements does
        parts = ((result[start:stop], values) for start, stop, values in right)
        return sum(int((got != values).sum()) for got, values in parts if not _same_bytes(got, values))
    return int(torch.stack([(result[start:stop] != values).sum() for start, stop, values in right]).sum())


def _same_bytes(got: "torch.Tensor", right: "torch.Tensor") -> bool:
    """`got` has one dimension, and `right` as many elements of any type, both on the CPU."""
    same = right.to(got.dtype).contiguous()
    return not _libc().memcmp(got.data_ptr(), same.data_ptr(), same.numel() * same.element_size())


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return libc


def sample(result: "torch.Tensor", right: "Iterable[tuple[int, int, torch.Tensor]]", elements: int) -> Sample:
    """About MOST of the wrong elements, of which there are `elements`: the first ones, and runs of all others."""
    import torch

    step = 1 + elements // MOST
    kept: list[torch.Tensor] = []
    seen = 0
    for start, stop, values in right:
        wrong = (result[start:stop] != values).nonzero().flatten()
        numbers = torch.arange(seen, seen + wrong.numel(), device=wrong.device)
        kept.append(wrong[(numbers // RUN) % step == 0].cpu() + start)
        seen += wrong.numel()
    index = torch.cat(kept)
    got = result[index.to(result.device)].cpu().to(torch.float64)
    return Sample(index, got, result.dtype == torch.bfloat16)


def to_wrong(found: Sample, elements: int, of: int, expected: float, sender: int | None, whose: Whose | None) -> Wrong:
    """The form in the facts; `expected` is that of the first wrong element."""
    got = float(found.got[0])
    return {
        "elements": elements,
        "of": of,
        "index": int(found.index[0]),
        "expected": expected,
        "got": got if math.isfinite(got) else str(got),
        "sender": sender,
        "whose": whose,
    }
